"""A score as plain JSON, and back: what a saved model's config says about its layers.

Only the scores and stabilisers of this library are rebuilt. Nothing is imported by a name that a
file gives, so that opening a folder runs none of its code.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from regard.describe import describe
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
from regard.stabilize import ClippedKeys, Normalized, SoftCapped, Tempered, UnitKeys


def _additive(score: Additive) -> dict:
    return {
        "hidden": score.hidden,
        "heads": score.heads,
        "bias": score.bias is not None,
        "weight_norm": score.gain is not None,
    }


def _projected(score: Projected) -> dict:
    return {
        "query_dim": score.query_dim,
        "key_dim": score.key_dim,
        "width": score.query_weight.shape[0] // score.heads,
        "heads": score.heads,
        "key_heads": score.key_heads,
        "bias": score.query_bias is not None,
    }


def _normalized(score: Normalized) -> dict:
    query, key = score.query_norm, score.key_norm
    return {
        "dim": [query.normalized_shape[0], key.normalized_shape[0]],
        "norm": "layer" if isinstance(query, nn.LayerNorm) else "rms",
        "eps": query.eps,
    }


def _attributes(*names: str) -> Callable[[Score], dict]:
    return lambda score: {name: getattr(score, name) for name in names}


# The arguments that build each score again; the score inside a wrapper is added by `describe_score`.
ARGUMENTS: dict[type[Score], Callable[..., dict]] = {
    Dot: _attributes(),
    ScaledDot: _attributes(),
    Cosine: _attributes("heads", "scale", "eps"),
    Gaussian: lambda score: {"bandwidth": score.bandwidth, "heads": score.key_heads},
    Bilinear: _attributes("query_dim", "key_dim", "heads"),
    LowRank: _attributes("query_dim", "key_dim", "rank", "heads", "key_heads"),
    Additive: _additive,
    GATv2: lambda score: {**_additive(score), "negative_slope": score.parameter},
    Projected: _projected,
    Tempered: lambda score: {
        "temperature": score.temperature,
        "heads": None if score.log_factor is None else score.log_factor.shape[0],
    },
    Normalized: _normalized,
    UnitKeys: _attributes(),
    ClippedKeys: _attributes("max_norm"),
    SoftCapped: _attributes("cap"),
}
BY_NAME = {score_class.__name__: score_class for score_class in ARGUMENTS}


def describe_score(score: Score) -> dict:
    """What builds the score again, as JSON; of a score that is not ours, its class and name."""
    arguments = ARGUMENTS.get(type(score))
    if arguments is None:
        return {"type": type(score).__name__, "name": score.name, "foreign": True}
    description = {"type": type(score).__name__, "name": score.name, **arguments(score)}
    inside = getattr(score, "score", None)
    if isinstance(inside, Score):
        description["score"] = describe_score(inside)
    return description


def rebuild_score(description: object) -> Score:
    """A fresh score from its description; whatever is wrong with it is a ValueError."""
    if not isinstance(description, dict):
        raise ValueError(f"the config describes a score as {describe(description)}: not a table")
    kind, name = description.get("type"), description.get("name")
    if description.get("foreign"):
        raise ValueError(
            f"the score {kind!r} (named {name!r}) is not one of this library's and cannot be "
            "rebuilt from the config: pass score=, the same that use_score was given"
        )
    score_class = BY_NAME.get(kind) if isinstance(kind, str) else None
    if score_class is None:
        raise ValueError(f"the config names an unknown score {kind!r}; known: {', '.join(BY_NAME)}")
    arguments = {key: x for key, x in description.items() if key not in ("type", "name", "score")}
    if "score" in description:
        arguments["score"] = rebuild_score(description["score"])
    try:
        score = score_class(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the config describes a score {kind!r} that cannot be built: {error}"
        ) from None
    if score.name != name:
        raise ValueError(f"the config calls a score {kind!r} by the name {name!r}: {score.name!r}")
    return score
