"""What every score has in common, and the checks that give a wrong call its one clear error."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.activations import ACTIVATIONS
from regard.describe import describe
from regard.forms import (
    Form,
    Inner,
    InnerKey,
    InnerQuery,
    KeySide,
    Pairwise,
    PairwiseKey,
    PairwiseQuery,
    QuerySide,
)

UNEQUAL_DIMS_HINT = (
    "Scores that take query_dim != key_dim: Bilinear(query_dim, key_dim), "
    "LowRank(query_dim, key_dim, rank), and Projected(score, query_dim, key_dim) around any score, "
    "for example Projected(Additive(16), query_dim={q}, key_dim={k})"
)


NO_FORM = (
    "{0} says nothing of its form: subclass InnerScore or PairwiseScore and give `query` and `key`; "
    "a function of each pair alone could only run by building every pair"
)


class Score(nn.Module):
    """How well a key answers a query.

    Subclass `InnerScore` or `PairwiseScore`; both sides are lowered apart, so that keys can be
    cached.

    Attributes:
        name: what the score is called in messages and files.
        heads: query heads that the parameters are for, None where there are none for each head.
        key_heads: key heads that the parameters are for, None as above.
        query_dim: width of the queries it takes, None for any.
        key_dim: width of the keys it takes, None for any.
        width: how wide projections in front of it must be, None for any; modules ask for it.
        softcap: a soft cap of its own, which `attention` applies, or None.
    """

    name: ClassVar[str]
    heads: int | None = None
    key_heads: int | None = None
    query_dim: int | None = None
    key_dim: int | None = None
    width: int | None = None
    softcap: float | None = None

    @property
    def inner(self) -> Score:
        """The score inside all stabilisers, itself where there are none."""
        return self

    def arguments(self) -> dict[str, object]:
        """What builds this score again, by name; wrappers leave out the score inside."""
        return {}

    @classmethod
    def without_parameters(cls) -> Score | None:
        """What the name stands for in a call; None where the score has parameters to learn."""
        return None

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> Score:
        """What the name stands for in a module: a fresh score for projections of this width."""
        return cls()

    @classmethod
    def how_to_build(cls) -> str:
        """How to write the score out where its name is not enough, for messages."""
        return f"{cls.__name__}(...)"

    def extra_repr(self) -> str:
        """The arguments, for printing."""
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())

    def query(self, q: Tensor) -> QuerySide:
        """Lower the queries (*, H, Q, query dim)."""
        raise NotImplementedError(NO_FORM.format(type(self).__name__))

    def key(self, k: Tensor) -> KeySide:
        """Lower the keys (*, K, L, key dim)."""
        raise NotImplementedError(NO_FORM.format(type(self).__name__))

    def query_at(self, q: Tensor, origin: Tensor) -> QuerySide:
        """Lower queries for keys whose `origin` was subtracted; see `Gaussian`."""
        return self.query(q)

    def query_for(self, q: Tensor, side: KeySide) -> QuerySide:
        """Lower queries to go with keys that were lowered before."""
        origin = side.origin if isinstance(side, InnerKey) else None
        return self.query(q) if origin is None else self.query_at(q, origin)

    def key_at(self, k: Tensor, origin: Tensor | None) -> KeySide:
        """Lower keys about an origin that is given."""
        return self.key(k)

    def extend(self, side: KeySide, k: Tensor) -> KeySide:
        """The lowered keys of `side`, and then `k` lowered as they are: what a cache needs."""
        later = self.key_at(k, side.origin if isinstance(side, InnerKey) else None)
        check_extends(side, later)
        return side.append(later)  # type: ignore[arg-type] # of one type, as just checked

    def join(self, query: QuerySide, key: KeySide) -> Form:
        """Put two lowered sides together."""
        raise NotImplementedError(NO_FORM.format(type(self).__name__))

    def lower(self, q: Tensor, k: Tensor, real: Tensor | None = None) -> Form:
        """Lower both sides and put them together.

        `real` (*, 1, L) says which keys some query may see, None for all: for a score that looks
        at all keys first, as `Gaussian` does.
        """
        return self.join(self.query(q), self.key(k))

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Multiply this score's logits by `factor` (heads,) in place, through its parameters."""
        raise ValueError(
            f"{type(self).__name__} has no parameters that scale its logits; "
            "wrap it, for example Projected(score, query_dim, key_dim)"
        )

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Note the score's name in the metadata, beside the parameters."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["score"] = self.name

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        """Refuse the parameters of another score: their shapes may agree by chance."""
        saved = local_metadata.get("score", self.name)
        if saved != self.name:
            where = f" at {prefix[:-1]!r}" if prefix else ""
            error_msgs.append(
                f"these parameters{where} are of score {saved!r}, but this module has score "
                f"{self.name!r}; build it with the same score"
            )
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Raw logits (*, H, Q, L); the same as `regard.score(q, k, self)`."""
        from regard.attention import score

        return score(q, k, self)


class InnerScore(Score):
    """A score of the form `scale * <phi(q), psi(k)> + alpha(q) + beta(k)`."""

    def query(self, q: Tensor) -> InnerQuery:
        """Lower the queries; the identity unless a subclass says otherwise."""
        return InnerQuery(q)

    def key(self, k: Tensor) -> InnerKey:
        """Lower the keys; the identity unless a subclass says otherwise."""
        return InnerKey(k)

    def join(self, query: QuerySide, key: KeySide) -> Inner:
        """Check that the feature widths agree and put the sides together."""
        check_side(query, InnerQuery, "query", self)
        check_side(key, InnerKey, "key", self)
        assert isinstance(query, InnerQuery) and isinstance(key, InnerKey)
        phi, psi = query.phi, key.psi
        if phi.shape[-1] != psi.shape[-1]:
            q, k = phi.shape[-1], psi.shape[-1]
            raise ValueError(
                f"score {self.name!r} needs query dim == key dim, got query dim {q} and "
                f"key dim {k}. " + UNEQUAL_DIMS_HINT.format(q=q, k=k)
            )
        return Inner(phi, psi, query.alpha, key.beta, query.scale)


class PairwiseScore(Score):
    """A score of the form `sum_h v_h f(a_h(q) + b_h(k))`.

    A subclass names its `activation` (see `regard.activations`) and gives `query` and `key`.
    """

    activation: str
    parameter: float = 0.0
    series: str = "matched"

    @classmethod
    def how_to_build(cls) -> str:
        """With projections in front, or without."""
        own = f"{cls.__name__}(hidden, heads)"
        return (
            f"Projected({own}, query_dim, key_dim), or {own} "
            "where query and key are projected already"
        )

    def bare(self) -> Tensor | None:
        """v, where queries and keys are a and b as they come; None where lowering changes them."""
        return None

    def join(self, query: QuerySide, key: KeySide) -> Pairwise:
        """Check the hidden widths, give `a` the heads of `v`, and put the sides together."""
        check_side(query, PairwiseQuery, "query", self)
        check_side(key, PairwiseKey, "key", self)
        assert isinstance(query, PairwiseQuery) and isinstance(key, PairwiseKey)
        a, b, v = query.a, key.b, query.v
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"{type(self).__name__} names the activation {self.activation!r}, which is not "
                f"registered; make it with Activation(...), or use one of {', '.join(ACTIVATIONS)}"
            )
        if a.shape[-1] != b.shape[-1]:
            raise ValueError(
                f"score {self.name!r} adds a(q) and b(k): their widths must agree, got "
                f"{a.shape[-1]} and {b.shape[-1]}. "
                + UNEQUAL_DIMS_HINT.format(q=a.shape[-1], k=b.shape[-1])
            )
        heads = v.shape[0]
        if heads > 1 and a.shape[-3] == 1:
            a = a.expand(*a.shape[:-3], heads, *a.shape[-2:])
        return Pairwise(a, b, v.unsqueeze(-2), self.activation, self.parameter, self.series)


def check_side(side: object, wanted: type, method: str, score: Score) -> None:
    """Refuse what a score's own `query` or `key` returned, unless it is a lowered side."""
    if not isinstance(side, wanted):
        raise TypeError(
            f"{type(score).__name__}.{method} must return {wanted.__name__}(...), got "
            f"{describe(side)}"
        )


def check_extends(side: KeySide, later: KeySide) -> None:
    """Refuse to append keys to those of another score, or of another layer."""
    if type(later) is not type(side):
        raise TypeError(
            f"the keys so far are of the form {type(side).__name__}, but the new ones are "
            f"{type(later).__name__}: they come from another score"
        )
    own, new = side[0], later[0]
    if own.shape[-3:-2] != new.shape[-3:-2] or own.shape[-1] != new.shape[-1]:
        raise ValueError(
            f"the keys so far were lowered to shape {tuple(own.shape)}, the new ones to "
            f"{tuple(new.shape)}: they differ in heads or width, and come from another layer"
        )


def check_heads(x: Tensor, heads: int, side: str, score: Score) -> None:
    """Refuse `x` unless it has `heads` heads, or one that is shared by all."""
    given = x.shape[-3] if x.ndim >= 3 else 1
    if given != 1 and given != heads:
        raise ValueError(
            f"{type(score).__name__} was built for {heads} {side} head{'s' * (heads != 1)}, got "
            f"{side} of shape {tuple(x.shape)} with {given} heads; build it with heads={given}, or "
            "give the heads it has: shapes are (..., heads, length, dim)"
        )


def check_dim(x: Tensor, dim: int, side: str, score: Score, hint: str = "") -> None:
    """Refuse `x` unless its last dim is `dim`."""
    if x.shape[-1] != dim:
        raise ValueError(
            f"{type(score).__name__} was built for {side} dim {dim}, got {side} of shape "
            f"{tuple(x.shape)} with dim {x.shape[-1]}" + (f"; {hint}" if hint else "")
        )


def is_as_written(module: nn.Module, written: dict[str, object]) -> bool:
    """Whether these methods are those of `written`: neither overridden by a subclass nor patched."""
    kind, own = type(module), module.__dict__
    for name, method in written.items():
        if getattr(kind, name) is not method or name in own:
            return False
    return True


def check_score(score: object) -> None:
    """Refuse what is not a score to wrap."""
    if not isinstance(score, Score):
        raise TypeError(f"score must be a Score object, got {describe(score)}")


def per_head(parameter: Tensor, heads: int, side: str, score: Score) -> Tensor:
    """A (K,) parameter as (heads, 1, 1), each value shared by a group of heads.

    One given head is shared by all K values.
    """
    count = parameter.shape[0]
    if heads == 1 or heads == count:
        return parameter.view(count, 1, 1)
    if heads % count:
        raise ValueError(
            f"{type(score).__name__} was built for {count} heads, which does not divide the "
            f"{heads} {side} heads given"
        )
    return parameter.repeat_interleave(heads // count).view(heads, 1, 1)
