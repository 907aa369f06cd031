"""Estimates of the memory that inputs and candidates need, made before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

from regard.choosing.cost.candidates import CostCandidate
from regard.choosing.cost.shape import Shape
from regard.measuring.memory import show


class Need(NamedTuple):
    """Estimated bytes, and the arithmetic behind them for a message."""

    bytes: int
    arithmetic: str


def inputs_need(shape: Shape) -> Need:
    """Memory of queries, keys, values and their gradients, with the fp32 copies made while drawing."""
    s, item = shape, shape.torch_dtype.itemsize
    floats = s.batch * s.heads * s.len_q * (s.d_q + s.d_v)
    floats += s.batch * s.key_heads * s.len_k * (s.d_k + s.d_v)
    total = floats * (2 * item + 4)
    return Need(total, f"inputs of {floats:,} numbers and their gradients: {show(total)}")


def candidate_need(candidate: CostCandidate, engine: str | None) -> Need:
    """An upper estimate of the memory of a forward and backward pass.

    With an engine of None, not known yet, it is the estimate for the engine that needs least.
    """
    s = candidate.shape
    weights = 3 * 4 * candidate.parameters  # about three fp32 copies of the parameters
    rows = s.batch * (s.heads * s.len_q + s.key_heads * s.len_k)
    wide = max(s.width, s.hidden, s.d_k, s.d_v)
    # Memory that grows with the number of rows, not of pairs: about 8 fp32 tensors as wide as the widest
    # dim, and 64 MiB for workspaces.
    linear = 8 * 4 * rows * wide + weights + 2**26
    if engine not in ("eager", "reference"):
        return Need(linear, f"about {show(linear)} for features and parameters")
    # The reference engine computes in fp32 even for half precision inputs.
    item = s.torch_dtype.itemsize if engine == "eager" else 4
    if not candidate.pairwise:
        total = linear + 6 * item * s.pairs
        return Need(total, f"6 matrices [Q, L] of {s.pairs:,} numbers: {show(total)}")
    one = item * s.pairs * s.hidden
    total = linear + 3 * one
    factors = f"{s.batch} x {s.heads} x {s.len_q} x {s.len_k} x {s.hidden}"
    return Need(
        total,
        f"the tensor [batch, heads, Q, L, hidden] is {factors} x {item} bytes = {show(one)}, and "
        f"the backward pass holds three of them: {show(3 * one)}",
    )
