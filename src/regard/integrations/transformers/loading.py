"""`load_pretrained`: load a saved model together with its scores."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from regard.describe import describe
from regard.integrations.transformers.attach import (
    DESCRIPTIONS,
    Maker,
    as_maker,
    check_made_score,
    put_scores,
)
from regard.integrations.transformers.forward import SCORE
from regard.integrations.transformers.layers import Layer, attention_layers
from regard.integrations.transformers.recipe import describe_score, rebuild_score
from regard.scores import Score

# Arguments of `from_pretrained` that say where the files are: the config needs them too.
WHERE = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
OURS = ("attn_implementation", "config", "output_loading_info", "trust_remote_code")


def load_pretrained(
    path: str | PathLike,
    model_class: type[PreTrainedModel] | None = None,
    *,
    score: Score | str | Maker | None = None,
    **kwargs,
) -> PreTrainedModel:
    """A model that was saved with scores: `from_pretrained` that also restores the scores.

    Weights are read from safetensors only; nothing is unpickled.

    Args:
        path: the folder that `save_pretrained` wrote, or a name on the hub, "owner/name".
        model_class: the model's class; by default the one that was saved.
        score: as for `use_score`; needed only for scores of your own. It must be the score that was
            saved; another one is refused by name.
        kwargs: for `from_pretrained`: dtype, device_map, revision and so on.
    """
    for name in OURS:
        if name in kwargs:
            raise TypeError(f"load_pretrained sets {name}= itself; remove it from the call")
    if not kwargs.setdefault("use_safetensors", True):
        raise ValueError(
            "load_pretrained reads safetensors only; leave use_safetensors out of the call"
        )
    _check_path(path, kwargs.get("subfolder", ""))
    config = _read_config(path, model_class, {k: kwargs[k] for k in WHERE if k in kwargs})
    saved = getattr(config, DESCRIPTIONS, None)
    if saved is not None and not isinstance(saved, dict):
        raise ValueError(
            f"{DESCRIPTIONS} in the config must be a table of layers, got {describe(saved)}"
        )
    if saved is None:
        raise ValueError(
            f"the config in {str(path)!r} names no scores; open it with from_pretrained, then call "
            "use_score"
        )
    model_class = _saved_class(config) if model_class is None else model_class
    make = None if score is None else as_maker(score)

    def build(self: PreTrainedModel, config: PreTrainedConfig, *args, **options) -> None:
        model_class.__init__(self, config, *args, **options)
        layers = attention_layers(self)
        put_scores(self, layers, _saved_scores(layers, saved, make, self.base_model_prefix))

    # `from_pretrained` builds the model and loads the weights in one call, so the scores have to be
    # added by its constructor. The subclass has the same name, because some registries of transformers
    # go by it; the model gets its own class back afterwards.
    same = {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    builder: Any = type(model_class.__name__, (model_class,), {**same, "__init__": build})
    model, info = builder.from_pretrained(path, config=config, output_loading_info=True, **kwargs)
    model.__class__ = model_class
    for kind in ("missing_keys", "unexpected_keys"):
        odd = sorted(key for key in info[kind] if f".{SCORE}." in key)
        if odd:
            raise ValueError(
                f"the scores and the weights in {str(path)!r} do not fit: {kind.replace('_', ' ')} "
                f"{', '.join(odd)}"
            )
    return model


def _check_path(path: str | PathLike, subfolder: str) -> None:
    """Refuse a path that holds no model, before transformers asks the hub for it several times."""
    place = Path(path)
    if place.is_file():  # transformers would read it as weights, and unpickle it
        raise ValueError(f"path {str(path)!r} is a file; give the folder that holds it")
    if place.is_dir():
        if not (place / subfolder / "config.json").is_file():
            raise FileNotFoundError(
                f"the folder {str(place / subfolder)!r} holds no config.json; give the one that "
                "save_pretrained wrote"
            )
    elif not isinstance(path, str) or not HUB_NAME.fullmatch(path):
        raise FileNotFoundError(
            f"there is no folder {str(path)!r}; a name on the hub is 'owner/name'"
        )


def _read_config(
    path: str | PathLike, model_class: type[PreTrainedModel] | None, where: dict
) -> PreTrainedConfig:
    """The saved config, free to pick the model's usual implementation first."""
    reader: Any = AutoConfig
    if model_class is not None:
        if not (isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)):
            raise TypeError(
                "model_class must be the class of a model, such as LlamaForCausalLM (not an Auto "
                f"class), or None for the one that was saved, got {describe(model_class)}"
            )
        reader = model_class.config_class
    # Neither asks whether to run code of the folder, nor fetches the kernels that it may name.
    config = reader.from_pretrained(path, trust_remote_code=False, **where)
    # What the file asks for; the public setter is of models, and there is none yet.
    config._attn_implementation = None
    return config


def _saved_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class of transformers that the config names."""
    named = config.architectures
    name = named[0] if isinstance(named, list) and named else named
    found = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise ValueError(
            f"the config names the architecture {name!r}, which transformers does not have; pass "
            "model_class="
        )
    return found


def _saved_scores(
    layers: list[Layer], saved: dict[str, dict], make: Maker | None, prefix: str
) -> dict[str, Score | None]:
    """The score of each layer that has a description; refuses others than were saved."""
    left, scores = dict(saved), {}
    for layer in layers:
        # A bare model may be loaded from the file of a model with a head, and the reverse.
        names = (layer.name, f"{prefix}.{layer.name}", layer.name.removeprefix(f"{prefix}."))
        name = next((name for name in names if name in left), None)
        if name is None:
            continue
        description = left.pop(name)
        if make is None:
            scores[layer.name] = rebuild_score(description)
            continue
        score = scores[layer.name] = check_made_score(make(layer), layer)
        given = None if score is None else describe_score(score)
        if given != description:
            raise ValueError(
                f"layer {name!r} was saved with score {description.get('name')!r}, {description}, "
                f"but score= gives {given and given['name']!r}, {given}"
            )
    # A part of the saved model, such as its encoder, has only some of the layers: an error only if it
    # has none of them.
    if saved and not scores:
        raise ValueError(
            f"the config has scores for layers that this model lacks: {', '.join(sorted(left))}"
        )
    return scores
