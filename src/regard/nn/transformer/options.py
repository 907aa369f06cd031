"""The keywords that layers and blocks share, and one error for any other."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal, TypedDict

from torch import nn

from regard.nn.position import Alibi, Rotary


class AttentionOptions(TypedDict, total=False):
    """What every attention layer takes; `SelfAttention` says what each does."""

    key_heads: int | None
    width: int | None
    value_dim: int | None
    qk_norm: Literal["rms", "layer"] | None
    sink: bool
    bias: bool
    dropout: float
    engine: str | None


class BlockOptions(AttentionOptions, total=False):
    """What every block takes; `EncoderBlock` says what each does."""

    position: Rotary | Alibi | None
    feedforward: int | None
    norm: Literal["pre", "post"]
    norm_type: Literal["layer", "rms"]
    activation: Literal["gelu", "relu", "swiglu"]


def check_keywords(
    module: nn.Module, given: Mapping[str, object], options: type, hints: Mapping[str, str] = {}
) -> None:
    """Refuse a keyword that is none of `options`, by the name of the class that was called."""
    known = options.__optional_keys__  # type: ignore[attr-defined] # of every TypedDict
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = hints.get(name) or (f"did you mean {near[0]!r}?" if near else "")
            raise TypeError(
                f"{type(module).__name__} has no argument {name!r}"
                + (f": {hint}" if hint else f"; there are {', '.join(sorted(known))}")
            )


def attention_options(options: Mapping[str, object]) -> AttentionOptions:
    """Those of a block's options that are for its attention layers."""
    known = AttentionOptions.__optional_keys__
    return {name: x for name, x in options.items() if name in known}  # type: ignore[return-value]
