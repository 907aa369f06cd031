"""What a decoder's step takes and returns, and the signature by which steps share their launches.

Shape legend: B batch, H heads, K key heads (1 or H), L keys, E hidden units, V value width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.tiled import Arguments
from regard.engines.triton.choices import MOST_EVEN

# Keys of the call on "meta" that launches are made from; any other number of 2 or more makes the same.
NOMINAL_KEYS = 2


class StepSignature(NamedTuple):
    """What steps agree in to share their launches: everything but the number of keys.

    `a_heads` is 1 where all heads share the query, `k_row` the stride of keys, `even` a common divisor of
    all strides of keys and values, `seen_step` the stride of visible keys, None where all are visible.
    """

    batch: int
    heads: int
    a_heads: int
    key_heads: int
    value_heads: int
    units: int
    dims: int
    dtype: torch.dtype
    v_dtype: torch.dtype
    k_row: int
    even: int
    seen_step: int | None
    activation: str
    parameter: float
    device: torch.device


class Stepped(NamedTuple):
    """The results of a step.

    Args:
        context: (B, H V), in the dtype of the values.
        output: the context in fp32, for the backward; None unless it was asked for.
        shown: weights (B, H, L) for the caller, who may change them.
        weights: the same for the state and a backward; those of the caller where there is none.
        total: what was given plus the weights.
    """

    context: Tensor
    output: Tensor | None
    shown: Tensor
    weights: Tensor
    total: Tensor


def step_signature(
    heads: tuple[int, int],
    b: Tensor,
    v: torch.dtype,
    value: Tensor,
    visible: Tensor | None,
    activation: str,
    parameter: float,
) -> StepSignature:
    """The signature of steps over keys b and values, `heads` being those of v and of the query."""
    batch, key_heads, _, units = b.shape
    k_b, k_k, k_row, _ = b.stride()
    _, value_heads, _, dims = value.shape
    value_b, value_k, *_ = value.stride()
    return StepSignature(
        batch,
        *heads,
        key_heads,
        value_heads,
        units,
        dims,
        b.dtype,
        v,
        k_row,
        math.gcd(MOST_EVEN, k_b, k_k, k_row, value_b, value_k, dims),
        None if visible is None else visible.stride(1),
        activation,
        parameter,
        b.device,
    )


def nominal(x: StepSignature) -> Arguments:
    """A step of this signature with tensors on "meta"."""
    groups, group, keys = x.key_heads, x.heads // x.key_heads, NOMINAL_KEYS

    def empty(dtype: torch.dtype, *dims: tuple[int, int]) -> Tensor:
        shape, strides = zip(*dims, strict=True)
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")

    width = x.units if x.a_heads == x.heads else 0  # between heads of the query
    a_row, k_head = x.a_heads * x.units, keys * x.k_row
    batch, wide = x.batch, (x.units, 1)
    q = empty(x.dtype, (batch, a_row), (groups, group * width), (group, width), (1, x.units), wide)
    k = empty(x.dtype, (batch, groups * k_head), (groups, k_head), (1, 0), (keys, x.k_row), wide)
    dense = None
    if x.seen_step is not None:
        ones = [(1, 0)] * 3
        dense = empty(torch.bool, (batch, keys * x.seen_step), *ones, (keys, x.seen_step))
    return Arguments(
        q=q,
        k=k,
        value=torch.empty(batch, 1, 1, keys, x.dims, dtype=x.dtype, device="meta"),
        v=torch.empty(1, groups, group, 1, x.units, dtype=x.v_dtype, device="meta"),
        alpha=None,
        beta=None,
        rate=None,
        bias=None,
        dense=dense,
        start=None,
        stop=None,
        query_segment=None,
        key_segment=None,
        seed=None,
        numbers=torch.tensor([1.0, 0.0, 0.0, x.parameter], dtype=torch.float64, device="cpu"),
        sizes=[batch, groups, group, 1, keys],
        activation=x.activation,
    )


def meta(dtype: torch.dtype) -> Tensor:
    """A tensor that stands for an operand of this dtype in the arguments of a kernel."""
    return torch.empty(1, dtype=dtype, device="meta")
