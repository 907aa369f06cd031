"""`check_score_fits`: refuse, when a module is built, a score that does not take its heads."""

from __future__ import annotations

import inspect

import torch

from regard.scores import Gaussian, Projected, Score


@torch.no_grad()
def check_score_fits(score: Score, query: tuple[int, int], key: tuple[int, int]) -> None:
    """Refuse a score that does not take queries and keys of these (heads, width).

    The score is run on zeros: any score, a user's own too, then refuses with its own error.
    """
    like = next(score.parameters(), torch.empty(0))
    q, k = (like.new_zeros(1, heads, 1, width) for heads, width in (query, key))
    try:
        made = score.lower(q, k).query.shape[-3]
        reason = None if made == query[0] else f"it makes {made} heads"
    except (ValueError, RuntimeError) as error:
        reason = str(error)
    if reason is not None:
        raise ValueError(
            f"score does not fit {query[0]} query heads of width {query[1]} and {key[0]} key heads "
            f"of width {key[1]}: {reason}{_fix(score, query, key)}"
        )


def _fix(score: Score, query: tuple[int, int], key: tuple[int, int]) -> str:
    """How to build the same score so that it fits; "" if its arguments do not decide it."""
    sizes: dict[str, object] = {
        "heads": query[0],
        "key_heads": key[0],
        "hidden": query[1],
        "query_dim": query[1],
        "key_dim": key[1],
        "dim": query[1] if query[1] == key[1] else (query[1], key[1]),
    }
    fitting = _written(score, sizes)
    return "" if fitting == _written(score, {}) else f"; build {fitting}"


def _written(score: Score, sizes: dict[str, object]) -> str:
    """The Python call that builds the score with these sizes; defaults are left out."""
    if isinstance(score, Gaussian):
        sizes = {"heads": sizes.get("key_heads", score.key_heads)}
    known = inspect.signature(type(score)).parameters
    parts = []
    if isinstance(inside := getattr(score, "score", None), Score):
        # Projections bring any width to that of the score inside.
        kept = ("heads", "key_heads") if isinstance(score, Projected) else tuple(sizes)
        parts.append(_written(inside, {name: sizes[name] for name in kept if name in sizes}))
    for name, own in score.arguments().items():
        value = own if own is None else sizes.get(name, own)
        if name not in known or value != known[name].default:
            parts.append(f"{name}={value!r}")
    return f"{type(score).__name__}({', '.join(parts)})"
