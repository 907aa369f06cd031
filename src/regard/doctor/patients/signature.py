"""What the forward of a model takes."""

from __future__ import annotations

import inspect

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
