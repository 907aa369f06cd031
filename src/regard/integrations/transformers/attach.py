"""Give the attention layers of a model their scores, and take them away again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

from transformers import PreTrainedConfig, PreTrainedModel

from regard.describe import describe
from regard.integrations.transformers.forward import IMPLEMENTATION, LIKE_EAGER, SCORE
from regard.integrations.transformers.layers import Layer, attention_layers, select
from regard.integrations.transformers.recipe import describe_score
from regard.nn.fit import check_score_fits
from regard.scores import Score, make_score

Maker = Callable[[Layer], Score | None]

OURS = (IMPLEMENTATION, LIKE_EAGER)
# Attribute of a model that holds the implementations it had before, for `restore`.
BEFORE = "_regard_before"
# Entry of the config that describes the score of each layer.
DESCRIPTIONS = "regard_scores"


def use_score(
    model: PreTrainedModel,
    score: Score | str | Maker,
    layers: str | int | Iterable[str | int] | None = None,
) -> PreTrainedModel:
    """Replace the score of attention layers of a transformers model.

    Each chosen layer gets a score of its own as the submodule `regard_score`: it trains, moves,
    casts and saves with the model. The model's projections, rotary positions, cache and masks stay;
    the score sees each head's queries (batch, heads, Q, head_dim) and keys (batch, key_heads, L,
    head_dim). Create the optimizer after this call, so that it has the new parameters.

    Args:
        model: any model whose layers call transformers' attention interface.
        score: a name ("additive", "cosine", ...), built for each layer's sizes; a `Score`, copied
            into each layer; or a function from a `Layer` to its `Score`, which is kept and not
            copied, or to None for the model's own scaled dot.
        layers: which layers: indices (0, -1), names or patterns ("decoder.*"), or several; None for
            all. The others keep their score.

    The model's `scaling` is used only by scaled dot, in place of 1 / sqrt(d); other scores have a
    scale of their own. Soft cap, sinks, position bias and dropout of the model apply to every score.

    The model gets a copy of its config, which names the scores, so that other models built from the
    same config do not change. Pass the whole model and choose by `layers`: if only a part is passed,
    the config that the whole model saves does not name its scores.

    Returns:
        The model itself, changed in place, as transformers' own functions do.
        (`regard.nn.replace_attention` returns the names of what it replaced; here
        `attention_layers` lists them.)
    """
    found = attention_layers(model)
    make = as_maker(score)
    # All are built before any is put in place, so that an error leaves the model unchanged.
    made = {layer.name: check_made_score(make(layer), layer) for layer in select(found, layers)}
    if len(own := [x for x in made.values() if x is not None]) > len({id(x) for x in own}):
        raise ValueError(
            "score gave the same Score object to several layers, which safetensors cannot save; "
            "make a new one for each layer"
        )
    scored = any(hasattr(layer.module, SCORE) for layer in found)
    if not (scored and hasattr(model.config, DESCRIPTIONS)):  # else an earlier call copied it
        _own_config(model)
    put_scores(model, found, made)
    return model


def restore(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the scores and restore the implementation that the model had before `use_score`."""
    layers, before = attention_layers(model), getattr(model, BEFORE, None)
    if before is None or not all(hasattr(layer.module, SCORE) for layer in layers):
        raise ValueError(
            f"this {type(model).__name__} has no scores to remove: restore takes the model that "
            "use_score or load_pretrained returned"
        )
    for layer in layers:
        delattr(layer.module, SCORE)
    model.set_attn_implementation(before)
    for holder, name in (
        (model, BEFORE),
        (model.config, DESCRIPTIONS),
        (model.config, "attn_implementation"),
    ):
        delattr(holder, name)
    return model


def as_maker(score: Score | str | Maker) -> Maker:
    """A function that makes the score of a layer."""
    if isinstance(score, str):
        return lambda layer: make_score(score, layer.head_dim, layer.heads, layer.key_heads)
    if isinstance(score, Score):
        return lambda layer: copy.deepcopy(score)
    if callable(score) and not isinstance(score, type):
        return score
    raise TypeError(
        "score must be a name, a Score object, or a function from a Layer to a Score, got "
        f"{describe(score)}"
    )


def check_made_score(score: object, layer: Layer) -> Score | None:
    """The score that a maker returned, or None, after checking that it fits the layer."""
    if score is None:
        return None
    if not isinstance(score, Score):
        raise TypeError(
            f"the function for layer {layer.name!r} must return a Score or None, got "
            f"{describe(score)}"
        )
    if layer.tells_sizes:
        width = layer.head_dim
        try:
            check_score_fits(score, (layer.heads, width), (layer.key_heads, width))
        except ValueError as error:
            raise ValueError(f"layer {layer.name!r}: {error}") from None
    return score


def _own_config(model: PreTrainedModel) -> None:
    """Replace the configs of the model by copies: other models may share the originals."""
    copies: dict = {}  # the memo of deepcopy: a config held by several parts stays one object
    for part in model.modules():
        for name, held in list(vars(part).items()):
            if isinstance(held, PreTrainedConfig):
                setattr(part, name, copy.deepcopy(held, copies))


def put_scores(
    model: PreTrainedModel, layers: list[Layer], scores: dict[str, Score | None]
) -> None:
    """Put scores into their layers, switch the implementation, and record both in the config."""
    # Checked at every call, because the user may have changed the implementation since the last one.
    wanted = _implementation_for(model, layers)
    ours = all(_implementation_of(layer) in (wanted, None) for layer in layers)
    if not ours or not hasattr(model, BEFORE):
        setattr(model, BEFORE, _switch_implementation(model, layers, wanted))
    descriptions = {}
    for layer in layers:
        score = scores.get(layer.name, getattr(layer.module, SCORE, None))
        if score is not None:
            like = next((p for p in layer.module.parameters() if p.is_floating_point()), None)
            score = score if like is None else score.to(like.device, like.dtype)
            descriptions[layer.name] = describe_score(score.train(layer.module.training))
        layer.module.register_module(SCORE, score)
    setattr(model.config, DESCRIPTIONS, descriptions)
    # Saved with the config: a plain `from_pretrained` then requests our implementation, which refuses
    # to run without scores. Otherwise it would silently compute scaled dot.
    model.config.attn_implementation = IMPLEMENTATION


def _implementation_for(model: PreTrainedModel, layers: list[Layer]) -> str:
    """`IMPLEMENTATION` if the model makes masks and `is_causal` flags for SDPA, else `LIKE_EAGER`.

    What a model makes for flash attention also works if every layer is causal (Gemma 2, gpt-oss).
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    if all(part._supports_sdpa for part in parts):
        return IMPLEMENTATION
    causal = all(getattr(layer.module, "is_causal", None) is True for layer in layers)
    flash = all(part._supports_sdpa or part._supports_flash_attn for part in parts)
    return IMPLEMENTATION if causal and flash else LIKE_EAGER


def _switch_implementation(
    model: PreTrainedModel, layers: list[Layer], wanted: str
) -> dict[str, str | None]:
    """Set the implementation, check that every layer follows it, and return the previous ones.

    Layers read `_attn_implementation`; `set_attn_implementation` writes it, and no public function
    reads it.
    """
    configs = {name: getattr(model.config, name, None) for name in model.config.sub_configs}
    before = {
        # The config of a model with scores names ours already: None stands for the model's default.
        name: None if config._attn_implementation in OURS else config._attn_implementation
        for name, config in {"": model.config, **configs}.items()
        if config is not None
    }
    model.set_attn_implementation(wanted)
    deaf = [layer.name for layer in layers if _implementation_of(layer) not in (wanted, None)]
    if deaf:
        model.set_attn_implementation(before)
        raise ValueError(
            f"{type(model).__name__} does not let the attention implementation of these layers be "
            f"changed: {', '.join(deaf)}"
        )
    return before


def _implementation_of(layer: Layer) -> str | None:
    """The implementation that a layer uses; None for one without a config, which follows the model."""
    return getattr(getattr(layer.module, "config", None), "_attn_implementation", None)
