"""The two forms that scores are lowered to, so that an engine can run any score.

Inner:     s(q, k) = scale * <phi(q), psi(k)> + alpha(q) + beta(k)
Pairwise:  s(q, k) = sum_h v_h f(a_h(q) + b_h(k))

The query side and the key side are separate values because the key side can be cached: at a
decoder step only the query is new.

Shape legend: `*` leading (batch) dims, H query heads, K key heads (K divides H), Q query length,
L key length, D feature width, E hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.activations import ACTIVATIONS, Activation


class InnerQuery(NamedTuple):
    """The query side of an inner score.

    Args:
        phi: features (*, H, Q, D).
        alpha: a term of the query alone (*, H, Q), or None. The softmax cancels it, so that it changes
            the weights only through a soft cap or a sink; LSE and the largest logit contain it.
        scale: a number that multiplies the inner product; apart from `phi` because SDPA applies it
            for free.
    """

    phi: Tensor
    alpha: Tensor | None = None
    scale: float = 1.0


class InnerKey(NamedTuple):
    """The key side of an inner score. It can be cached, and reordered for beam search.

    Args:
        psi: features (*, K, L, D).
        beta: a term of the key alone (*, K or H, L), or None.
        origin: a point (*, K, 1, D) that was subtracted from the keys to keep precision, and must be
            subtracted from the queries too; None if there is none.
    """

    psi: Tensor
    beta: Tensor | None = None
    origin: Tensor | None = None

    def reorder(self, index: Tensor) -> InnerKey:
        """The same keys with their first (batch) dim reordered, as beam search needs."""
        beta = None if self.beta is None else self.beta.index_select(0, index)
        origin = None if self.origin is None else self.origin.index_select(0, index)
        return InnerKey(self.psi.index_select(0, index), beta, origin)

    def append(self, later: InnerKey) -> InnerKey:
        """These keys followed by `later` ones with the same origin: see `Score.extend`."""
        if (self.beta is None) != (later.beta is None):
            raise ValueError(
                "only one of the two key sides has a beta: lower both with the same score"
            )
        if self.origin is not later.origin:
            raise ValueError(
                "the two key sides have different origins; append keys by score.extend(side, k)"
            )
        beta = None
        if self.beta is not None and later.beta is not None:
            beta = torch.cat([self.beta, later.beta], -1)
        return InnerKey(torch.cat([self.psi, later.psi], -2), beta, self.origin)


class PairwiseQuery(NamedTuple):
    """The query side of a pairwise score: a (*, H, Q, E) and v (H, E)."""

    a: Tensor
    v: Tensor


class PairwiseKey(NamedTuple):
    """The key side of a pairwise score: b (*, K, L, E). It can be cached and reordered."""

    b: Tensor

    def reorder(self, index: Tensor) -> PairwiseKey:
        """The same keys with their first (batch) dim reordered, as beam search needs."""
        return PairwiseKey(self.b.index_select(0, index))

    def append(self, later: PairwiseKey) -> PairwiseKey:
        """These keys followed by `later` ones, as generation with a cache needs."""
        return PairwiseKey(torch.cat([self.b, later.b], -2))


@dataclass(slots=True)
class Inner:
    """`scale * <phi, psi> + alpha + beta`; see `InnerQuery` and `InnerKey` for the shapes."""

    phi: Tensor
    psi: Tensor
    alpha: Tensor | None = None
    beta: Tensor | None = None
    scale: float = 1.0

    @property
    def query(self) -> Tensor:
        """The tensor that carries the query's heads and length."""
        return self.phi

    @property
    def key(self) -> Tensor:
        """The tensor that carries the key's heads and length."""
        return self.psi

    def describe(self) -> str:
        """One line for `explain`."""
        terms = [f"<phi, psi> of width {self.phi.shape[-1]}"]
        terms += ["alpha(q)"] if self.alpha is not None else []
        terms += ["beta(k)"] if self.beta is not None else []
        return "inner: " + " + ".join(terms)


@dataclass(slots=True)
class Pairwise:
    """`sum_h v_h f(a_h + b_h)` with `f` the activation called `activation`.

    `v` is (H, 1, E) so that it broadcasts against `a`. `parameter` is the activation's own number
    (the negative slope of LeakyReLU), 0.0 if it has none. `series` is the kind of sine series that the
    caller named for engine "sine", which then runs; empty if none is named.
    """

    a: Tensor
    b: Tensor
    v: Tensor
    activation: str
    parameter: float = 0.0
    series: str = ""

    @property
    def query(self) -> Tensor:
        """The tensor that carries the query's heads and length."""
        return self.a

    @property
    def key(self) -> Tensor:
        """The tensor that carries the key's heads and length."""
        return self.b

    @property
    def function(self) -> Activation:
        """The activation itself."""
        return ACTIVATIONS[self.activation]

    def over(self, a: Tensor, b: Tensor, v: Tensor) -> Pairwise:
        """The same function of other tensors."""
        return Pairwise(a, b, v, self.activation, self.parameter, self.series)

    def describe(self) -> str:
        """One line for `explain`."""
        return f"pairwise: sum of v * {self.activation}(a + b) over {self.a.shape[-1]} hidden units"


QuerySide = InnerQuery | PairwiseQuery
KeySide = InnerKey | PairwiseKey
Form = Inner | Pairwise


def key_tensor(side: KeySide) -> Tensor:
    """The features of lowered keys, (*, K, L, width), which have their heads and length."""
    return side.psi if isinstance(side, InnerKey) else side.b
