"""The arguments of a model's forward, and the limits that its config states."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


def parameters_of(model: nn.Module) -> tuple[list[str], bool]:
    """The names of the arguments of `forward`, and whether it also takes any other keyword."""
    kinds = inspect.Parameter
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # a forward written in C has no signature
        return [], True
    named = [x.name for x in found if x.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    return named, any(x.kind is kinds.VAR_KEYWORD for x in found)


def required_of(model: nn.Module) -> list[str]:
    """The names of the arguments of `forward` that have no default."""
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [x.name for x in found if x.default is inspect.Parameter.empty and x.kind not in kinds]


def text_config(model: nn.Module) -> Any:
    """The config of a Hugging Face model, or of its text part if it has several; None without one."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def positions_in(model: nn.Module) -> int | None:
    """The longest sequence that the model has positions for; None for any length."""
    most = getattr(text_config(model), "max_position_embeddings", None)
    return most if type(most) is int and most > 0 else None
