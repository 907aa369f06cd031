"""The scores whose costs are compared at a shape, each with its rule of thumb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.choosing.cost.shape import Shape
from regard.choosing.rules import in_short
from regard.scores import (
    Additive,
    Bilinear,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    LowRank,
    Projected,
    ScaledDot,
    Score,
)


@dataclass(frozen=True)
class CostCandidate:
    """A score built for a shape, as one row of the cost comparison.

    Attributes:
        key: its name in `--score` and in the JSON.
        label: its name in the table.
        shape: the shape that it is built for.
        make: builds the score in fp32 on the CPU.
        parameters: number of learned parameters.
        depth: numbers that the textbook formula holds for each query-key pair.
        textbook: plain PyTorch runs it instead of the library.
    """

    key: str
    label: str
    shape: Shape
    make: Callable[[], Score]
    parameters: int
    depth: int = 1
    textbook: bool = False

    @property
    def rule(self) -> str:
        """The rule of thumb for using this score."""
        return in_short(self.key.removeprefix("projected_"))

    @property
    def pairwise(self) -> bool:
        """Whether the score has hidden units for each query-key pair."""
        return self.depth > 1


def plain(shape: Shape) -> list[CostCandidate]:
    """The scores without projections, which need query and key of equal width."""
    s = shape
    return [
        CostCandidate("scaled_dot", "scaled dot", s, ScaledDot, 0),
        CostCandidate("dot", "dot", s, Dot, 0),
        CostCandidate("cosine", "cosine", s, lambda: Cosine(s.heads), s.heads),
        CostCandidate("gaussian", "gaussian", s, lambda: Gaussian(heads=s.key_heads), s.key_heads),
    ]


def projected(inner: CostCandidate) -> CostCandidate:
    """A plain score behind learned projections."""
    s = inner.shape

    def make() -> Score:
        return Projected(
            inner.make(), s.d_q, s.d_k, width=s.width, heads=s.heads, key_heads=s.key_heads
        )

    count = inner.parameters + projections(s, s.width)
    return CostCandidate(f"projected_{inner.key}", f"projected {inner.label}", s, make, count)


def projections(s: Shape, width: int) -> int:
    """Number of parameters that project queries and keys to `width` for each head."""
    return width * (s.heads * s.d_q + s.key_heads * s.d_k)


def learned(shape: Shape) -> list[CostCandidate]:
    """The scores that accept a query and key of any two widths."""
    s = shape

    def additive() -> Score:
        return Projected(Additive(s.hidden, s.heads), s.d_q, s.d_k, key_heads=s.key_heads)

    def gatv2() -> Score:
        return Projected(GATv2(s.hidden, s.heads), s.d_q, s.d_k, key_heads=s.key_heads)

    def low_rank() -> Score:
        return LowRank(s.d_q, s.d_k, s.rank, s.heads, s.key_heads)

    judge = projections(s, s.hidden) + s.heads * s.hidden
    full = s.heads * s.d_q * s.d_k
    return [
        CostCandidate("bilinear", "bilinear", s, lambda: Bilinear(s.d_q, s.d_k, s.heads), full),
        CostCandidate("low_rank", "low-rank bilinear", s, low_rank, projections(s, s.rank)),
        CostCandidate("additive", "additive", s, additive, judge, s.hidden),
        CostCandidate("textbook_additive", "textbook additive", s, additive, judge, s.hidden, True),
        CostCandidate("gatv2", "GATv2", s, gatv2, judge, s.hidden),
    ]


def candidates(shape: Shape) -> list[CostCandidate]:
    """All candidates at a shape.

    Plain scores are included even if the widths differ and they will refuse: the report shows why. In
    that case each also appears behind projections. Otherwise only scaled dot does, to show what
    projections cost.
    """
    bare = plain(shape)
    wrapped = [projected(c) for c in (bare if shape.d_q != shape.d_k else bare[:1])]
    return bare + wrapped + learned(shape)
