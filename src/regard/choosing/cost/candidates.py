"""The scores that are compared at a shape, each with its rule of thumb."""

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
class Candidate:
    """One row of the comparison.

    Attributes:
        key: its name in `--score` and in the JSON.
        label: its name in the table.
        shape: the shape that it is built for.
        make: builds the score in fp32 on the CPU.
        parameters: how many numbers it learns.
        depth: floats that the textbook's formula holds for each pair.
        textbook: whether plain PyTorch runs it and not the library.
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
        """When it is the right one."""
        return in_short(self.key.removeprefix("projected_"))

    @property
    def pairwise(self) -> bool:
        """Whether it looks at each pair through hidden units."""
        return self.depth > 1


def plain(shape: Shape) -> list[Candidate]:
    """The scores that compare query and key as they come: their widths must agree."""
    s = shape
    return [
        Candidate("scaled_dot", "scaled dot", s, ScaledDot, 0),
        Candidate("dot", "dot", s, Dot, 0),
        Candidate("cosine", "cosine", s, lambda: Cosine(s.heads), s.heads),
        Candidate("gaussian", "gaussian", s, lambda: Gaussian(heads=s.key_heads), s.key_heads),
    ]


def projected(inner: Candidate) -> Candidate:
    """A plain score behind learned projections."""
    s = inner.shape

    def make() -> Score:
        return Projected(
            inner.make(), s.d_q, s.d_k, width=s.width, heads=s.heads, key_heads=s.key_heads
        )

    count = inner.parameters + projections(s, s.width)
    return Candidate(f"projected_{inner.key}", f"projected {inner.label}", s, make, count)


def projections(s: Shape, width: int) -> int:
    """Parameters of a projection of queries and keys to `width` for each head."""
    return width * (s.heads * s.d_q + s.key_heads * s.d_k)


def learned(shape: Shape) -> list[Candidate]:
    """The scores that take any two widths by themselves."""
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
        Candidate("bilinear", "bilinear", s, lambda: Bilinear(s.d_q, s.d_k, s.heads), full),
        Candidate("low_rank", "low-rank bilinear", s, low_rank, projections(s, s.rank)),
        Candidate("additive", "additive", s, additive, judge, s.hidden),
        Candidate("textbook_additive", "textbook additive", s, additive, judge, s.hidden, True),
        Candidate("gatv2", "GATv2", s, gatv2, judge, s.hidden),
    ]


def candidates(shape: Shape) -> list[Candidate]:
    """All of them. Plain scores that will refuse are there too, to say why.

    Where the plain scores refuse, each stands behind projections as well. Where they do not, one
    does, scaled dot, to show what projections cost.
    """
    bare = plain(shape)
    wrapped = [projected(c) for c in (bare if shape.d_q != shape.d_k else bare[:1])]
    return bare + wrapped + learned(shape)
