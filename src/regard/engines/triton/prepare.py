"""Operands as the kernels read them, made by plain PyTorch operations: O(length) work and memory.

Pairwise scores are read hidden unit by hidden unit, so that both sides are transposed to
(E, length), with the length padded to whole tiles: no load in the inner loop needs a mask.

**The fast form of tanh**, for half precision. With `x = exp(2a) exp(2b)`,

    v tanh(a + b) = v - 2v / (1 + x) = v + 1 / (g + g x),   g = -1 / (2v)

so that a unit costs one fused multiply-add, `d = gate + (g exp(2a)) exp(2b)`, and two units share
one reciprocal, `1/d0 + 1/d1 = (d0 + d1) / (d0 d1)`: the special-function unit, which gives 16
results a clock, is no longer the limit. The exponentials of one side must not overflow before the
other side can bring the product back: heads with |a| or |b| beyond `BOUND` take the plain form, which
a flag on the device decides. |v| is held above `LEAST`, so that d stays below 1e26; if the product
d0 d1 then overflows, both terms are below 1e-12, and 0 is what comes out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.engines.tiled import Arguments
from regard.engines.triton.structs import Form, Pairs, Values
from regard.precision import HALF, working_dtype

# Lengths are padded to multiples of this; every tile's rows and columns divide it.
BLOCK = 64
BOUND = 9.2
LEAST = 1e-9
# Fewer queries do not repay the exponentials.
FEWEST_QUERIES = 16


def strides(x: Tensor | None, tail: int = 2) -> list[int]:
    """Strides of B, K and G, or of all 5 dims with tail=0; 0 where a size of 1 broadcasts."""
    if x is None:
        return [0] * (5 - tail)
    steps = [0 if n == 1 else step for n, step in zip(x.shape, x.stride(), strict=True)]
    return steps[: 5 - tail]


def packed(x: Tensor) -> Tensor:
    """The tensor with its last two dims dense; the others keep their strides."""
    if x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]:
        return x
    return x.contiguous()


def transposed(x: Tensor, units: int) -> Tensor:
    """(..., length, E) to (..., units, padded length), with zeros."""
    extra = -x.shape[-2] % BLOCK
    return F.pad(x.mT, (0, extra, 0, units - x.shape[-1])).contiguous()


def every_head(x: Tensor, args: Arguments, columns: int) -> Tensor:
    """A small operand (B, K, G, n, columns) spread out over all heads, (Z, n * columns)."""
    b, k, g = args.sizes[:3]
    return x.expand(b, k, g, -1, columns).reshape(b * k * g, -1).contiguous()


def is_fast(args: Arguments) -> bool:
    """Whether the fast form of tanh serves: half precision, and queries enough."""
    return (
        args.q.dtype in HALF and args.activation == "tanh" and args.sizes[3] >= FEWEST_QUERIES
    )


class Prepared(NamedTuple):
    """A form, its name, and the number of hidden units or features that the kernel runs over."""

    form: Form
    kind: str
    units: int


def forms(args: Arguments, raw_exponentials: bool = False) -> list[Prepared]:
    """The launches that together compute the call: one, or two for the fast form and the others.

    `raw_exponentials`: the query side without v, as the second loop of the backward needs it.
    """
    scale, _, _, parameter = args.numbers.tolist()
    units, work = args.q.shape[-1], working_dtype(args.q.dtype)
    if args.v is None:
        q, k = packed(args.q), packed(args.k)
        sides = (q, *strides(q), 0, k, *strides(k), 0)
        return [Prepared(Form(*sides, None, None, None, None, scale, 0.0), "inner", units)]
    v = every_head(args.v.to(work), args, units)
    if not is_fast(args):
        q, k = transposed(args.q.to(work), units), transposed(args.k.to(work), units)
        sides = (q, *strides(q), q.shape[-1], k, *strides(k), k.shape[-1])
        return [Prepared(Form(*sides, v, None, None, None, 1.0, parameter), "plain", units)]
    units += units % 2
    v = F.pad(v, (0, units - v.shape[-1]))
    bounded = every_head((_within(args.q) & _within(args.k)).to(torch.int32), args, 1)
    raw_q, raw_k = transposed(args.q, units), transposed(args.k, units)
    gate = -0.5 / torch.where(v.abs() < LEAST, torch.where(v < 0, -LEAST, LEAST), v)
    q, k = torch.exp(2 * raw_q.float()), torch.exp(2 * raw_k.float())
    if not raw_exponentials:
        heads = gate.view(*args.sizes[:3], units, 1)
        q = q * (heads[:1] if args.q.shape[0] == args.v.shape[0] == 1 else heads)

    def both(q: Tensor, k: Tensor) -> Form:
        sides = (q, *strides(q), q.shape[-1], k, *strides(k), k.shape[-1])
        return Form(*sides, v, gate, v.sum(-1), bounded, 1.0, 0.0)

    return [Prepared(both(q, k), "fast", units), Prepared(both(raw_q, raw_k), "plain", units)]


def _within(x: Tensor) -> Tensor:
    """Whether all of a head is within `BOUND`, (B, K, G, 1, 1); not so for NaN."""
    if not x.shape[-2]:
        return x.new_ones(*x.shape[:-2], 1, 1, dtype=torch.bool)
    return torch.linalg.vector_norm(x, math.inf, (-2, -1), keepdim=True) <= BOUND


def pairs(args: Arguments) -> Pairs:
    """All that changes or hides logits."""
    queries, keys = args.sizes[3:]
    work = working_dtype(args.q.dtype)

    def rows(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return None if x is None else every_head(x.to(dtype).expand(-1, -1, -1, queries, 1), args, 1)

    def columns(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        return None if x is None else every_head(x.to(dtype).expand(-1, -1, -1, 1, keys), args, keys)

    def ends(x: Tensor | None) -> Tensor | None:
        # Ends of spans may lie far outside of the keys; 32 bits hold all that matters.
        return None if x is None else rows(x.clamp(-1, keys + 1), torch.int32)

    bias = None if args.bias is None else args.bias.to(work)
    dense = None if args.dense is None else args.dense.view(torch.uint8)
    softcap = float(args.numbers[1])
    return Pairs(
        rows(args.rate, work),
        rows(args.alpha, work),
        columns(args.beta, work),
        softcap if softcap else None,
        bias,
        *strides(bias, 0),
        dense,
        *strides(dense, 0),
        ends(args.start),
        ends(args.stop),
        rows(args.query_segment, torch.int64),
        columns(args.key_segment, torch.int64),
    )


def values(args: Arguments) -> Values:
    """The values, and dropout."""
    value = packed(args.value)
    return Values(value, *strides(value), float(args.numbers[2]), args.seed)
