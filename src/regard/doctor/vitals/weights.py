"""Reads the logits of some queries once, and keeps what the vitals need of their weights.

The largest weight of a row is kept apart from the others: in a saturated row the others carry all
the information, and subtracting the largest from a sum would lose them to rounding.

A learned sink is one more outcome. With x the log-sum-exp of the keys minus the sink's logit, the
keys share g = sigmoid(x) of the weight. Everything follows from the weights without the sink: they
are multiplied by g, and the entropy is `g (entropy - log g) - (1 - g) log(1 - g)`.

Shape legend: B batch, H query heads, L keys, R queries, W distances, V value dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from regard.doctor.seen import Seen
from regard.doctor.vitals.heads import compare_heads
from regard.doctor.vitals.logits import HIDDEN, Size, row_logits, shift_at
from regard.doctor.vitals.parts import parts_of
from regard.doctor.vitals.position import near_logits
from regard.engines.base import jacobian_norm

# Heads are compared on at most this many rows: each row costs a correlation over all its keys.
COMPARED = 8


class RowReadings(NamedTuple):
    """What is kept of each query; tensors (B, H, R) unless said otherwise.

    Attributes:
        keys: how many keys it sees.
        sound: whether it sees any, and its largest logit is a number.
        peak: the largest logit.
        top: the largest weight of a key.
        idle: the weight of the sink; 0 without one.
        entropy: in nats, sink included.
        jacobian: Frobenius norm of the softmax's Jacobian.
        near: (B, H, R, 1 + W), the logits of the first key and at some distances.
        output: (B, H, R, V); V is 0 without values.
        moments: (B, H, R, 2), mean and variance of the visible logits; (B, H, R, 0) where the cheap
            level has them.
    """

    keys: Tensor
    sound: Tensor
    peak: Tensor
    top: Tensor
    idle: Tensor
    entropy: Tensor
    jacobian: Tensor
    near: Tensor
    output: Tensor
    moments: Tensor


class Sums(NamedTuple):
    """What is summed over queries.

    Attributes:
        columns: (B, H, L), the weights of the sound rows.
        seen_by: (B, H, L), how many queries see each key.
        likeness: (H, H), correlations of some rows of two heads.
        compared: (H, H), how many rows those are.
    """

    columns: Tensor
    seen_by: Tensor
    likeness: Tensor
    compared: Tensor


class PartReadings(NamedTuple):
    """What is kept of one part of the heads; `some` are weights of every few rows (B, H, S, L)."""

    each: RowReadings
    columns: Tensor
    seen_by: Tensor
    some: Tensor


def read_rows(
    seen: Seen, size: Size, rows: Tensor, compared: int = COMPARED
) -> tuple[RowReadings, Sums]:
    """Read the queries at the places `rows` (R,); heads are compared on at most `compared`."""
    stride = -(-rows.shape[0] // compared)
    parts = [read_part(*part, rows, stride) for part in parts_of(seen, size, rows)]
    each = RowReadings(
        *(beside(fields) for fields in zip(*(part.each for part in parts), strict=True))
    )
    columns, seen_by, some = (
        beside(fields) for fields in zip(*((*part,)[1:] for part in parts), strict=True)
    )
    likeness = compare_heads(some, each.keys[..., ::stride], each.sound[..., ::stride])
    return each, Sums(columns, seen_by, *likeness)


def beside(parts: Sequence[Tensor]) -> Tensor:
    """The heads of several parts in one tensor (B, H, ...)."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


def read_part(seen: Seen, size: Size, rows: Tensor, stride: int) -> PartReadings:
    """Read one part of the heads; of the weights, every `stride`-th row is kept."""
    logits, hidden = row_logits(seen, size, rows)
    near = near_logits(logits, size, rows, seen.causal)
    peak, best = logits.max(-1)
    keys, seen_by = visible_counts(hidden, size, rows, peak)
    sound = peak.isfinite() & (keys > 0)
    below = logits.sub_(peak.unsqueeze(-1))
    weights = below.softmax(-1)
    best = best.unsqueeze(-1)
    top = weights.gather(-1, best).squeeze(-1)
    nothing = peak.new_zeros(*peak.shape, 0)
    moments = nothing if seen.query is not None else visible_moments(below, keys, peak)
    # log p is (logit - peak) + log(top), so the entropy needs no logarithm of a small weight.
    entropy = -top.log() - below.mul_(weights).sum(-1)
    kept, idle, entropy = with_sink(seen.sink, rows, peak - top.log(), entropy)
    columns = (torch.where(sound, kept, 0).unsqueeze(-2) @ weights).squeeze(-2)
    output = nothing if seen.value is None else weighted(weights, seen.value) * kept.unsqueeze(-1)
    some = weights[:, :, ::stride].clone()
    # `jacobian` needs the weights without the largest, and may overwrite them: it is the last
    # reader.
    each = RowReadings(
        keys=keys,
        sound=sound,
        peak=peak,
        top=top * kept,
        idle=idle,
        entropy=entropy,
        jacobian=jacobian(weights.scatter_(-1, best, 0.0), top, kept, idle),
        near=near,
        output=output,
        moments=moments,
    )
    return PartReadings(each, columns, seen_by, some)


def visible_counts(
    hidden: Tensor | None, size: Size, rows: Tensor, like: Tensor
) -> tuple[Tensor, Tensor]:
    """How many keys a query sees, and how many queries see a key: (B, H, R) and (B, H, L)."""
    shape = (size.batch, size.heads)
    if hidden is None:
        keys, seen_by = like.new_full((1,), size.keys), like.new_full((1,), rows.shape[0])
    else:
        hidden = hidden.expand(*hidden.shape[:2], rows.shape[0], size.keys).to(like.dtype)
        keys, seen_by = size.keys - hidden.sum(-1), rows.shape[0] - hidden.sum(-2)
    return keys.expand(*shape, rows.shape[0]), seen_by.expand(*shape, size.keys)


def visible_moments(below: Tensor, keys: Tensor, peak: Tensor) -> Tensor:
    """Mean and variance (B, H, R, 2) of the visible logits; `below` holds them minus `peak`."""
    visible = torch.where(below > HIDDEN / 2, below, 0)
    mean = visible.sum(-1) / keys
    variance = (visible.square().sum(-1) / keys - mean.square()).clamp(min=0)
    return torch.stack([mean + peak, variance], -1)


def weighted(weights: Tensor, value: Tensor) -> Tensor:
    """The attention output (B, H, R, V) of these rows."""
    grouped = weights.unflatten(1, (value.shape[1], -1)).flatten(2, 3)
    return (grouped @ value).view(*weights.shape[:3], value.shape[-1])


def with_sink(
    sink: Tensor | None, rows: Tensor, lse: Tensor, entropy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The weight of all keys, the weight of the sink, and the entropy of both; each (B, H, R)."""
    if sink is None:
        return torch.ones_like(lse), torch.zeros_like(lse), entropy
    over = lse - shift_at(sink, rows)
    kept, idle = over.sigmoid(), (-over).sigmoid()
    entropy = kept * (entropy - logsigmoid(over)) - idle * logsigmoid(-over)
    return kept, idle, entropy


def jacobian(others: Tensor, top: Tensor, kept: Tensor, idle: Tensor) -> Tensor:
    """Norm of the softmax's Jacobian over the keys; overwrites `others`.

    `others` are the weights without the sink and without the largest, which is `top`; `kept` and
    `idle` are the shares of the keys and of the sink.
    """
    rest = others.sum(-1)
    squares = torch.linalg.vector_norm(others, dim=-1).square()
    cubes = others.pow_(3).sum(-1)
    return jacobian_norm(top * kept, idle + kept * rest, squares * kept**2, cubes * kept**3)
