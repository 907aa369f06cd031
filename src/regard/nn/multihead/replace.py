"""Replace torch's `MultiheadAttention` inside an existing model by ours."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from regard.describe import describe
from regard.nn.multihead.module import MultiheadAttention
from regard.scores import Score

# What `score=` may be: one score for all layers, or a function that returns one for each.
ScoreChoice = Score | str | None | Callable[[nn.MultiheadAttention], Score | str | None]


def replace_attention(model: nn.Module, score: ScoreChoice = None) -> list[str]:
    """Replace every torch `MultiheadAttention` inside `model` by ours with `score`.

    ```python
    replace_attention(encoder)                                          # the same results
    replace_attention(encoder, "additive")                              # at each layer's sizes
    replace_attention(encoder, lambda m: Additive(16, m.num_heads))     # hidden width 16
    ```

    Args:
        model: changed in place. Subclasses of `torch.nn.MultiheadAttention` are not replaced,
            because their forward may compute something else.
        score: a name, None for scaled dot, a `Score` of which each layer gets its own copy, or a
            function from the torch module to one of these.

    With scaled dot every parameter is kept as the same object, so an optimizer created before keeps
    working. With other scores parameters of the same shape are kept: always the output and value
    projections, and those of query and key if the score takes heads of the same width. The rest is
    new.

    Returns:
        The names of the replaced modules. (`use_score` of `regard.integrations.transformers`
        returns the model, as transformers' own functions do.)

    Raises:
        ValueError: the model has no such module.
    """
    if type(model) is nn.MultiheadAttention:
        raise ValueError(
            "model is a torch.nn.MultiheadAttention itself and has no place in a parent; use "
            "regard.nn.from_torch(model, score)"
        )
    # By module: one that is registered at several places stays one, with shared weights.
    made: dict[nn.Module, MultiheadAttention] = {}
    places = []
    for prefix, parent in model.named_modules():
        for name, child in parent._modules.items():
            if type(child) is not nn.MultiheadAttention:
                continue
            if child not in made:
                made[child] = from_torch(child, score)
            places.append((f"{prefix}.{name}".lstrip("."), parent, name, made[child]))
    if not places:
        raise ValueError(f"found no torch.nn.MultiheadAttention inside {type(model).__name__}")
    # All are built before any is put in place, so that an error leaves the model unchanged.
    for _, parent, name, module in places:
        setattr(parent, name, module)
    return [place for place, *_ in places]


def from_torch(module: nn.MultiheadAttention, score: ScoreChoice = None) -> MultiheadAttention:
    """A `MultiheadAttention` with `score` and all parameters of a torch module that fit.

    See `replace_attention` for what is kept.
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"module must be a torch.nn.MultiheadAttention, got {describe(module)}")
    like = module.out_proj.weight
    if isinstance(score, type):
        raise TypeError(
            "score must be a Score object, a name, None, or a function from the torch module to one "
            f"of these, got {describe(score)}"
        )
    if isinstance(score, Score):
        score = copy.deepcopy(score)
    elif callable(score):
        score = score(module)
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
        score=score,
    )
    # The parameter object itself moves over, not its numbers, so that optimizers keep track of it.
    for name, given in module.named_parameters():
        own = ours.get_parameter(name)
        if own.shape == given.shape:
            owner, _, leaf = name.rpartition(".")
            setattr(ours.get_submodule(owner), leaf, given)
        else:
            own.requires_grad_(given.requires_grad)
            if name.startswith("in_proj"):
                _copy_rows(own, given, ours.projected)
    return ours.train(module.training)


@torch.no_grad()
def _copy_rows(own: torch.Tensor, given: torch.Tensor, rows: tuple[int, int, int]) -> None:
    """Copy those of the three stacked parts (query, key, value) that have the same shape."""
    for mine, theirs in zip(own.split(rows), given.chunk(3), strict=True):
        if mine.shape == theirs.shape:
            mine.copy_(theirs)
