"""`attention_layers`: the attention layers of a transformers model, with their sizes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from transformers import PreTrainedModel

from regard.describe import describe

# Names of these sizes in the models of transformers, on the layer or in its config.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "heads", "n_head")
WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
WHOLE_WIDTHS = ("embed_dim", "hidden_size", "dim", "d_model")
REGISTRY = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class Layer:
    """One attention layer of a model, the argument of a function that makes its score.

    Attributes:
        name: its dotted name in the model.
        index: its index among all attention layers.
        module: the layer itself.
    """

    name: str
    index: int
    module: nn.Module

    @property
    def heads(self) -> int:
        """Query heads."""
        return self._size(HEADS, "number of heads")

    @property
    def key_heads(self) -> int:
        """Key heads, fewer than query heads where they are grouped."""
        own = getattr(self.module, "num_key_value_heads", None)
        return own or self.heads // (getattr(self.module, "num_key_value_groups", None) or 1)

    @property
    def head_dim(self) -> int:
        """Width of a head's queries and keys."""
        width = self._found(WIDTHS)
        if width is not None:
            return width
        return self._size(WHOLE_WIDTHS, "head width") // self.heads

    @property
    def tells_sizes(self) -> bool:
        """Whether the layer or its config has the number of heads and their width."""
        try:
            return self.heads > 0 and self.head_dim > 0
        except ValueError:
            return False

    def _found(self, names: Iterable[str]) -> int | None:
        config = getattr(self.module, "config", None)
        for holder in (self.module, config):
            for name in names:
                size = getattr(holder, name, None)
                if isinstance(size, int) and size > 0:
                    return size
        return None

    def _size(self, names: Iterable[str], meaning: str) -> int:
        size = self._found(names)
        if size is None:
            raise ValueError(
                f"cannot tell the {meaning} of layer {self.name!r} ({type(self.module).__name__}); "
                "pass a Score that was built with its sizes, for example Additive(head_dim, heads)"
            )
        return size


def attention_layers(model: PreTrainedModel) -> list[Layer]:
    """The layers of `model` that call transformers' attention interface, in order."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a transformers PreTrainedModel, got {describe(model)}")
    found = [(name, m) for name, m in model.named_modules() if _calls_interface(type(m))]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no layer that calls transformers' attention interface, so "
            "its attention cannot be replaced from outside"
        )
    return [Layer(name, index, module) for index, (name, module) in enumerate(found)]


def _calls_interface(layer_class: type[nn.Module]) -> bool:
    """Whether a method of the class reads the registry of attention functions.

    By the names in its code: layers have no common base class or flag.
    """
    if issubclass(layer_class, PreTrainedModel):  # whole models read it to check a name
        return False
    for owner in layer_class.__mro__:
        for member in vars(owner).values():
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            if code is not None and REGISTRY in code.co_names:
                return True
    return False


def select(layers: list[Layer], chosen: str | int | Iterable[str | int] | None) -> list[Layer]:
    """The layers that `chosen` names: indices, or patterns such as "decoder.*"; None for all."""
    if chosen is None:
        return layers
    if isinstance(chosen, (str, int)) or not isinstance(chosen, Iterable):
        chosen = (chosen,)
    wanted: set[int] = set()
    for one in chosen:
        if isinstance(one, str):
            matched = {layer.index for layer in layers if fnmatchcase(layer.name, one)}
        elif isinstance(one, int) and not isinstance(one, bool):
            matched = {one % len(layers)} if -len(layers) <= one < len(layers) else set()
        else:
            raise TypeError(f"layers must be names, patterns or indices, got {describe(one)}")
        if not matched:
            names = ", ".join(layer.name for layer in layers)
            raise ValueError(
                f"layers={one!r} matches none of the {len(layers)} attention layers: {names}"
            )
        wanted |= matched
    if not wanted:
        raise ValueError("layers is empty: name at least one, or None for all")
    return [layer for layer in layers if layer.index in wanted]
