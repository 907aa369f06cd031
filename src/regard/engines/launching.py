"""Kernel launches that are bound once and then repeated at little more than the cost of a C call.

Triton inspects every argument at every launch, which takes longer than a short kernel runs. A `Launch`
holds one kernel, its grid, and every argument that follows from shapes, strides and dtypes. Its owner
keeps it for calls that agree in those. The first launch goes through Triton, which compiles; later ones
call the compiled kernel directly with new pointers.

`Launch` is one kernel, `Steps` a sequence of launches with shared memory, `Pieces` the layout of that
memory, and `SecondUseCache` the cache of bound launches. Triton is imported only where something is
launched, so that `import regard` works without it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Triton versions whose compiled kernels take the arguments that `direct` passes. The launcher is private
# to Triton and changes between versions; with any other version every launch goes through Triton.
KNOWN_TRITON = ("3.6.",)
# Triton compiles one kernel for pointers aligned to 16 bytes and another for pointers that are not.
ALIGNMENT = 16
WORD_BYTES = 4
# Call signatures whose launches are kept, at about 20 kB each.
REMEMBERED = 256
# Uses of a key at which `SecondUseCache` builds its value.
SIGHTS = 2

# Where a kernel reads or writes: on a GPU an integer address, which does not keep the memory alive; in
# Triton's interpreter, which has no addresses, a tensor.
Address = int | Tensor


def has_addresses(device: torch.device) -> bool:
    """Whether kernels are compiled for this device rather than interpreted."""
    return device.type == "cuda" and not interpreted()


@functools.cache
def interpreted() -> bool:
    """Whether Triton runs kernels in NumPy, as TRITON_INTERPRET said when they were defined."""
    return triton_settings().interpret


def addresses(*tensors: Tensor) -> Sequence[Address]:
    """Addresses of tensors on one device. The caller keeps the tensors alive until the last launch."""
    if has_addresses(tensors[0].device):
        return [x.data_ptr() for x in tensors]
    return tensors


class Pieces:
    """The layout of several arrays, one after another, in one allocation.

    Args:
        pieces: the size of each array in words of 4 bytes, and its dtype.
        gaps: whether each array starts at a multiple of 16 bytes. Memory that an operator returns has
            no gaps, because no kernel would write to them.
    """

    def __init__(self, *pieces: tuple[int, torch.dtype], gaps: bool = True) -> None:
        step = ALIGNMENT // WORD_BYTES if gaps else 1
        self.starts, self.words = [], 0
        self.pieces = pieces
        for count, _ in pieces:
            self.starts.append(self.words)
            self.words += -(-count // step) * step
        self.offsets = [WORD_BYTES * start for start in self.starts]

    def new(self, device: torch.device) -> Tensor:
        """An uninitialised allocation for all arrays."""
        return torch.empty(self.words, dtype=torch.int32, device=device)

    def cut(self, memory: Tensor) -> list[Address]:
        """The addresses of the arrays in such an allocation."""
        if not has_addresses(memory.device):
            return list(self.tensors(memory))
        base = memory.data_ptr()
        return [base + offset for offset in self.offsets]

    def tensors(self, memory: Tensor) -> list[Tensor]:
        """The arrays in such an allocation as tensors of one dim."""
        return [
            memory[start : start + count].view(dtype)
            for start, (count, dtype) in zip(self.starts, self.pieces, strict=True)
        ]


def current_stream(device: torch.device) -> int | None:
    """The stream to launch on directly, or None where launches have to go through Triton.

    That is in the interpreter, and where a profiler has set launch hooks, which only Triton calls.
    """
    if not has_addresses(device):
        return None
    runtime = triton_settings()
    # Usually empty chains of hooks, but a profiler may have assigned any callable.
    before, after = runtime.launch_enter_hook, runtime.launch_exit_hook
    if getattr(before, "calls", before) or getattr(after, "calls", after):
        return None
    return torch._C._cuda_getCurrentRawStream(device.index)


@functools.cache
def triton_settings() -> Any:
    """Triton's run-time settings, which profilers and tests may change."""
    from triton.knobs import runtime

    return runtime


class Pointer:
    """An address in the form that Triton takes in place of a tensor."""

    def __init__(self, address: int, dtype: torch.dtype) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        """The address, by the name that tensors have for it."""
        return self.address


class Launch:
    """One kernel, its grid, and all of its arguments but pointers and a few floats.

    It belongs to one device, and keeps no operand alive.

    Args:
        kernel: made by `triton.jit`.
        programs: number of programs in the grid, where a call gives no other.
        dtypes: what the pointers among the operands point to; pointers come first.
        arguments: builds all arguments of the kernel but `constants` from the operands.
        constants: the last arguments, which the kernel is compiled for.
        options: options of the compiler, such as `num_warps`.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        dtypes: Sequence[torch.dtype],
        arguments: Callable[..., Sequence],
        constants: Sequence = (),
        **options: Any,
    ) -> None:
        self.kernel, self.programs, self.dtypes = kernel, programs, tuple(dtypes)
        self.arguments, self.constants, self.options = arguments, tuple(constants), options
        # One entry for each combination of aligned operands that callers have used.
        self.bound: dict[tuple[bool, ...] | None, Callable] = {}

    def __call__(
        self,
        stream: int | None,
        pointers: Sequence[Address],
        *numbers: float,
        programs: int | None = None,
    ) -> Any:
        """Launch it on `stream`, which `current_stream` returned.

        Returns the compiled kernel where the launch went through Triton, else None.
        """
        programs = self.programs if programs is None else programs
        if stream is None or self.kernel.pre_run_hooks:
            return self.ordinary(pointers, *numbers, programs=programs)
        # The bitwise or of all pointers is aligned if each of them is: one test for nearly every call.
        together = 0
        for pointer in pointers:
            together |= pointer  # type: ignore[unsupported-operation] # integers where there is a stream
        aligned = None if together % ALIGNMENT == 0 else alignments(pointers)
        run = self.bound.get(aligned)
        if run is not None:
            run(programs, stream, *self.arguments(*pointers, *numbers), *self.constants)
            return None
        compiled = self.ordinary(pointers, *numbers, programs=programs)
        run = direct(compiled)
        if run is not None:
            self.bound[aligned] = run
        return compiled

    def ordinary(self, pointers: Sequence[Address], *numbers: float, programs: int) -> Any:
        """Launch it through Triton, and return the compiled kernel."""
        given = [
            x if isinstance(x, Tensor) else Pointer(x, dtype)
            for x, dtype in zip(pointers, self.dtypes, strict=True)
        ]
        arguments = self.arguments(*given, *numbers)
        return self.kernel[(programs,)](*arguments, *self.constants, **self.options)


def alignments(pointers: Sequence) -> tuple[bool, ...]:
    """Which pointers are aligned; Triton compiles a kernel for each combination."""
    return tuple(pointer % ALIGNMENT == 0 for pointer in pointers)


def direct(compiled: Any) -> Callable | None:
    """A function of grid, stream and all arguments that launches the kernel without Triton's Python.

    None where the kernel, or this version of Triton, has no launcher of the known form.
    """
    import triton

    if not triton.__version__.startswith(KNOWN_TRITON):
        return None
    try:
        launcher, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        launch, scratch = launcher.launch, launcher.global_scratch_size
        scratch += launcher.profile_scratch_size
        how = (launcher.launch_cooperative_grid, launcher.launch_pdl)
    except AttributeError:  # an asynchronous compiler has not finished, or it is not for CUDA
        return None
    if scratch:  # the kernel needs memory that Triton allocates for each launch
        return None
    # No scratch memory, the kernel's metadata, and no launch hooks.
    rest = (function, *how, None, None, packed, None, None, None)
    return lambda programs, stream, *arguments: launch(programs, 1, 1, stream, *rest, *arguments)


def sizes_between(pointers: int, *sizes: Any) -> Callable[..., tuple]:
    """A function that puts `sizes` between the first `pointers` operands and the floats after them."""

    def arguments(*operands: Any) -> tuple:
        return (*operands[:pointers], *sizes, *operands[pointers:])

    return arguments


def filling(template: Any, *names: str) -> Callable[..., Any]:
    """`template._replace(**dict(zip(names, values)))` of a named tuple, as a function of the values."""
    # Positions are looked up once: `_replace` would look them up in every call.
    fields, make = list(template), type(template)._make
    at = [template._fields.index(name) for name in names]

    def filled(*values: Any) -> Any:
        new = fields.copy()
        for i, value in zip(at, values, strict=True):
            new[i] = value
        return make(new)

    return filled


def slotted(template: Sequence) -> tuple[list[Tensor], Callable[..., Sequence]]:
    """The tensors in the arguments of a kernel, and a function that puts addresses in their place.

    Arguments are tensors, numbers, None, and named tuples of these. The function takes one address for
    each tensor, in order of first appearance.
    """
    # By id: a tensor that appears several times has one slot, and `==` would compare its elements.
    found: dict[int, int] = {}
    tensors: list[Tensor] = []

    def tensors_in(values: Sequence) -> list[tuple[int, int]]:
        at = []
        for i, x in enumerate(values):
            if isinstance(x, Tensor):
                if id(x) not in found:
                    found[id(x)] = len(tensors)
                    tensors.append(x)
                at.append((i, found[id(x)]))
        return at

    def emptied(values: Sequence) -> list:
        return [None if isinstance(x, Tensor) else x for x in values]

    own, fields = tensors_in(template), emptied(template)
    groups = []
    for i, x in enumerate(template):
        if isinstance(x, tuple) and (at := tensors_in(x)):
            groups.append((i, type(x)._make, emptied(x), at))  # type: ignore[attr-defined] # named

    def arguments(*operands: Any) -> list:
        new = fields.copy()
        for i, n in own:
            new[i] = operands[n]
        for i, make, values, at in groups:
            inner = values.copy()
            for j, n in at:
                inner[j] = operands[n]
            new[i] = make(inner)
        return new

    return tensors, arguments


class Steps:
    """A sequence of launches that share memory.

    Tensors without memory, on the device "meta", stand for the operands: a launch is added with them as
    arguments, and runs with the addresses of real tensors.

    Args:
        given: operands that a call passes to `run`, in this order.
        pieces: scratch memory, allocated in each call.
        zeros: the same, cleared before the first launch.
    """

    def __init__(
        self, given: Sequence[Tensor], pieces: Sequence[Tensor], zeros: Sequence[Tensor] = ()
    ) -> None:
        self.order = {id(x): i for i, x in enumerate((*given, *pieces, *zeros))}
        self.described = (*given, *pieces, *zeros)  # kept alive, so that their ids stay unique
        self.layout = Pieces(*map(piece, pieces))
        self.cleared = Pieces(*map(piece, zeros))
        self.launches: list[tuple[Launch, Callable[[Sequence[Address]], Sequence[Address]]]] = []

    def add(
        self, kernel: Any, programs: int, template: Sequence, constants: Sequence, **options: Any
    ) -> None:
        """Append a launch; `template` is all arguments but constants."""
        tensors, arguments = slotted(template)
        dtypes = [x.dtype for x in tensors]
        chosen = operator.itemgetter(*[self.order[id(x)] for x in tensors])
        launch = Launch(kernel, programs, dtypes, arguments, constants, **options)
        self.launches.append((launch, chosen))

    def run(self, *given: Tensor) -> list:
        """Launch all steps, and return the results of the launches."""
        device = given[0].device
        memory, stream = self.layout.new(device), current_stream(device)
        at = [*addresses(*given), *self.layout.cut(memory)]
        if self.cleared.words:
            # Addresses do not keep memory alive: the names `memory` and `zeros` do, until the last launch.
            zeros = torch.zeros(self.cleared.words, dtype=torch.int32, device=device)
            at += self.cleared.cut(zeros)
        return [launch(stream, chosen(at)) for launch, chosen in self.launches]


def piece(x: Tensor) -> tuple[int, torch.dtype]:
    """The size of a tensor in words of memory, and its dtype."""
    return -(-x.numel() * x.element_size() // WORD_BYTES), x.dtype


class SecondUseCache:
    """A cache that builds a value when its key is used for the second time, and returns None before.

    Binding launches for a key used once does not pay: a decoder's keys have a new length in every step.

    Args:
        make: builds the value from the parts of a key.
        most: number of keys remembered, with a value or without.
    """

    def __init__(self, make: Callable[..., Any], most: int) -> None:
        self.make, self.entry = make, functools.lru_cache(maxsize=most)(lambda *key: SeenKey())

    def __call__(self, *key: Any) -> Any:
        """The value of this key, or None at its first use."""
        entry = self.entry(*key)
        if entry.made is None:
            entry.seen += 1
            if entry.seen < SIGHTS:
                return None
            entry.made = self.make(*key)
        return entry.made

    def at_once(self, *key: Any) -> Any:
        """The value of a key that is known to be used again, built at its first use."""
        entry = self.entry(*key)
        if entry.made is None:
            entry.made = self.make(*key)
        return entry.made

    def clear(self) -> None:
        """Forget all keys."""
        self.entry.cache_clear()


class SeenKey:
    """A key's uses so far, and the value once it is built."""

    def __init__(self) -> None:
        self.seen, self.made = 0, None
