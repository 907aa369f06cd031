"""Lays operands out as the kernels read them, in O(length) work and memory.

Kernels read pairwise scores one hidden unit after another. Both sides are therefore transposed to
(E, length), with the length padded to whole tiles, so that no load in the inner loop needs a mask. One
launch of `side_kernel` does it for each side.

**The fast form of tanh**, for half precision. With `x = exp(2a) exp(2b)`,

    v tanh(a + b) = v - 2v / (1 + x) = v + 1 / (g + g x),   g = -1 / (2v)

so that a unit costs one fused multiply-add, `d = gate + (g exp(2a)) exp(2b)`, and two units share
one reciprocal, `1/d0 + 1/d1 = (d0 + d1) / (d0 d1)`. The special-function unit, which has 16 results a
clock, is then no longer the limit. The exponentials of one side must not overflow where the other side
would bring the product back into range. Heads with |a| or |b| beyond `LARGEST_SIDE`, or |v| beyond
1 / `LEAST_V`, therefore take the plain form, by a flag on the device. |v| is held above `LEAST_V`, so
that d stays below 1e26. If the product d0 d1 still overflows, both terms are below 1e-12, and the result
is 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.gpu import too_large
from regard.engines.sizes import power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton.engine import FEWEST_QUERIES_FOR_TILES
from regard.engines.triton.sides import side_kernel
from regard.engines.triton.structs import KernelForm, Laying, PairTerms, Values
from regard.precision import HALF, working_dtype

# Lengths are padded to multiples of this, which the rows and columns of every tile divide.
LENGTH_BLOCK = 64
# exp(2 * 9.2) is 1e8, so that a product of two sides stays below 1e16; times a gate of at most 5e8 it is
# below 1e26.
LARGEST_SIDE = 9.2
LEAST_V = 1e-9


def count(args: Arguments) -> int:
    """The number of heads of the whole call, Z = B K G."""
    return math.prod(args.sizes[:3])


def has_own_memory(args: Arguments) -> bool:
    """Whether nothing broadcasts: each sequence has its own queries, keys and values, each head its v.

    Gradients of keys and values are then sums over the heads of a group, and over nothing else.
    """
    b, k, g, queries, keys = args.sizes
    units = args.q.shape[-1]
    return (
        args.v is not None
        and args.q.shape == (b, k, g, queries, units)
        and args.k.shape == (b, k, 1, keys, units)
        and args.value.shape[:4] == (b, k, 1, keys)
        and args.v.shape == (1, k, g, 1, units)
    )


def hides(args: Arguments) -> bool:
    """Whether some query may not see all keys."""
    masks = (args.bias, args.dense, args.start, args.stop, args.query_segment)
    return args.sizes[4] == 0 or any(x is not None for x in masks)


def strides(x: Tensor | None) -> tuple[int, int, int, int, int]:
    """Strides of all 5 dims; 0 where a size of 1 broadcasts."""
    if x is None:
        return (0, 0, 0, 0, 0)
    (b, k, g, rows, columns), steps = x.shape, x.stride()
    return (
        0 if b == 1 else steps[0],
        0 if k == 1 else steps[1],
        0 if g == 1 else steps[2],
        0 if rows == 1 else steps[3],
        0 if columns == 1 else steps[4],
    )


def head_strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of B, K and G."""
    return strides(x)[:3]


def is_packed(x: Tensor) -> bool:
    """Whether the last two dims are dense."""
    return x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]


def packed(x: Tensor) -> Tensor:
    """The tensor with its last two dims dense; the others keep their strides."""
    return x if is_packed(x) else x.contiguous()


def every_head(x: Tensor, args: Arguments, columns: int) -> Tensor:
    """A small operand (B, K, G, n, columns) copied for all heads, (Z, n * columns)."""
    b, k, g = args.sizes[:3]
    # Not -1 for the last size: with B = 0 it would be ambiguous.
    return x.expand(b, k, g, -1, columns).reshape(b * k * g, x.shape[3] * columns).contiguous()


def is_fast(args: Arguments) -> bool:
    """Whether the fast form of tanh is used: half precision, enough queries, and a hidden unit."""
    fitting = args.q.dtype in HALF and args.activation == "tanh" and args.q.shape[-1] > 0
    return fitting and args.sizes[3] >= FEWEST_QUERIES_FOR_TILES


def weights(args: Arguments) -> Tensor:
    """The v of a pairwise form in working precision, expanded to every head of a sequence."""
    assert args.v is not None
    v = args.v.to(working_dtype(args.q.dtype))
    return v.expand(1, *args.sizes[1:3], 1, v.shape[-1]).contiguous()


class PreparedForm(NamedTuple):
    """A form, its name, and the number of hidden units or features that the kernel runs over."""

    form: KernelForm
    form_name: str
    units: int


def forms(args: Arguments, exponentials: bool = False) -> list[PreparedForm]:
    """The forms whose launches together compute the call: one, or the fast form and the plain one.

    `exponentials` also makes exp(2a) without v, which the second loop of the backward needs.
    """
    if args.v is None:
        scale, q, k = args.numbers.tolist()[0], packed(args.q), packed(args.k)
        sides = (q, *head_strides(q), 0, 0, k, *head_strides(k), 0, 0)
        return [PreparedForm(KernelForm(*sides, scale=scale), "inner", args.q.shape[-1])]
    sides, found = laid_out(args, exponentials)
    for side in sides:
        side.launch()
    return found


def laid_out(
    args: Arguments, exponentials: bool = False
) -> tuple[tuple[Side, Side], list[PreparedForm]]:
    """Both sides of a pairwise form, and its forms with memory that the sides still have to write."""
    units, parameter = args.q.shape[-1], args.numbers.tolist()[3]
    # Again, since a compiled graph has symbols for sizes when the engine checks them.
    for reason in too_large(max(args.q.shape[3], args.k.shape[3]), units):
        raise RuntimeError(f"engine 'triton': {reason}")
    v = weights(args)
    if not is_fast(args):
        q, k = Side(args.q, units), Side(args.k, units)
        q.make(raw=working_dtype(args.q.dtype))
        k.make(raw=working_dtype(args.q.dtype))
        form = KernelForm(*q.of(q.raw), *k.of(k.raw), v=v, parameter=parameter)
        return (q, k), [PreparedForm(form, "plain", units)]
    # Two units share a reciprocal: an odd number is padded.
    units += units % 2
    q, k = Side(args.q, units), Side(args.k, units)
    # Flags of both sides in one tensor, which one launch clears.
    loose = args.q.new_zeros(q.heads + k.heads, dtype=torch.int32)
    base = args.q.new_zeros(q.heads, dtype=torch.float32)
    loose_q, loose_k = loose[: q.heads], loose[q.heads :]
    q.make(raw=args.q.dtype, loose=loose_q, v=v, base=base, exponentials=exponentials)
    k.make(raw=args.k.dtype, loose=loose_k, exponentials=True)
    rest = {"v": v, "gate": q.gate, "base": base, "loose_q": loose_q, "loose_k": loose_k}
    fast = KernelForm(*q.of(q.gated), *k.of(k.exponentials), q.exponentials, **rest)
    plain = KernelForm(*q.of(q.raw), *k.of(k.raw), **rest)
    return (q, k), [PreparedForm(fast, "fast", units), PreparedForm(plain, "plain", units)]


def direct(args: Arguments) -> list[PreparedForm]:
    """The plain form read from the caller's operands: slower to read, but nothing is laid out first."""
    q, k = args.q, args.k
    sides = (q, *head_strides(q), q.stride(4), q.stride(3))
    sides = (*sides, k, *head_strides(k), k.stride(4), k.stride(3))
    form = KernelForm(*sides, v=weights(args), parameter=args.numbers.tolist()[3])
    return [PreparedForm(form, "direct", args.q.shape[-1])]


class Side:
    """One side of a pairwise form, (B, K, G, length, E), and the tensors it is laid out to."""

    def __init__(self, x: Tensor, units: int) -> None:
        self.x, self.units = x, units
        self.heads = math.prod(x.shape[:3])
        self.step = -(-x.shape[3] // LENGTH_BLOCK) * LENGTH_BLOCK
        self.v: Tensor | None = None
        self.base: Tensor | None = None
        self.loose: Tensor | None = None
        self.raw: Tensor | None = None
        self.gated: Tensor | None = None
        self.exponentials: Tensor | None = None
        self.gate: Tensor | None = None

    def empty(self, dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor for all heads, (B, K, G, units, step)."""
        return self.x.new_empty((*self.x.shape[:3], self.units, self.step), dtype=dtype)

    def of(self, laid_out: Tensor | None) -> tuple[Tensor, int, int, int, int, int]:
        """A laid out tensor with its strides of B, K and G, of hidden units and of rows."""
        assert laid_out is not None
        return (laid_out, *head_strides(laid_out), self.step, 1)

    def make(
        self,
        raw: torch.dtype,
        loose: Tensor | None = None,
        v: Tensor | None = None,
        base: Tensor | None = None,
        exponentials: bool = False,
    ) -> None:
        """Allocate what is to be laid out; with v also the exponentials times the gates."""
        self.raw, self.loose, self.v, self.base = self.empty(raw), loose, v, base
        if exponentials:
            self.exponentials = self.empty(torch.float32)
        if v is not None:
            self.gated = self.empty(torch.float32)
            self.gate = self.x.new_empty((self.heads, self.units), dtype=torch.float32)

    def programs(self) -> int:
        """The number of programs that lay it out."""
        return self.heads * self.step // LENGTH_BLOCK

    def arguments(self, weights: Tensor | None = None) -> Laying:
        """The arguments of `side_kernel`."""
        _, groups, heads, length, _ = self.x.shape
        return Laying(
            self.x,
            *strides(self.x),
            groups,
            heads,
            length,
            self.step,
            self.v,
            weights,
            self.gate,
            self.base,
            self.gated,
            self.exponentials,
            self.raw,
            self.loose,
            LARGEST_SIDE,
            LEAST_V,
        )

    def constants(self) -> tuple[int, int, int, int]:
        """The compile-time arguments of `side_kernel`."""
        return (LENGTH_BLOCK, self.x.shape[-1], self.units, min(power_of_two(self.units), 64))

    def launch(self) -> None:
        """Run `side_kernel`, unless there is nothing to lay out."""
        if self.programs():
            side_kernel[(self.programs(),)](*self.arguments(), *self.constants())


def shared_spans(args: Arguments) -> bool:
    """Whether all heads of all sequences have the same spans."""
    spans = [x for x in (args.start, args.stop) if x is not None]
    return all(x.shape[:3] == (1, 1, 1) for x in spans)


def pairs(args: Arguments) -> PairTerms:
    """Everything that changes or hides a logit, as kernels take it."""
    queries, keys = args.sizes[3:]
    work = working_dtype(args.q.dtype)

    def rows(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return (
            None if x is None else every_head(x.to(dtype).expand(-1, -1, -1, queries, 1), args, 1)
        )

    def columns(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return (
            None if x is None else every_head(x.to(dtype).expand(-1, -1, -1, 1, keys), args, keys)
        )

    def ends(x: Tensor | None) -> Tensor | None:
        # Ends of spans may lie far outside of the keys, where they all mean the same: clamped to 32 bits.
        if x is None:
            return None
        x = x.clamp(-1, keys + 1).to(torch.int32).expand(-1, -1, -1, queries, 1)
        return x.reshape(queries).contiguous() if one_span else every_head(x, args, 1)

    one_span = shared_spans(args)
    bias = None if args.bias is None else args.bias.to(work)
    # Triton loads booleans as bytes.
    dense = None if args.dense is None else args.dense.view(torch.uint8)
    softcap = args.numbers.tolist()[1]
    return PairTerms(
        rows(args.rate, work),
        rows(args.alpha, work),
        columns(args.beta, work),
        softcap if softcap else None,
        bias,
        *strides(bias),
        dense,
        *strides(dense),
        ends(args.start),
        ends(args.stop),
        0 if one_span else 1,
        rows(args.query_segment, torch.int64),
        columns(args.key_segment, torch.int64),
    )


def values(args: Arguments) -> Values:
    """The values and dropout, as kernels take them."""
    value = packed(args.value)
    return Values(value, *head_strides(value), args.numbers.tolist()[2], args.seed)
