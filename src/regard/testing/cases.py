"""What the contract is checked on: the tables of scores, sizes and dtypes.

A new score joins the whole suite by one row in `SCORES`: how to build it and the formula it stands
for. Masks and options are in `options`.

Shape legend: B batch, H query heads, Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

import regard
from regard import stabilize
from regard.testing import oracle
from regard.testing.oracle import Formula

Build = Callable[[int, int, int, int], regard.Score]

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


class Sizes(NamedTuple):
    """The shapes of one case.

    `dim` is the width of queries, and of keys unless a score differs. What is shared has a batch
    of 1 and broadcasts.
    """

    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    value_heads: int = 2
    queries: int = 7
    keys: int = 9
    dim: int = 8
    value_dim: int = 5
    shared_queries: bool = False
    shared_keys: bool = False
    shared_values: bool = False


# Blocks of 16 keys are the smallest that a tiled engine uses here, so that lengths around 16 and
# 32 are where the last block is empty, whole or cut.
SIZES = {
    "tiny": Sizes(),
    "one query": Sizes(queries=1),
    "one key": Sizes(keys=1),
    "one head": Sizes(heads=1, key_heads=1, value_heads=1),
    "block - 1": Sizes(heads=2, key_heads=1, value_heads=1, queries=3, keys=15),
    "block": Sizes(heads=2, key_heads=1, value_heads=1, queries=4, keys=16),
    "block + 1": Sizes(heads=2, key_heads=1, value_heads=1, queries=5, keys=17),
    "two blocks + 1": Sizes(heads=2, key_heads=2, value_heads=2, queries=9, keys=33),
    "more queries than keys": Sizes(queries=9, keys=4),
    "shared keys": Sizes(shared_keys=True, shared_values=True, value_heads=4, value_dim=8),
    "shared scores": Sizes(shared_queries=True, shared_keys=True),
    "one key head": Sizes(key_heads=1, value_heads=4, value_dim=11),
    "long": Sizes(1, 2, 1, 1, queries=65, keys=130, dim=16, value_dim=16),
}
TINY = SIZES["tiny"]


@dataclass(frozen=True)
class ScoreRow:
    """A score under contract.

    Args:
        name: what the case is called.
        build: makes the score for (query_dim, key_dim, heads, key_heads).
        formula: `formula(score, q, k)` gives the raw logits (B, H, Q, L) in the dtype of `q` from
            the score's parameters, written as in a textbook and sharing no code with the library.
        form: what the score is lowered to.
        unequal: query dim and key dim differ.
        one_input_head: the score makes its heads itself, from inputs with one.
        softcap: the score brings a soft cap of its own.
        kinked: the score has a kink where a sum of query and key entries is 0. Rounding can
            decide on which side a pair falls, so that inputs are drawn on a grid whose sums keep
            away from 0 and are exact in every dtype.
    """

    name: str
    build: Build
    formula: Formula
    form: Literal["inner", "pairwise"] = "inner"
    unequal: bool = False
    one_input_head: bool = False
    softcap: float | None = None
    kinked: bool = False

    def dims(self, sizes: Sizes) -> tuple[int, int]:
        """Query dim and key dim."""
        return sizes.dim, max(sizes.dim * 3 // 4, 1) if self.unequal else sizes.dim

    def make(self, sizes: Sizes, seed: int = 0) -> regard.Score:
        """The score in fp64, its parameters moved off the special values they start at."""
        state = torch.random.get_rng_state()
        torch.default_generator.manual_seed(seed)
        score = self.build(*self.dims(sizes), sizes.heads, sizes.key_heads).double()
        with torch.no_grad():
            for parameter in score.parameters():
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
                parameter.add_(0.1 * torch.randn_like(parameter))
                if self.kinked:
                    parameter.copy_(on_grid(parameter))
        torch.random.set_rng_state(state)
        return score


def on_grid(x: Tensor, shift: float = 0.0) -> Tensor:
    """The nearest multiples of 1/8, moved by `shift`: exact in bf16 up to 16."""
    return torch.round(x * 8) / 8 + shift


def _half(dim: int) -> int:
    return max(dim // 2, 1)


def _rows() -> list[ScoreRow]:
    return [*_inner_rows(), *_pairwise_rows(), *_projected_rows(), *_stabilised_rows()]


def _inner_rows() -> list[ScoreRow]:
    return [
        ScoreRow("dot", lambda dq, dk, h, kh: regard.Dot(), oracle.dot),
        ScoreRow("scaled_dot", lambda dq, dk, h, kh: regard.ScaledDot(), oracle.scaled_dot),
        ScoreRow("cosine", lambda dq, dk, h, kh: regard.Cosine(heads=h), oracle.cosine),
        ScoreRow("cosine fixed", lambda dq, dk, h, kh: regard.Cosine(heads=None), oracle.cosine),
        ScoreRow("gaussian", lambda dq, dk, h, kh: regard.Gaussian(heads=kh), oracle.gaussian),
        ScoreRow(
            "gaussian fixed",
            lambda dq, dk, h, kh: regard.Gaussian(bandwidth=1.5, heads=None),
            oracle.gaussian,
        ),
        ScoreRow("bilinear", lambda dq, dk, h, kh: regard.Bilinear(dq, dk, h), oracle.bilinear),
        ScoreRow(
            "bilinear unequal",
            lambda dq, dk, h, kh: regard.Bilinear(dq, dk, h),
            oracle.bilinear,
            unequal=True,
        ),
        ScoreRow(
            "low_rank",
            lambda dq, dk, h, kh: regard.LowRank(dq, dk, _half(dq), h, kh),
            oracle.low_rank,
            unequal=True,
        ),
    ]


def _pairwise_rows() -> list[ScoreRow]:
    return [
        ScoreRow(
            "additive", lambda dq, dk, h, kh: regard.Additive(dq, h), oracle.additive, "pairwise"
        ),
        ScoreRow(
            "additive bias norm",
            lambda dq, dk, h, kh: regard.Additive(dq, h, bias=True, weight_norm=True),
            oracle.additive,
            "pairwise",
        ),
        ScoreRow(
            "gatv2",
            lambda dq, dk, h, kh: regard.GATv2(dq, h),
            oracle.gatv2,
            "pairwise",
            kinked=True,
        ),
        ScoreRow(
            "gatv2 bias",
            lambda dq, dk, h, kh: regard.GATv2(dq, h, bias=True, negative_slope=0.1),
            oracle.gatv2,
            "pairwise",
            kinked=True,
        ),
        ScoreRow(
            "gat",
            lambda dq, dk, h, kh: regard.GAT(dq, h),
            oracle.gat,
            "pairwise",
            kinked=True,
        ),
    ]


def _projected_rows() -> list[ScoreRow]:
    return [
        ScoreRow(
            "projected additive",
            lambda dq, dk, h, kh: regard.Projected(
                regard.Additive(_half(dq), h), dq, dk, key_heads=kh, bias=True
            ),
            oracle.projected(oracle.additive),
            "pairwise",
            unequal=True,
            one_input_head=True,
        ),
        ScoreRow(
            "projected scaled_dot",
            lambda dq, dk, h, kh: regard.Projected(
                regard.ScaledDot(), dq, dk, width=_half(dq), heads=h, key_heads=kh
            ),
            oracle.projected(oracle.scaled_dot),
            unequal=True,
            one_input_head=True,
        ),
    ]


def _stabilised_rows() -> list[ScoreRow]:
    return [
        ScoreRow(
            "tempered gaussian",
            lambda dq, dk, h, kh: stabilize.Tempered(regard.Gaussian(heads=kh), 1.5, heads=h),
            oracle.tempered(oracle.gaussian),
        ),
        ScoreRow(
            "tempered additive",
            lambda dq, dk, h, kh: stabilize.Tempered(regard.Additive(dq, h), 1.5),
            oracle.tempered(oracle.additive),
            "pairwise",
        ),
        ScoreRow(
            "layer normalised scaled_dot",
            lambda dq, dk, h, kh: stabilize.Normalized(regard.ScaledDot(), dq, "layer"),
            oracle.layer_normalized(oracle.scaled_dot),
        ),
        ScoreRow(
            "rms normalised bilinear",
            lambda dq, dk, h, kh: stabilize.Normalized(regard.Bilinear(dq, dk, h), (dq, dk)),
            oracle.rms_normalized(oracle.bilinear),
            unequal=True,
        ),
        ScoreRow(
            "unit keys dot",
            lambda dq, dk, h, kh: stabilize.UnitKeys(regard.Dot()),
            oracle.unit_keys(oracle.dot),
        ),
        ScoreRow(
            "clipped keys scaled_dot",
            lambda dq, dk, h, kh: stabilize.ClippedKeys(regard.ScaledDot(), dk**0.5),
            oracle.clipped_keys(oracle.scaled_dot),
        ),
        ScoreRow(
            "soft capped dot",
            lambda dq, dk, h, kh: stabilize.SoftCapped(regard.Dot(), 4.0),
            oracle.inside(oracle.dot),
            softcap=4.0,
        ),
        ScoreRow(
            "soft capped gatv2",
            lambda dq, dk, h, kh: stabilize.SoftCapped(regard.GATv2(dq, h), 1.5),
            oracle.inside(oracle.gatv2),
            "pairwise",
            softcap=1.5,
            kinked=True,
        ),
    ]


SCORES = {row.name: row for row in _rows()}
