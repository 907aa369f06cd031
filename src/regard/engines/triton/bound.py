"""The forward of common calls, with its launches bound once and kept.

A common call has a pairwise form, no mask or one that consists of spans, and nothing else that changes a
logit. All other calls go through `calls.py`, which prepares every launch anew. The launches of a
signature (shapes, strides, dtypes) are bound at its second call, by the same functions that `calls.py`
uses, from tensors on "meta". They hold no tensor of any call. `bound_backward.py` does the same for the
backward.

Shape legend: see `structs`; (B, K, G, rows, columns) as in `regard.engines.tiled.operators`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.launching import REMEMBERED, SecondUseCache, Steps, interpreted
from regard.engines.sizes import blocks_in
from regard.engines.tiled import Arguments
from regard.engines.triton import choices, lanes, prepare
from regard.engines.triton.decode import combine_kernel, decode_kernel
from regard.engines.triton.forward import forward_kernel
from regard.engines.triton.sides import ends_kernel, side_kernel
from regard.engines.triton.structs import KernelForm, PairTerms

BOUND_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FLOAT, DOUBLE = torch.float32, torch.float64
# Ends of spans that one program converts to 32 bits.
ENDS = 1024


class Described(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def empty(self) -> Tensor:
        """A tensor like this on "meta", without memory."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


class CallSignature(NamedTuple):
    """What calls have to agree in to share their launches; numbers in the tensors are no part of it.

    `lanes` says whether sums by `lanes.py` are still trusted.
    """

    q: Described
    k: Described
    value: Described
    v: torch.dtype
    start: Described | None
    stop: Described | None
    device: torch.device
    sizes: tuple[int, ...]
    activation: str
    parameter: float
    lanes: bool


def described(x: Tensor) -> Described:
    """The shape, strides and dtype of this tensor."""
    return Described(x.shape, x.stride(), x.dtype)


def call_signature(args: Arguments) -> CallSignature | None:
    """The signature of this call, or None where it is not a common one."""
    q, k, value, v, alpha, beta, rate, bias, dense, start, stop, segment, _, seed, *_ = args
    # An inner form has no v.
    if v is None or q.dtype not in BOUND_DTYPES or k.dtype != q.dtype or value.dtype != q.dtype:
        return None
    for x in (alpha, beta, rate, bias, dense, segment, seed):
        if x is not None:
            return None
    _, softcap, _, parameter = args.numbers.tolist()
    if softcap or not (q.numel() and k.numel() and value.numel()):
        return None
    return CallSignature(
        described(q),
        described(k),
        described(value),
        v.dtype,
        None if start is None else described(start),
        None if stop is None else described(stop),
        q.device,
        tuple(args.sizes),
        args.activation,
        parameter,
        not lanes.refused(),
    )


def find_forward(args: Arguments, entropy: bool, alone: bool = False) -> BoundForward | None:
    """The bound forward of this call, or None if it is not common or the first of its signature."""
    signature = call_signature(args)
    return None if signature is None else kept_forwards(signature, entropy, alone)


def arguments(signature: CallSignature) -> Arguments:
    """The `Arguments` of a call of this signature, with tensors on "meta"."""
    _, groups, heads, _, _ = signature.sizes
    v = torch.empty(1, groups, heads, 1, signature.q.shape[-1], dtype=signature.v, device="meta")
    return Arguments(
        q=signature.q.empty(),
        k=signature.k.empty(),
        value=signature.value.empty(),
        v=v,
        alpha=None,
        beta=None,
        rate=None,
        bias=None,
        dense=None,
        start=None if signature.start is None else signature.start.empty(),
        stop=None if signature.stop is None else signature.stop.empty(),
        query_segment=None,
        key_segment=None,
        seed=None,
        numbers=torch.tensor([1.0, 0.0, 0.0, signature.parameter], dtype=DOUBLE, device="cpu"),
        sizes=list(signature.sizes),
        activation=signature.activation,
    )


class Operands:
    """The arguments of kernels for a call on "meta", and the launches that prepare them.

    Attributes:
        args: the call.
        given: its tensors, in the order in which `of` lists those of a real call.
        forms: one for each launch, see `prepare.forms`.
        pairs, values, sizes: see `structs`.
        pieces: scratch memory, allocated in each call.
        zeros: the same, cleared first.
    """

    def __init__(
        self, signature: CallSignature, direct: bool = False, exponentials: bool = False
    ) -> None:
        self.args = args = arguments(signature)
        self.pairs, self.values = prepare.pairs(args), prepare.values(args)
        self.sizes = choices.sizes(args)
        self.count, self.is_packed = prepare.count(args), self.values.value is args.value
        self.v_shape = args.v.shape  # type: ignore[union-attr] # pairwise
        self.ends = [x for x in (self.pairs.start, self.pairs.stop) if x is not None]
        self.pieces: list[Tensor] = [*self.ends]
        self.zeros: list[Tensor] = []
        self.sides: list[tuple] = []
        v = self.read_as_it_is() if direct else self.lay_out(exponentials)
        spans = [x for x in (args.start, args.stop) if x is not None]
        self.given = [args.q, args.k, v, self.values.value, *spans]

    def read_as_it_is(self) -> Tensor:
        """Use the caller's tensors as they are, for few queries; returns v, which is read in its dtype."""
        args = self.args
        ((form, name, units),) = prepare.direct(args)
        self.forms = [prepare.PreparedForm(form._replace(v=args.v), name, units)]
        assert args.v is not None
        return args.v

    def lay_out(self, exponentials: bool) -> Tensor:
        """Use both sides laid out, for tiles; returns v as the caller passes it."""
        args, (sides, self.forms) = self.args, prepare.laid_out(self.args, exponentials)
        weights = self.forms[0].form.v
        assert args.v is not None
        # Kernels read v in fp32: in another dtype the launch of the query side converts it.
        v, into = (weights, None) if args.v.dtype == FLOAT else (args.v, weights)
        for side, made in zip(sides, (into, None), strict=True):
            laying = side.arguments(made)
            laying = laying if laying.v is None and made is None else laying._replace(v=v)
            self.sides.append((side.programs(), laying, side.constants()))
        for form, _, _ in self.forms:
            self.note(form, v)
        return v

    def note(self, form: KernelForm, v: Tensor) -> None:
        """Add the tensors of a form to the memory that a call allocates, each once."""
        # Added to or set by several programs, so that they have to be 0 first.
        zeros = (form.base, form.loose_q, form.loose_k)
        for x in (form.q, form.k, form.second_q, form.v, form.gate, *zeros):
            into = self.zeros if any(x is y for y in zeros) else self.pieces
            if x is not None and x is not v and not any(x is y for y in into):
                into.append(x)

    def add_preparation(self, steps: Steps) -> None:
        """Append the launches that prepare the operands."""
        if self.ends:
            steps.add(ends_kernel, *self.spans_template(self.pairs))
        for programs, laying, constants in self.sides:
            steps.add(side_kernel, programs, laying, constants)

    def spans_template(self, pairs: PairTerms) -> tuple[int, tuple, tuple[int]]:
        """Programs, arguments and constants of the kernel that converts ends of spans to 32 bits."""
        args, (_, groups, heads, queries, keys) = self.args, self.args.sizes
        # Spans that all heads share are converted once.
        count = queries if prepare.shared_spans(args) else self.count * queries
        strides = (*prepare.strides(args.start)[:4], *prepare.strides(args.stop)[:4])
        template = (args.start, args.stop, pairs.start, pairs.stop, *strides)
        template = (*template, groups, heads, queries, keys, count)
        return blocks_in(count, ENDS), template, (ENDS,)

    def of(self, args: Arguments) -> list[Tensor]:
        """The tensors of a real call in the layout of this signature."""
        assert args.v is not None
        v, value = args.v, args.value
        # One v for all heads is expanded, which the signature does not record.
        if v.shape != self.v_shape or not v.is_contiguous():
            v = v.expand(self.v_shape).contiguous()
        found = [args.q, args.k, v, value if self.is_packed else value.contiguous()]
        if args.start is not None:
            found.append(args.start)
        if args.stop is not None:
            found.append(args.stop)
        return found


class BoundForward:
    """The bound launches of the forward for all calls of one signature.

    With `alone` only the output is needed, and the kernel writes it in the dtype of the values. The
    interpreter still writes fp32, because it truncates to half precision where a GPU rounds.
    """

    def __init__(self, signature: CallSignature, entropy: bool, alone: bool) -> None:
        self.device, args = signature.device, arguments(signature)
        decode = choices.is_decode(args, entropy)
        self.operands = Operands(signature, direct=decode)
        self.rows = tuple(args.sizes[:4])
        self.shape = (*self.rows, args.value.shape[-1])
        self.dtype = signature.value.dtype if alone and not interpreted() else FLOAT
        output = torch.empty(self.shape, dtype=self.dtype, device="meta")
        tail = torch.empty(self.rows, dtype=FLOAT if alone else DOUBLE, device="meta")
        spread, peak = (torch.empty(self.rows, dtype=FLOAT, device="meta") for _ in range(2))
        if alone:
            # Kernels still write tail and largest logit: to scratch memory.
            self.operands.pieces += [tail, peak]
            self.results = [output]
        else:
            self.results = [output, tail, spread, peak]
        written = (output, tail, None if alone else spread, peak)
        if decode:
            self.bind_decode(written)
        else:
            self.bind(written, entropy)

    def bind(self, written: tuple[Tensor | None, ...], entropy: bool) -> None:
        """Bind the launches of the tiled kernel, one for each form."""
        x = self.operands
        self.steps = Steps([*x.given, *self.results], x.pieces, x.zeros)
        x.add_preparation(self.steps)
        sides = choices.forward_tile(x.args)
        for form, name, units in x.forms:
            tile = choices.tile(x.args, sides, name, units, x.pairs)
            self.steps.add(
                forward_kernel,
                x.count * blocks_in(x.args.sizes[3], sides[0]),
                (form, x.pairs, *x.sizes, x.values, None, *written),
                (tile, choices.chunk(units), entropy),
                num_warps=sides[2],
                **choices.forward_registers(name, units),
            )

    def bind_decode(self, written: tuple[Tensor | None, ...]) -> None:
        """Bind the launches of the decode kernels, for few queries."""
        x, dims = self.operands, self.shape[-1]
        rows, block, wide, parts, share, even, most = choices.decode_split(x.args)
        together = choices.combining(most, dims)
        shapes = ((rows * parts, dims), (rows * parts,), (rows * parts,))
        found = [torch.empty(shape, dtype=FLOAT, device="meta") for shape in shapes]
        self.steps = Steps([*x.given, *self.results], [*x.pieces, *found])
        x.add_preparation(self.steps)
        ((form, name, units),) = x.forms
        tile = choices.tile(x.args, (16, block, 4), name, units, x.pairs)
        operands = choices.growing(form, x.pairs, x.sizes, x.values)
        self.steps.add(
            decode_kernel,
            rows * parts,
            (*operands[:4], *found, None, *operands[4:], parts, share),
            (tile, block, wide, choices.keys_side_by_side(block, dims), even),
            **choices.DECODE_OPTIONS,
        )
        self.steps.add(
            combine_kernel,
            rows * max(blocks_in(dims, together[1]), 1),
            (*found, *written, None, None, None, x.args.sizes[4], parts, dims),
            (*together, choices.COMBINED_KEYS),
            **choices.DECODE_OPTIONS,
        )

    def attend(self, args: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Output, tail, entropy and largest logit."""
        device, output = self.device, self.new_output()
        tail = torch.empty(self.rows, dtype=DOUBLE, device=device)
        spread, peak = (torch.empty(self.rows, dtype=FLOAT, device=device) for _ in range(2))
        self.steps.run(*self.operands.of(args), output, tail, spread, peak)
        return output, tail, spread, peak

    def output(self, args: Arguments) -> Tensor:
        """The output, from launches bound with `alone`."""
        output = self.new_output()
        self.steps.run(*self.operands.of(args), output)
        return output

    def new_output(self) -> Tensor:
        """An uninitialised tensor for the output."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


# Bound forwards by (signature, entropy, alone).
kept_forwards = SecondUseCache(BoundForward, REMEMBERED)
