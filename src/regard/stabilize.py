"""Stabilisers: wrappers that keep the logits of any score in bounds, and QK-clip.

Each wrapper takes a score and is a score, so they compose:
`SoftCapped(Normalized(ScaledDot(), dim=64), 30.0)`.

| stabiliser | acts on | keeps |
|---|---|---|
| `Tempered` | the score | its sharpness, fixed or learned for each head |
| `Normalized` | query and key | the variance of every vector |
| `UnitKeys` | key | every key at norm 1, so that no key dominates by its length |
| `ClippedKeys` | key | key norms below a limit; shorter keys as they are |
| `SoftCapped` | the logit | |logit| below a cap, smoothly |
| `qk_clip_` | the weights, after an optimiser step | the largest logit below a threshold |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from regard.arguments import check_given_sizes, check_positive, check_sizes
from regard.forms import Form, InnerKey, InnerQuery, KeySide, Pairwise, PairwiseQuery, QuerySide
from regard.norms import make_norm, normalize
from regard.precision import widened
from regard.scores.base import Score, check_score
from regard.scores.cosine import unit


class Stabilized(Score):
    """A score that changes queries and keys before another score sees them.

    Subclasses override `change_query` and `change_key`.
    """

    def __init__(self, score: Score) -> None:
        super().__init__()
        check_score(score)
        self.score = score

    @property
    def name(self) -> str:  # type: ignore[override] # it depends on the score inside
        """The name of the score inside."""
        return self.score.name

    @property
    def heads(self) -> int | None:  # type: ignore[override] # it depends on the score inside
        """The heads of the score inside."""
        return self.score.heads

    @property
    def softcap(self) -> float | None:  # type: ignore[override] # it depends on the score inside
        """The soft cap of the score inside."""
        return self.score.softcap

    @property
    def width(self) -> int | None:  # type: ignore[override] # it depends on the score inside
        """The width of the score inside."""
        return self.score.width

    @property
    def key_heads(self) -> int | None:  # type: ignore[override] # it depends on the score inside
        """The key heads of the score inside."""
        return self.score.key_heads

    @property
    def query_dim(self) -> int | None:  # type: ignore[override] # it depends on the score inside
        """The query dim of the score inside."""
        return self.score.query_dim

    @property
    def key_dim(self) -> int | None:  # type: ignore[override] # it depends on the score inside
        """The key dim of the score inside."""
        return self.score.key_dim

    @property
    def inner(self) -> Score:
        """The score inside all stabilisers."""
        return self.score.inner

    def change_query(self, q: Tensor) -> Tensor:
        """The query that the score inside sees."""
        return q

    def change_key(self, k: Tensor) -> Tensor:
        """The key that the score inside sees."""
        return k

    def query(self, q: Tensor) -> QuerySide:
        """Change, then lower by the score inside."""
        return self.score.query(self.change_query(q))

    def key(self, k: Tensor) -> KeySide:
        """Change, then lower by the score inside."""
        return self.score.key(self.change_key(k))

    def query_at(self, q: Tensor, origin: Tensor) -> QuerySide:
        """Change, then lower by the score inside."""
        return self.score.query_at(self.change_query(q), origin)

    def key_at(self, k: Tensor, origin: Tensor | None) -> KeySide:
        """Change, then lower by the score inside."""
        return self.score.key_at(self.change_key(k), origin)

    def join(self, query: QuerySide, key: KeySide) -> Form:
        """As the score inside."""
        return self.score.join(query, key)

    def lower(self, q: Tensor, k: Tensor, real: Tensor | None = None) -> Form:
        """Change, then lower by the score inside."""
        return self.score.lower(self.change_query(q), self.change_key(k), real)

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """As the score inside."""
        self.score.rescale_(factor)


class Tempered(Stabilized):
    """A score divided by a temperature, fixed or learned.

    Formula: `s(q, k) / t_h`

    Args:
        score: any score.
        temperature: t, or where it starts.
        heads: number of query heads. Each then learns a temperature `t * exp(log_factor)`, which
            stays positive. None keeps the temperature fixed.
    """

    def __init__(self, score: Score, temperature: float = 1.0, heads: int | None = None) -> None:
        super().__init__(score)
        check_positive(temperature=temperature)
        self.temperature = temperature
        self.log_factor = None
        if heads is not None:
            check_sizes(heads=heads)
            if score.heads not in (None, 1, heads):
                raise ValueError(
                    f"heads={heads}, but {type(score).__name__} has {score.heads} heads"
                )
            self.log_factor = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the temperature back to its initial value."""
        if self.log_factor is not None:
            nn.init.zeros_(self.log_factor)

    def arguments(self) -> dict[str, object]:
        """The temperature, and heads if it is learned."""
        heads = None if self.log_factor is None else self.log_factor.shape[0]
        return {"temperature": self.temperature, "heads": heads}

    def query(self, q: Tensor) -> QuerySide:
        """The lowered query, divided by the temperature."""
        return self.cool_query(self.score.query(q))

    def key(self, k: Tensor) -> KeySide:
        """The lowered key; its own term is divided by the temperature."""
        return self.cool_key(self.score.key(k))

    def query_at(self, q: Tensor, origin: Tensor) -> QuerySide:
        """The lowered query, divided by the temperature."""
        return self.cool_query(self.score.query_at(q, origin))

    def key_at(self, k: Tensor, origin: Tensor | None) -> KeySide:
        """The lowered key; its own term is divided by the temperature."""
        return self.cool_key(self.score.key_at(k, origin))

    def lower(self, q: Tensor, k: Tensor, real: Tensor | None = None) -> Form:
        """Lower by the score inside, then divide."""
        form = self.score.lower(q, k, real)
        if isinstance(form, Pairwise):
            return replace(form, v=self.cool(form.v, -3))
        side = self.cool_query(InnerQuery(form.phi, form.alpha, form.scale))
        return self.score.join(side, self.cool_key(InnerKey(form.psi, form.beta)))

    def cool_query(self, side: QuerySide) -> QuerySide:
        """A lowered query side, divided by the temperature."""
        if isinstance(side, PairwiseQuery):
            return PairwiseQuery(side.a, self.cool(side.v, -2))
        alpha = None if side.alpha is None else self.cool(side.alpha, -2)
        # A fixed temperature goes into the scale, which costs nothing; a learned one differs by head.
        if self.log_factor is None:
            return InnerQuery(side.phi, alpha, side.scale / self.temperature)
        return InnerQuery(self.cool(side.phi, -3), alpha, side.scale)

    def cool_key(self, side: KeySide) -> KeySide:
        """A lowered key side, its own term divided by the temperature.

        With a temperature for each query head, that term gets the query heads.
        """
        if not isinstance(side, InnerKey) or side.beta is None:
            return side
        return InnerKey(side.psi, self.cool(side.beta, -2), side.origin)

    def cool(self, x: Tensor, head_dim: int) -> Tensor:
        """A tensor divided by the temperature of its heads."""
        if self.log_factor is None:
            return x / self.temperature
        rate = torch.exp(-self.log_factor).to(x.dtype) / self.temperature
        # Grouped heads: repeat each so that every query head gets its own temperature.
        if x.shape[head_dim] != 1 and x.shape[head_dim] != rate.shape[0]:
            x = x.repeat_interleave(rate.shape[0] // x.shape[head_dim], head_dim)
        return x * rate.view(-1, *[1] * (-1 - head_dim))

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Divide the learned temperatures by `factor`; a fixed one leaves it to the score inside."""
        if self.log_factor is not None:
            self.log_factor.sub_(factor.log())
        else:
            self.score.rescale_(factor)


class Normalized(Stabilized):
    """LayerNorm or RMSNorm with learned gains on queries and keys (QK-norm).

    Args:
        score: any score.
        dim: the width of queries and keys, or a pair (query dim, key dim).
        norm: "layer" or "rms".
        eps: added to the variance; default 1e-5 for "layer" and 1e-6 for "rms".
    """

    def __init__(
        self,
        score: Score,
        dim: int | tuple[int, int],
        norm: Literal["layer", "rms"] = "rms",
        eps: float | None = None,
    ) -> None:
        super().__init__(score)
        dims = dim if isinstance(dim, (tuple, list)) else (dim, dim)
        if len(dims) != 2:
            raise ValueError(f"dim must be an integer or a pair (query dim, key dim), got {dim!r}")
        query_dim, key_dim = dims
        check_given_sizes(query_dim=query_dim, key_dim=key_dim)
        self.query_norm = make_norm(norm, query_dim, eps)
        self.key_norm = make_norm(norm, key_dim, eps)
        self.norm, self.eps = norm, eps

    def arguments(self) -> dict[str, object]:
        """Both dims, the kind of norm and eps."""
        dims = (self.query_norm.normalized_shape[0], self.key_norm.normalized_shape[0])
        return {"dim": dims, "norm": self.norm, "eps": self.eps}

    def change_query(self, q: Tensor) -> Tensor:
        """The normalised query."""
        _check_width(q, self.query_norm.normalized_shape[0], "query", self)
        return normalize(self.query_norm, q)

    def change_key(self, k: Tensor) -> Tensor:
        """The normalised key."""
        _check_width(k, self.key_norm.normalized_shape[0], "key", self)
        return normalize(self.key_norm, k)


class UnitKeys(Stabilized):
    """A score of keys of norm 1 and unchanged queries: the query's norm alone sets the sharpness."""

    def change_key(self, k: Tensor) -> Tensor:
        """The unit key."""
        return unit(k)


class ClippedKeys(Stabilized):
    """A score of keys that are shortened to norm `max_norm`; shorter keys stay as they are."""

    def __init__(self, score: Score, max_norm: float) -> None:
        super().__init__(score)
        check_positive(max_norm=max_norm)
        self.max_norm = max_norm

    def arguments(self) -> dict[str, object]:
        """The largest norm."""
        return {"max_norm": self.max_norm}

    def change_key(self, k: Tensor) -> Tensor:
        """The key, shortened where it is too long."""
        work = widened(k)
        # Divided by the largest entry first, so that squares do not overflow.
        peak = work.detach().abs().amax(-1, keepdim=True).clamp(min=1) if k.shape[-1] else 1.0
        norm = peak * torch.linalg.vector_norm(work / peak, dim=-1, keepdim=True)
        short = norm <= self.max_norm
        # The inner `where` keeps a norm of 0 out of the division: its gradient would be NaN.
        factor = torch.where(short, 1.0, self.max_norm / torch.where(short, 1.0, norm))
        return (work * factor).to(k.dtype)


class SoftCapped(Stabilized):
    """A score whose logits are bounded to `cap * tanh(s / cap)`.

    The same as `softcap=` of `attention`, carried by the score.
    """

    def __init__(self, score: Score, cap: float) -> None:
        super().__init__(score)
        check_positive(cap=cap)
        if score.softcap is not None:
            raise ValueError(
                f"cap={cap}, but the score already has a soft cap of {score.softcap}; use one of them"
            )
        self.cap = cap

    def arguments(self) -> dict[str, object]:
        """The cap."""
        return {"cap": self.cap}

    @property
    def softcap(self) -> float | None:  # type: ignore[override] # read by `attention`
        """The cap, which `attention` applies."""
        return self.cap


@torch.no_grad()
def qk_clip_(score: Score, max_logit: Tensor, threshold: float = 100.0) -> Tensor:
    """Shrink, after an optimiser step, the weights of heads whose largest logit passed `threshold`.

    ```python
    seen = attend(q, k, v, score, want={"max_logit"})
    loss.backward(); optimizer.step()
    qk_clip_(score, seen.max_logit)
    ```

    Args:
        score: a score whose parameters scale its logits, such as `Projected(ScaledDot(), ...)`,
            where both projections of the head shrink by the square root of the factor.
        max_logit: (..., heads, queries) as `attend` returns it; the largest for each head counts.
        threshold: the largest logit that is left alone.

    Returns:
        The factor (heads,) that was applied: 1 where a head was left alone.
    """
    check_positive(threshold=threshold)
    if max_logit.ndim < 2:
        raise ValueError(f"max_logit must be (..., heads, queries), got {tuple(max_logit.shape)}")
    dims = [i for i in range(max_logit.ndim) if i != max_logit.ndim - 2]
    largest = max_logit.amax(dims).clamp(min=torch.finfo(max_logit.dtype).tiny)
    factor = (threshold / largest).clamp(max=1.0)
    if not bool(largest.isfinite().all()):
        raise ValueError(
            "max_logit holds NaN or inf: the logits have overflowed already, and no factor can repair "
            "the weights; go back to an earlier checkpoint"
        )
    score.rescale_(factor.to(_parameter_dtype(score.parameters(), factor.dtype)))
    return factor


def _parameter_dtype(parameters: Iterable[Tensor], default: torch.dtype) -> torch.dtype:
    return next((p.dtype for p in parameters), default)


def _check_width(x: Tensor, width: int, side: str, score: Score) -> None:
    if x.shape[-1] != width:
        raise ValueError(
            f"{type(score).__name__} was built for {side} dim {width}, got {side} of shape "
            f"{tuple(x.shape)}"
        )
