"""Replace torch's `MultiheadAttention` inside an existing model by ours, or the score of ours by another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.describe import describe
from regard.nn.multihead.module import MultiheadAttention
from regard.scores import Projected, Score, check_name, make_score

Replaceable = nn.MultiheadAttention | MultiheadAttention
# What `score=` may be: one score for all layers, or a function that returns one for each.
ScoreChoice = Score | str | None | Callable[[Replaceable], Score | str | None]


class Place(NamedTuple):
    """A module of the model that gets another score, and where it is registered."""

    path: str
    parent: nn.Module | None
    name: str
    module: Replaceable


def replace_attention(model: nn.Module, score: ScoreChoice = None) -> list[str]:
    """Replace every torch `MultiheadAttention` inside `model` by ours with `score`.

    ```python
    replace_attention(encoder)                                          # the same results
    replace_attention(encoder, "additive")                              # at each layer's sizes
    replace_attention(encoder, lambda m: Additive(16, m.num_heads))     # hidden width 16
    ```

    Where `MultiheadAttention` is regard's already, it stays the same object, with its hooks, and its
    score is changed in place.

    Args:
        model: changed in place. Subclasses of `torch.nn.MultiheadAttention` are not replaced,
            because their forward may compute something else.
        score: a name, None for scaled dot, a `Score` of which each layer gets its own copy, or a
            function from the module to one of these. Of a `Projected` score the score inside is
            taken, at its width: the module has the projections.

    With scaled dot every parameter is kept as the same object, so an optimizer created before keeps
    working. With other scores parameters of the same shape are kept: always the output and value
    projections, and those of query and key if the score takes heads of the same width. A score by
    name takes the width that the module has. A score that is there already, by name, keeps its
    parameters. The rest is new, and only for that random numbers are drawn.

    Returns:
        The names of the changed modules. (`use_score` of `regard.integrations.transformers`
        returns the model, as transformers' own functions do.)

    Raises:
        ValueError: the model has no such module, or the score does not fit; the model is unchanged.
    """
    if type(model) is nn.MultiheadAttention:
        raise ValueError(
            "model is a torch.nn.MultiheadAttention itself and has no place in a parent; use "
            "regard.nn.from_torch(model, score)"
        )
    check_name(score)
    places = _places(model)
    if not places:
        raise ValueError(
            f"found no MultiheadAttention, torch's or regard's, inside {type(model).__name__}"
        )
    # By module: one that is registered at several places stays one, with shared weights. All are built
    # before any is put in place, so that an error leaves the model unchanged.
    made: dict[nn.Module, MultiheadAttention] = {}
    for place in places:
        if place.module not in made:
            made[place.module] = from_torch(place.module, score)
    for place in places:
        ours = made[place.module]
        if isinstance(place.module, MultiheadAttention):
            _become(place.module, ours)
        else:
            assert place.parent is not None
            setattr(place.parent, place.name, ours)
    return [place.path for place in places]


def from_torch(module: Replaceable, score: ScoreChoice = None) -> MultiheadAttention:
    """A `MultiheadAttention` with `score` and all parameters of a torch module, or one of ours, that fit.

    See `replace_attention` for what is kept.
    """
    if not isinstance(module, (nn.MultiheadAttention, MultiheadAttention)):
        raise TypeError(
            "module must be a torch.nn.MultiheadAttention or a regard.nn.MultiheadAttention, got "
            f"{describe(module)}"
        )
    check_name(score)
    like = module.out_proj.weight
    own = _own_options(module)
    chosen, width = _chosen_score(module, score, own.pop("width"))
    # Building draws every parameter. Those that are kept must not use up random numbers, so that the
    # generators are set back, and what is new is drawn afterwards.
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        ours = MultiheadAttention(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device=like.device,
            dtype=like.dtype,
            score=chosen,
            width=width,
            **own,
        )
    ours.draw(_take_parameters(ours, module))
    return ours.train(module.training)


def _places(model: nn.Module) -> list[Place]:
    """The modules to change; a model that is one of ours itself has the path ""."""
    found = [Place("", None, "", model)] if type(model) is MultiheadAttention else []
    for prefix, parent in model.named_modules():
        for name, child in parent._modules.items():
            if type(child) in (nn.MultiheadAttention, MultiheadAttention):
                found.append(Place(f"{prefix}.{name}".lstrip("."), parent, name, child))  # type: ignore[bad-argument-type]
    return found


def _own_options(module: Replaceable) -> dict:
    """The options that torch's module does not have; `width` is None where the score decides."""
    if not isinstance(module, MultiheadAttention):
        return {"width": None}
    query = module.projected[0] // module.num_heads
    key = module.projected[1] // module.key_heads
    return {
        "qdim": module.qdim,
        "key_heads": module.key_heads,
        "engine": module.engine,
        "width": query if query == key else None,
    }


def _chosen_score(
    module: Replaceable, score: ScoreChoice, width: int | None
) -> tuple[Score, int | None]:
    """A score object for the module, and the width of its projections, None for the score's own."""
    if isinstance(score, type):
        raise TypeError(
            "score must be a Score object, a name, None, or a function from the module to one of "
            f"these, got {describe(score)}"
        )
    if isinstance(score, Score):
        score = copy.deepcopy(score)
    elif callable(score):
        score = score(module)
    if isinstance(score, Projected):
        inside = score.score
        return inside, None if inside.width else score.query_weight.shape[0] // score.heads
    if isinstance(score, Score):
        return score, None
    present = module.score if isinstance(module, MultiheadAttention) else None
    if present is not None and present.name == (score or "scaled_dot"):
        return present, width
    key_heads = module.key_heads if isinstance(module, MultiheadAttention) else module.num_heads
    made = make_score(score, width or module.head_dim, module.num_heads, key_heads)
    return made, width


def _take_parameters(ours: MultiheadAttention, module: Replaceable) -> set[str]:
    """Put the parameters of `module` that fit into `ours`; the names of those left to draw."""
    new = set()
    for name, given in module.named_parameters(remove_duplicate=False):
        if name.startswith("score."):
            continue
        own = ours.get_parameter(name)
        if own.shape == given.shape:
            owner, _, leaf = name.rpartition(".")
            setattr(ours.get_submodule(owner), leaf, given)
            continue
        own.requires_grad_(given.requires_grad)
        if name.startswith("in_proj"):
            new |= _copy_rows(own, given, ours.projected, _rows(module), name)
        else:
            new.add(name)
    return new


def _rows(module: Replaceable) -> tuple[int, int, int]:
    """The heights of the stacked projections of query, key and value."""
    if isinstance(module, MultiheadAttention):
        return module.projected
    return (module.embed_dim,) * 3


@torch.no_grad()
def _copy_rows(
    own: Tensor,
    given: Tensor,
    rows: tuple[int, int, int],
    given_rows: tuple[int, int, int],
    name: str,
) -> set[str]:
    """Copy those of the three stacked parts that have the same shape; the names of the others."""
    new = set()
    parts = zip("qkv", own.split(rows), given.split(given_rows), strict=True)
    for letter, mine, theirs in parts:
        if mine.shape == theirs.shape:
            mine.copy_(theirs)
        elif name == "in_proj_weight":
            new.add(f"{letter}_proj_weight")
    return new


def _become(module: MultiheadAttention, made: MultiheadAttention) -> None:
    """Give `module` the score and the parameters of `made`; hooks and everything else stay."""
    module._parameters, module._modules = made._parameters, made._modules
    module.projected = made.projected
