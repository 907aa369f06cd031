"""`Heads`: the base of attention layers, projections around `regard.attention` with any score.

Shape legend: B batch, L tokens, M tokens of the memory, H heads, K key heads (K divides H),
W width of the projections for each head, V value width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.arguments import (
    autocast_enabled,
    check_divides,
    check_given_sizes,
    check_probability,
    check_sizes,
)
from regard.attention import attend
from regard.describe import describe
from regard.engines.base import Attended
from regard.mask import Mask
from regard.nn.fit import check_score_fits
from regard.nn.linear import Linear
from regard.nn.transformer.cache import Cache
from regard.scores import Projected, Score, make_score
from regard.stabilize import Normalized


class AttentionOutput(NamedTuple):
    """The result of `attend` of an attention layer.

    Args:
        output: (B, L, dim).
        attended: the same with the statistics asked for; see `regard.attend`.
        cache: the tokens so far, or the memory, projected and lowered.
    """

    output: Tensor
    attended: Attended
    cache: Cache


class Heads(nn.Module):
    """Base class of `SelfAttention` and `CrossAttention`: score, values, sinks and output projection.

    `score` compares tokens (B, 1, L, dim) with memory (B, 1, M, memory_dim). It is a `Projected`
    around the score given, or the score itself if it has `query_dim` and `key_dim`. The arguments are
    those of `CrossAttention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        memory_dim: int,
        score: Score | str | None = None,
        *,
        key_heads: int | None = None,
        width: int | None = None,
        value_dim: int | None = None,
        qk_norm: str | None = None,
        sink: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
        engine: str | None = None,
    ) -> None:
        super().__init__()
        check_given_sizes(dim=dim, heads=heads, memory_dim=memory_dim)
        check_sizes(key_heads=key_heads, width=width, value_dim=value_dim)
        check_probability(dropout=dropout)
        own = score.inner if isinstance(score, Score) else None
        # A score with a query_dim projects the tokens itself.
        own = own if own is not None and own.query_dim is not None else None
        # A score with projections of its own decides the number of key heads unless told otherwise.
        if key_heads is None:
            key_heads = (None if own is None else own.key_heads) or heads
        check_divides(heads, key_heads)
        self.dim, self.memory_dim = dim, memory_dim
        self.heads, self.key_heads = heads, key_heads
        if own is not None:
            assert isinstance(score, Score)
            _check_own(own, dim, memory_dim, heads, width, qk_norm)
            self.score = score
        else:
            self.score = self._project(score, width, qk_norm, bias)
        value_dim = _share(dim, heads, "value_dim") if value_dim is None else value_dim
        self.value = Linear(memory_dim, self.key_heads * value_dim, bias)
        self.out = Linear(heads * value_dim, dim, bias)
        self.sink = nn.Parameter(torch.empty(heads)) if sink else None
        self.dropout, self.engine = dropout, engine
        self.reset_parameters()

    def _project(
        self, score: Score | str | None, width: int | None, qk_norm: str | None, bias: bool
    ) -> Projected:
        """The score behind projections of the width it needs, with norms between them if wanted."""
        if width is None and isinstance(score, Score):
            width = score.width
        width = _share(self.dim, self.heads, "width") if width is None else width
        made = make_score(score, width, self.heads, self.key_heads)
        if qk_norm is not None:
            made = Normalized(made, width, norm=qk_norm)  # type: ignore[arg-type] # checked there
        check_score_fits(made, (self.heads, width), (self.key_heads, width))
        return Projected(
            made,
            self.dim,
            self.memory_dim,
            width=width,
            heads=self.heads,
            key_heads=self.key_heads,
            bias=bias,
        )

    def reset_parameters(self) -> None:
        """Reset the sinks to 0; `regard.nn.reset_all` also resets everything inside."""
        if self.sink is not None:
            nn.init.zeros_(self.sink)

    @property
    def compare(self) -> Score:
        """The score that compares heads after projection, norm and rotary positions."""
        score = self.score.score if isinstance(self.score, Projected) else self.score
        return score.score if isinstance(score, Normalized) else score

    def queries(self, x: Tensor) -> Tensor:
        """Queries (B, H, L, W) for `compare`, before rotary positions."""
        # `Projected` and `Normalized` are taken apart here and not left to the score, because rotary
        # positions come between them and the comparison.
        heads, score = x.unsqueeze(1), self.score
        if isinstance(score, Projected):
            heads, score = score.project_query(heads), score.score
        return score.change_query(heads) if isinstance(score, Normalized) else heads

    def keys(self, x: Tensor) -> Tensor:
        """Keys (B, K, M, W) for `compare`, before rotary positions."""
        heads, score = x.unsqueeze(1), self.score
        if isinstance(score, Projected):
            heads, score = score.project_key(heads), score.score
        return score.change_key(heads) if isinstance(score, Normalized) else heads

    def values(self, x: Tensor) -> Tensor:
        """Values, (B, K, M, V)."""
        return self.value(x).unflatten(-1, (self.key_heads, -1)).transpose(1, 2)

    def attend_over(
        self, query: Tensor, seen: Cache, mask: Mask, bias: Tensor | None, want: Iterable[str]
    ) -> AttentionOutput:
        """Attend over a cache, and project the heads to the output."""
        assert seen.key is not None and seen.value is not None
        result = attend(
            query,
            seen.key,
            seen.value,
            self.compare,
            want=want,
            mask=mask,
            bias=bias,
            sink=self.sink,
            dropout=self.dropout if self.training else 0.0,
            engine=self.engine,
        )
        output = self.out(result.output.transpose(1, 2).flatten(2))
        return AttentionOutput(output, result.with_changed({"output": output}), seen)

    def extra_repr(self) -> str:
        """Sizes, and what is set."""
        parts = [f"dim={self.dim}, heads={self.heads}, key_heads={self.key_heads}"]
        parts += ["sink=True"] if self.sink is not None else []
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        parts += [f"engine={self.engine!r}"] if self.engine is not None else []
        return ", ".join(parts)


def check_tokens(x: Tensor, dim: int, name: str, layer: nn.Linear | None = None) -> None:
    """Refuse tokens that are not (B, L, dim), or not of the dtype and device of `layer`."""
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise TypeError(
            f"{name} is {describe(x)}, not floating point: embed the tokens first, for example "
            f"nn.Embedding(vocabulary, {dim})({name})"
        )
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != dim:
        one = f"; a single sequence is {name}.unsqueeze(0)" if getattr(x, "ndim", 0) == 2 else ""
        raise ValueError(f"{name} must be (batch, length, {dim}), got {describe(x)}{one}")
    weight = None if layer is None else layer.weight
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return  # a quantised layer has rules of its own
    if x.dtype != weight.dtype and not autocast_enabled(x):
        raise TypeError(
            f"{name} is {x.dtype} but the layer is {weight.dtype}; cast one, or use torch.autocast"
        )
    if x.device != weight.device:
        raise ValueError(
            f"{name} is on {x.device} but the layer is on {weight.device}; use "
            f"{name}.to({str(weight.device)!r})"
        )


def _share(dim: int, heads: int, name: str) -> int:
    if dim % heads:
        raise ValueError(f"{heads} heads do not divide dim {dim}; give {name}=")
    return dim // heads


def _check_own(
    own: Score, dim: int, memory_dim: int, heads: int, width: int | None, qk_norm: str | None
) -> None:
    """Refuse a score with its own projections that does not fit the layer."""
    name = type(own).__name__
    if (own.query_dim, own.key_dim) != (dim, memory_dim):
        raise ValueError(
            f"{name} compares the tokens themselves: build it with query_dim={dim} and "
            f"key_dim={memory_dim}, got {own.query_dim} and {own.key_dim}"
        )
    if own.heads != heads:
        raise ValueError(
            f"heads={heads}, but {name} has heads={own.heads}; build it with heads={heads}"
        )
    if width is not None or qk_norm is not None:
        raise ValueError(
            f"{name} has projections of its own: width and qk_norm belong inside it, for example "
            f"Projected(Normalized(ScaledDot(), 16), {dim}, {memory_dim}, width=16)"
        )
