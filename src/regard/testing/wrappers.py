"""Wrapped scores under contract: the formulas of projections and stabilisers, then their rows.

A formula here takes the formula of the score inside. Importing this module completes `SCORES`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import regard
from regard import stabilize
from regard.testing.cases import Formula
from regard.testing.oracle import for_heads
from regard.testing.scores import (
    SCORES,
    add,
    additive,
    bilinear,
    dot,
    gatv2,
    gaussian,
    half,
    scaled_dot,
)

__all__ = ["SCORES"]


def projected(formula: Formula) -> Formula:
    """A score on `W_q q` and `W_k k`."""

    def both(score: Any, q: Tensor, k: Tensor) -> Tensor:
        return formula(
            score.score,
            _project(q, score.query_weight, score.query_bias, score.heads),
            _project(k, score.key_weight, score.key_bias, score.key_heads),
        )

    return both


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    y = x @ weight.unflatten(0, (heads, -1)).mT
    return y if bias is None else y + bias.unflatten(0, (heads, 1, -1))


def tempered(formula: Formula) -> Formula:
    """A score divided by a temperature."""

    def cooler(score: Any, q: Tensor, k: Tensor) -> Tensor:
        t = score.temperature
        if score.log_factor is not None:
            t = t * for_heads(score.log_factor, q.shape[-3]).exp()
        return formula(score.score, q, k) / t

    return cooler


def rms_normalized(formula: Formula) -> Formula:
    """A score of queries and keys divided by their root mean square, times learned gains."""

    def norm(x: Tensor, part: Any) -> Tensor:
        return part.weight * x / (x.square().mean(-1, keepdim=True) + part.eps).sqrt()

    return lambda s, q, k: formula(s.score, norm(q, s.query_norm), norm(k, s.key_norm))


def layer_normalized(formula: Formula) -> Formula:
    """A score of queries and keys less their mean, divided by their deviation, times learned gains."""

    def norm(x: Tensor, part: Any) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        spread = (centered.square().mean(-1, keepdim=True) + part.eps).sqrt()
        return part.weight * centered / spread + part.bias

    return lambda s, q, k: formula(s.score, norm(q, s.query_norm), norm(k, s.key_norm))


def unit_keys(formula: Formula) -> Formula:
    """A score of keys of norm 1."""
    return lambda s, q, k: formula(s.score, q, k / k.norm(dim=-1, keepdim=True))


def clipped_keys(formula: Formula) -> Formula:
    """A score of keys no longer than a limit."""

    def clip(score: Any, q: Tensor, k: Tensor) -> Tensor:
        factor = (score.max_norm / k.norm(dim=-1, keepdim=True)).clamp(max=1)
        return formula(score.score, q, k * factor)

    return clip


def inside(formula: Formula) -> Formula:
    """The score inside a wrapper that does not change raw logits, such as a soft cap."""
    return lambda s, q, k: formula(s.score, q, k)


add(
    "projected additive",
    lambda dq, dk, h, kh: regard.Projected(
        regard.Additive(half(dq), h), dq, dk, key_heads=kh, bias=True
    ),
    projected(additive),
    "pairwise",
    unequal=True,
    one_input_head=True,
)
add(
    "projected scaled_dot",
    lambda dq, dk, h, kh: regard.Projected(
        regard.ScaledDot(), dq, dk, width=half(dq), heads=h, key_heads=kh
    ),
    projected(scaled_dot),
    unequal=True,
    one_input_head=True,
)
add(
    "tempered gaussian",
    lambda dq, dk, h, kh: stabilize.Tempered(regard.Gaussian(heads=kh), 1.5, heads=h),
    tempered(gaussian),
)
add(
    "tempered additive",
    lambda dq, dk, h, kh: stabilize.Tempered(regard.Additive(dq, h), 1.5),
    tempered(additive),
    "pairwise",
)
add(
    "layer normalised scaled_dot",
    lambda dq, dk, h, kh: stabilize.Normalized(regard.ScaledDot(), dq, "layer"),
    layer_normalized(scaled_dot),
)
add(
    "rms normalised bilinear",
    lambda dq, dk, h, kh: stabilize.Normalized(regard.Bilinear(dq, dk, h), (dq, dk)),
    rms_normalized(bilinear),
    unequal=True,
)
add(
    "unit keys dot",
    lambda dq, dk, h, kh: stabilize.UnitKeys(regard.Dot()),
    unit_keys(dot),
)
add(
    "clipped keys scaled_dot",
    lambda dq, dk, h, kh: stabilize.ClippedKeys(regard.ScaledDot(), dk**0.5),
    clipped_keys(scaled_dot),
)
add(
    "soft capped dot",
    lambda dq, dk, h, kh: stabilize.SoftCapped(regard.Dot(), 4.0),
    inside(dot),
    softcap=4.0,
)
add(
    "soft capped gatv2",
    lambda dq, dk, h, kh: stabilize.SoftCapped(regard.GATv2(dq, h), 1.5),
    inside(gatv2),
    "pairwise",
    softcap=1.5,
    kinked=True,
)
