"""The output and statistics of one attention call, for claims about its weights."""

from __future__ import annotations

from torch import Tensor

import regard
from regard import Score


def observed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Score | str,
    *want: str,
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """The output and the wanted statistics of `regard.attend`, by name."""
    result = regard.attend(
        query, key, value, score, want=want, temperature=temperature, engine="reference"
    )
    return {name: getattr(result, name) for name in ("output", *want)}
