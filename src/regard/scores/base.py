"""`Score`, `InnerScore` and `PairwiseScore`, the base classes of every score, and the checks they share."""

from __future__ import annotations

from typing import ClassVar, NoReturn

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
    "{0} has no form: subclass InnerScore or PairwiseScore and define `query` and `key`; engines "
    "run these two forms, since any other function of a pair would have to be computed pair by pair"
)


class Score(nn.Module):
    """A function of a query and a key whose value, the logit, says how well they match.

    Subclass `InnerScore` or `PairwiseScore`. Queries and keys are lowered separately, so that lowered
    keys can be cached.

    Attributes:
        name: of the score, in messages, files and as a string in calls.
        heads: number of query heads that have parameters of their own; None if heads share them all.
        key_heads: the same for key heads.
        query_dim: width of the queries it takes, None for any.
        key_dim: width of the keys it takes, None for any.
        width: width of the projections that a module puts in front of it, None for any.
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
        """The score inside all stabilisers; itself if it is not a stabiliser."""
        return self

    def arguments(self) -> dict[str, object]:
        """The keyword arguments that build this score again; wrappers leave out the score inside."""
        return {}

    @classmethod
    def without_parameters(cls) -> Score | None:
        """The score that its name stands for in a call; None if the score needs parameters."""
        return None

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> Score:
        """The score that its name stands for in a module, built for projections of this width."""
        return cls()

    @classmethod
    def how_to_build(cls) -> str:
        """The code that builds the score, for messages that say that its name is not enough."""
        return f"{cls.__name__}(...)"

    def extra_repr(self) -> str:
        """The arguments, as `print` shows them."""
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())

    def query(self, q: Tensor) -> QuerySide:
        """The lowered queries; q is (*, H, Q, query dim)."""
        raise NotImplementedError(NO_FORM.format(type(self).__name__))

    def key(self, k: Tensor) -> KeySide:
        """The lowered keys; k is (*, K, L, key dim)."""
        raise NotImplementedError(NO_FORM.format(type(self).__name__))

    def query_at(self, q: Tensor, origin: Tensor) -> QuerySide:
        """The lowered queries for keys from which `origin` was subtracted; see `Gaussian`."""
        return self.query(q)

    def query_for(self, q: Tensor, side: KeySide) -> QuerySide:
        """The lowered queries to go with keys that were lowered before."""
        origin = side.origin if isinstance(side, InnerKey) else None
        return self.query(q) if origin is None else self.query_at(q, origin)

    def key_at(self, k: Tensor, origin: Tensor | None) -> KeySide:
        """The lowered keys with a given origin subtracted, for scores that use one."""
        return self.key(k)

    def extend(self, side: KeySide, k: Tensor) -> KeySide:
        """The lowered keys of `side` followed by `k`, lowered with the same origin: for caches."""
        later = self.key_at(k, side.origin if isinstance(side, InnerKey) else None)
        check_extends(side, later)
        return side.append(later)  # type: ignore[arg-type] # of one type, as just checked

    def join(self, query: QuerySide, key: KeySide) -> Form:
        """The form of two lowered sides."""
        raise NotImplementedError(NO_FORM.format(type(self).__name__))

    def lower(self, q: Tensor, k: Tensor, real: Tensor | None = None) -> Form:
        """The form of queries and keys.

        `real` (*, heads or 1, L) says which keys some query may see, None for all. It is for scores that
        compute something from all keys, such as the origin of `Gaussian`.
        """
        return self.join(self.query(q), self.key(k))

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Multiply this score's logits by `factor` (heads,) in place, through its parameters."""
        raise ValueError(
            f"{type(self).__name__} has no parameters that scale its logits; "
            "wrap it, for example Projected(score, query_dim, key_dim)"
        )

    def __prepare_scriptable__(self) -> NoReturn:
        """Raises: torch.jit.script calls this for every module, and cannot compile what scores do."""
        raise RuntimeError(
            f"TorchScript cannot compile regard's modules (score {self.name!r}): use "
            "torch.compile(model) to speed up a model, or torch.export.export(model, inputs) to save a "
            "program"
        )

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Save the score's name in the metadata, beside the parameters."""
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
        """The lowered queries: the queries themselves, unless a subclass overrides it."""
        return InnerQuery(q)

    def key(self, k: Tensor) -> InnerKey:
        """The lowered keys: the keys themselves, unless a subclass overrides it."""
        return InnerKey(k)

    def join(self, query: QuerySide, key: KeySide) -> Inner:
        """The form of both sides, or an error if their feature widths differ."""
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

    A subclass names its `activation` (see `regard.activations`) and defines `query` and `key`.
    """

    activation: str
    parameter: float = 0.0
    series: str = ""

    @classmethod
    def how_to_build(cls) -> str:
        """The code that builds the score, with projections in front and without."""
        own = f"{cls.__name__}(hidden, heads)"
        return (
            f"Projected({own}, query_dim, key_dim), or {own} "
            "where query and key are projected already"
        )

    def bare(self) -> Tensor | None:
        """v, if lowering leaves queries and keys as they are (a = q, b = k); else None.

        Calls of such scores qualify for the short way in `regard.repeats`.
        """
        return None

    def join(self, query: QuerySide, key: KeySide) -> Pairwise:
        """The form of both sides, with the heads of `v`, or an error if their widths differ."""
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
        # One query head that all heads share becomes a view with as many heads as v, without a copy.
        heads = v.shape[0]
        if heads > 1 and a.shape[-3] == 1:
            a = a.expand(*a.shape[:-3], heads, *a.shape[-2:])
        return Pairwise(a, b, v.unsqueeze(-2), self.activation, self.parameter, self.series)


def check_side(side: object, wanted: type, method: str, score: Score) -> None:
    """Refuse a value that a score's `query` or `key` returned, unless it is of the type `wanted`."""
    if not isinstance(side, wanted):
        raise TypeError(
            f"{type(score).__name__}.{method} must return {wanted.__name__}(...), got "
            f"{describe(side)}"
        )


def check_extends(side: KeySide, later: KeySide) -> None:
    """Refuse to append keys to those of another score, or of another layer."""
    if type(later) is not type(side):
        raise TypeError(
            f"the keys so far are of type {type(side).__name__}, but the new ones are of type "
            f"{type(later).__name__}; lower both with the same score"
        )
    own, new = side[0], later[0]
    if own.shape[-3:-2] != new.shape[-3:-2] or own.shape[-1] != new.shape[-1]:
        raise ValueError(
            f"the keys so far were lowered to shape {tuple(own.shape)}, the new ones to "
            f"{tuple(new.shape)}: they differ in heads or width; lower both with the same layer's score"
        )


def check_heads(x: Tensor, heads: int, side: str, score: Score) -> None:
    """Refuse `x` unless it has `heads` heads, or one head that all share."""
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
    """Whether the module's methods are those in `written`, not overridden by a subclass or patched."""
    kind, own = type(module), module.__dict__
    for name, method in written.items():
        if getattr(kind, name) is not method or name in own:
            return False
    return True


def check_score(score: object) -> None:
    """Refuse to wrap an object that is not a `Score`."""
    if not isinstance(score, Score):
        raise TypeError(f"score must be a Score object, got {describe(score)}")


def per_head(parameter: Tensor, heads: int, side: str, score: Score) -> Tensor:
    """A parameter (K,) as (heads, 1, 1): each value serves a group of heads.

    With heads == 1 it is (K, 1, 1): the one head broadcasts to all K values.
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
