"""Checks of the arguments and the saved parameters of `MultiheadAttention`, one error each."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from regard.arguments import autocast_enabled
from regard.describe import describe
from regard.nn.multihead.errors import WrongType, WrongValue
from regard.nn.multihead.layout import (
    BATCH_FIRST,
    LENGTH_FIRST,
    NO_BATCH,
    MultiheadSizes,
    batch_and_length,
)
from regard.scores import Projected, Score

if TYPE_CHECKING:
    from regard.nn.multihead.module import MultiheadAttention

# A parameter that identifies scores, for files without metadata (safetensors keeps none).
TOLD_BY: dict[str, tuple[str, ...]] = {
    "query_factor": ("'low_rank'",),
    "query_vector": ("'gat'",),
    "v": ("'additive'", "'gatv2'"),
    "weight": ("'bilinear'",),
    "gain": ("'cosine'",),
    "log_factor": ("'gaussian'", "of a learned temperature"),
}


def feature_widths(score: Score, width: int | None, head_dim: int) -> tuple[int, int]:
    """The widths of projected queries and keys that the score takes."""
    inner = score.inner
    if isinstance(inner, Projected):
        raise ValueError(
            "score=Projected(...) would project twice: the projections of MultiheadAttention are "
            f"the score's own. Give the score inside, score={type(inner.score).__name__}(...)"
        )
    query, key = inner.query_dim or inner.width, inner.key_dim or inner.width
    if query is None or key is None:
        return width or head_dim, width or head_dim
    if width is not None and not query == key == width:
        raise ValueError(
            f"width={width}, but {type(inner).__name__} takes queries of width {query} and keys of "
            f"width {key}"
        )
    return query, key


def check_inputs(
    module: MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, batch_first: bool
) -> MultiheadSizes:
    """The sizes and the layout of the call, or an error."""
    given = [
        ("query", query, module.qdim),
        ("key", key, module.kdim),
        ("value", value, module.vdim),
    ]
    layout = BATCH_FIRST if batch_first else LENGTH_FIRST
    for name, x, _ in given:
        if not isinstance(x, Tensor):
            raise WrongType(f"{name} must be a tensor, got {describe(x)}")
    if query.ndim not in (2, 3) or query.ndim != key.ndim or query.ndim != value.ndim:
        raise WrongValue(
            f"query, key and value must all be {layout}, or all {NO_BATCH}, "
            f"got shapes {', '.join(str(tuple(x.shape)) for _, x, _ in given)}"
        )
    layout = NO_BATCH if query.ndim == 2 else layout
    weight = module.q_proj_weight if module.in_proj_weight is None else module.in_proj_weight
    assert weight is not None
    dtype, autocast = weight.dtype, autocast_enabled(query)
    for name, x, dim in given:
        if x.shape[-1] != dim:
            raise WrongValue(
                f"{name} has width {x.shape[-1]}, shape {tuple(x.shape)}, but the module was built "
                f"for {dim}; build it with {name[0]}dim={x.shape[-1]}"
            )
        if not x.is_floating_point() or (x.dtype != dtype and not autocast):
            raise WrongType(
                f"{name} is {x.dtype} but the module's parameters are {dtype}; cast one, or use "
                "torch.autocast"
            )
        if x.device != weight.device:
            raise WrongValue(
                f"{name} is on {x.device} but the module's parameters are on {weight.device}; use "
                f"{name}.to({str(weight.device)!r})"
            )
    (batch, queries), (key_batch, keys), (value_batch, values) = (
        batch_and_length(x, layout) for _, x, _ in given
    )
    if batch != key_batch or batch != value_batch:
        raise WrongValue(
            f"query, key and value must have one batch size, got {batch}, {key_batch} and "
            f"{value_batch}; they are {layout} with batch_first={batch_first}"
        )
    if keys != values:
        raise WrongValue(
            f"key has length {keys}, shape {tuple(key.shape)}, but value has length {values}, "
            f"shape {tuple(value.shape)}; each key needs its value"
        )
    return MultiheadSizes(batch, module.num_heads, queries, keys, layout, query.device)


def check_saved_score(
    score: Score, state: Mapping[str, Tensor], prefix: str, metadata: Mapping
) -> str | None:
    """An error message if the saved parameters belong to another score than `score`, or None.

    Our metadata name the score that was saved; torch's own metadata do not, which means scaled dot.
    Without metadata the names of the parameters decide, and only if a projection of the queries is
    among them: a partial state dict, loaded by `strict=False`, says nothing about the score.
    """
    where = f" at {prefix[:-1]!r}" if prefix else ""
    own = {f"score.{name}" for name in score.state_dict()}
    names = {name.removeprefix(prefix) for name in state if name.startswith(prefix)}
    saved = metadata.get("score", "scaled_dot" if "version" in metadata else None)
    of = repr(saved)
    if saved is None or saved == score.name:
        theirs = {name for name in names if name.startswith("score.")}
        if theirs == own or names.isdisjoint(("in_proj_weight", "q_proj_weight")):
            return None
        of = _score_named_by(theirs) if saved is None else f"{of} with {_list(theirs)}"
    return (
        f"these parameters{where} are of score {of}, but this MultiheadAttention has score "
        f"{score.name!r} with {_list(own)}; build it with the same score. To go from a torch module "
        "to another score, use regard.nn.replace_attention"
    )


def _score_named_by(names: Collection[str]) -> str:
    """The score that has these parameters, as text for an error message."""
    if not names:
        return "'scaled_dot', or another without parameters"
    # A wrapper holds another score as `score`, so score.score.v is a v too.
    leaves = {found[1] for name in names if (found := re.fullmatch(r"(?:score\.)+(\w+)", name))}
    for leaf, told in TOLD_BY.items():
        if leaf in leaves:
            return f"{' or '.join(told)}, told by the names of {_list(names)}"
    return f"not known, with {_list(names)}"


def _list(names: Collection[str]) -> str:
    return "parameters " + ", ".join(sorted(names)) if names else "no parameters"
