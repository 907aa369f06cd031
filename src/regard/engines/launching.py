"""Launches of kernels that a call repeats: bound once, and from then on little more than a C call.

Triton looks at every argument of every launch anew, which takes longer than a short kernel runs. A
`Launch` is one kernel with its grid and all that shapes, strides and dtypes decide; whoever makes one
keeps it for calls that agree in those. Its first launch goes through Triton, which compiles; later
ones go to the compiled kernel, with other pointers.

Triton itself is imported where something is launched: `import regard` works without it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

# Versions whose compiled kernels are known to be called as below; others are launched by themselves.
KNOWN = ("3.6.",)
# Kernels are compiled for pointers that 16 bytes divide, and otherwise for any.
ALIGNMENT = 16
WORD = 4


class Operand(Protocol):
    """A tensor, or a piece of one."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what it points to."""
        ...

    def data_ptr(self) -> int:
        """Its address."""
        ...


class Piece:
    """Numbers of 4 bytes within a tensor's memory: a view, made without PyTorch's help."""

    __slots__ = ("address", "count", "dtype", "memory", "start")

    def __init__(
        self, memory: Tensor, address: int, start: int, count: int, dtype: torch.dtype
    ) -> None:
        self.memory, self.address, self.start = memory, address, start
        self.count, self.dtype = count, dtype

    def data_ptr(self) -> int:
        """The address, as tensors have one."""
        return self.address

    def tensor(self, *shape: int) -> Tensor:
        """The same as a tensor, of this shape if one is given."""
        found = self.memory[self.start : self.start + self.count].view(self.dtype)
        return found.view(shape) if shape else found


class Layout:
    """Pieces one after another in one memory.

    Args:
        pieces: for each its count and dtype.
        gaps: whether each begins where 16 bytes do. Memory that is returned has none, as nothing
            would write to them.
    """

    def __init__(self, *pieces: tuple[int, torch.dtype], gaps: bool = True) -> None:
        step = ALIGNMENT // WORD if gaps else 1
        self.places: list[tuple[int, int, torch.dtype]] = []
        self.words = 0
        for count, dtype in pieces:
            self.places.append((self.words, count, dtype))
            self.words += -(-count // step) * step

    def new(self, device: torch.device) -> Tensor:
        """Memory that holds them all."""
        return torch.empty(self.words, dtype=torch.int32, device=device)

    def cut(self, memory: Tensor) -> list[Piece]:
        """The pieces of such a memory."""
        base = memory.data_ptr()
        return [
            Piece(memory, base + WORD * start, start, count, dtype)
            for start, count, dtype in self.places
        ]


def current_stream(device: torch.device) -> int | None:
    """The stream to launch on directly, or None where launches have to go through Triton.

    They have to where somebody's hooks are told of every launch, and in the interpreter.
    """
    if device.type != "cuda":
        return None
    from triton.knobs import runtime

    # Chains of hooks, empty in general; in somebody's hands they may be anything.
    for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        if getattr(hook, "calls", hook):
            return None
    return torch._C._cuda_getCurrentRawStream(device.index)


class Launch:
    """One kernel, its grid, and all of its arguments but pointers and a few numbers.

    It is for one device and for operands of fixed dtypes; numbers among the operands are floats,
    which Triton compiles alike whatever they are. It keeps no operand.

    Args:
        kernel: made by `triton.jit`.
        programs: how many are launched.
        arguments: makes of the operands, pointers or tensors, all arguments but `constants`.
        constants: the arguments that follow, which a kernel is compiled for.
        options: how it is compiled: `num_warps` and the like.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        arguments: Callable[..., Sequence],
        constants: Sequence = (),
        **options: Any,
    ) -> None:
        self.kernel, self.programs, self.arguments = kernel, programs, arguments
        self.constants, self.options = tuple(constants), options
        # By which operands are aligned: as many as alignments that callers come with.
        self.bound: dict[tuple[bool, ...] | None, Callable] = {}

    def __call__(self, stream: int | None, operands: Sequence[Operand], *numbers: float) -> None:
        """Launch it; `stream` is what `current_stream` says."""
        if stream is None or self.kernel.pre_run_hooks:
            self.ordinary(operands, *numbers)
            return
        pointers = [x.data_ptr() for x in operands]
        together = 0
        for pointer in pointers:
            together |= pointer
        alignment = None
        if together % ALIGNMENT:
            alignment = tuple(pointer % ALIGNMENT == 0 for pointer in pointers)
        run = self.bound.get(alignment)
        if run is None:
            run = direct(self.ordinary(operands, *numbers), self.programs)
            if run is not None:
                self.bound[alignment] = run
            return
        run(stream, *self.arguments(*pointers, *numbers), *self.constants)

    def ordinary(self, operands: Sequence[Operand], *numbers: float) -> Any:
        """Launch it through Triton; what comes back is the compiled kernel, or None."""
        # The interpreter takes tensors alone.
        given = [x if isinstance(x, Tensor) else whole(x) for x in operands]
        arguments = self.arguments(*given, *numbers)
        return self.kernel[(self.programs,)](*arguments, *self.constants, **self.options)


def whole(x: Any) -> Tensor:
    """A piece as a tensor."""
    return x.tensor()


def direct(compiled: Any, programs: int) -> Callable | None:
    """A function of the stream and all arguments, or None where this Triton is not one we know."""
    if not known_version():
        return None
    try:
        run, function = compiled.run, compiled.function
        packed = compiled.packed_metadata
    except AttributeError:  # not compiled yet, by somebody's executor
        return None

    def launch(stream: int, *arguments: Any) -> None:
        # No metadata and no hooks: they are for those who watch.
        run(programs, 1, 1, stream, function, packed, None, None, None, *arguments)

    return launch


def known_version() -> bool:
    """Whether compiled kernels of the installed Triton are called as in `direct`."""
    import triton

    return triton.__version__.startswith(KNOWN)
