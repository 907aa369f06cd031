"""What the forward of a model takes, and what its config says of that."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


def parameters_of(model: nn.Module) -> tuple[list[str], bool]:
    """The names of its arguments, and whether it takes any other name too."""
    kinds = inspect.Parameter
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return [], True
    named = [x.name for x in found if x.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    return named, any(x.kind is kinds.VAR_KEYWORD for x in found)


def required_of(model: nn.Module) -> list[str]:
    """The names without a default."""
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [x.name for x in found if x.default is inspect.Parameter.empty and x.kind not in kinds]


def text_config(model: nn.Module) -> Any:
    """The config of a Hugging Face model, of its text part where it has several; None without."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def positions_in(model: nn.Module) -> int | None:
    """How many places the model knows, None for any number."""
    most = getattr(text_config(model), "max_position_embeddings", None)
    return most if type(most) is int and most > 0 else None
