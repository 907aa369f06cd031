"""The keywords that layers and blocks share, and the error for any other keyword."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Literal, TypedDict

from torch import nn

from regard.nn.position import Alibi, Rotary


class AttentionOptions(TypedDict, total=False):
    """The options of every attention layer; `SelfAttention` documents them."""

    key_heads: int | None
    width: int | None
    value_dim: int | None
    qk_norm: Literal["rms", "layer"] | None
    sink: bool
    bias: bool
    dropout: float
    engine: str | None


class BlockOptions(AttentionOptions, total=False):
    """The options of every block; `EncoderBlock` documents them."""

    position: Rotary | Alibi | None
    feedforward: int | None
    norm: Literal["pre", "post"]
    norm_type: Literal["layer", "rms"]
    activation: Literal["gelu", "relu", "swiglu"]


def check_keywords(
    module: nn.Module, given: Mapping[str, object], options: type, hints: Mapping[str, str] = {}
) -> None:
    """Refuse a keyword that is not in `options`; the error names the class that was called."""
    known = options.__optional_keys__  # type: ignore[attr-defined] # of every TypedDict
    # `Unpack` is checked by type checkers only: at run time any keyword would be accepted.
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = hints.get(name) or (f"did you mean {near[0]!r}?" if near else "")
            raise TypeError(
                f"{type(module).__name__} has no argument {name!r}"
                + (f": {hint}" if hint else f"; there are {', '.join(sorted(known))}")
            )


def attention_options(options: Mapping[str, object]) -> AttentionOptions:
    """The part of a block's options that its attention layers take."""
    known = AttentionOptions.__optional_keys__
    return {name: x for name, x in options.items() if name in known}  # type: ignore[return-value]
