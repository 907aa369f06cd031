"""What attention layers share: projections around `regard.attention`, with any score.

Shape legend: B batch, L tokens, M tokens of the memory, H heads, K key heads (K divides H),
W width of the projections for each head, V value width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from regard.arguments import check_divides, check_sizes
from regard.attention import attend
from regard.checks import check_options
from regard.engines.base import Attended
from regard.mask import Mask
from regard.nn.transformer.cache import Cache
from regard.scores import Projected, Score, named_score
from regard.stabilize import Normalized


def linear(fan_in: int, fan_out: int, bias: bool) -> nn.Linear:
    """A linear layer that keeps unit variance: weights normal with variance 1 / fan_in, bias 0."""
    layer = nn.Linear(fan_in, fan_out, bias)
    nn.init.normal_(layer.weight, std=fan_in**-0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Heads(nn.Module):
    """What `SelfAttention` and `CrossAttention` share: the score, values, sinks and the way out.

    `score` compares what comes in, (B, 1, L, dim) with (B, 1, M, memory_dim): a `Projected` around
    the score given, or, where that has `query_dim` and `key_dim`, the score itself.

    Args:
        dim: width of the tokens.
        heads: query heads.
        memory_dim: width of what keys and values are made of.
        score: None for scaled dot, a name, or a `Score`; see `SelfAttention`.
        key_heads: heads of keys and values, a divisor of `heads`; default `heads`.
        head_dim: width of the projections for each head; default the score's own, or dim / heads.
        value_dim: width of the values for each head; default dim / heads.
        qk_norm: "rms" or "layer": normalise projected queries and keys, before they are turned.
            The same as `score=Normalized(score, width)`.
        sink: learn a logit for each head, from 0, of looking at nothing.
        bias: add biases, from 0, to all projections.
        dropout: of weights, while training.
        engine: the name of an engine, as in `regard.attention`; None picks one.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        memory_dim: int,
        score: Score | str | None = None,
        *,
        key_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        qk_norm: str | None = None,
        sink: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
        engine: str | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, heads=heads, memory_dim=memory_dim, key_heads=key_heads)
        check_sizes(head_dim=head_dim, value_dim=value_dim)
        check_options(None, dropout, None)
        # A name stands for an object that all calls share; a layer has its own.
        given = score if isinstance(score, Score) else copy.deepcopy(named_score(score))
        own = inputs_of(given)
        if key_heads is None:
            key_heads = (None if own is None else own.key_heads) or heads
        check_divides(heads, key_heads)
        self.dim, self.memory_dim = dim, memory_dim
        self.heads, self.key_heads = heads, key_heads
        if own is None:
            self.score = _project(given, dim, memory_dim, heads, key_heads, head_dim, qk_norm, bias)
        else:
            _check_own(own, dim, memory_dim, heads, head_dim, qk_norm)
            self.score = given
        value_dim = _share(dim, heads, "value_dim") if value_dim is None else value_dim
        self.value = linear(memory_dim, self.key_heads * value_dim, bias)
        self.out = linear(heads * value_dim, dim, bias)
        self.sink = nn.Parameter(torch.zeros(heads)) if sink else None
        self.dropout, self.engine = dropout, engine

    @property
    def compare(self) -> Score:
        """The score of projected, normalised and turned heads."""
        score = self.score.score if isinstance(self.score, Projected) else self.score
        return score.score if isinstance(score, Normalized) else score

    def queries(self, x: Tensor) -> Tensor:
        """Queries as `compare` takes them, before they are turned: (B, H, L, W)."""
        heads, score = x.unsqueeze(1), self.score
        if isinstance(score, Projected):
            heads, score = score.project_query(heads), score.score
        return score.change_query(heads) if isinstance(score, Normalized) else heads

    def keys(self, x: Tensor) -> Tensor:
        """Keys as `compare` takes them, before they are turned: (B, K, M, W)."""
        heads, score = x.unsqueeze(1), self.score
        if isinstance(score, Projected):
            heads, score = score.project_key(heads), score.score
        return score.change_key(heads) if isinstance(score, Normalized) else heads

    def values(self, x: Tensor) -> Tensor:
        """Values, (B, K, M, V)."""
        return self.value(x).unflatten(-1, (self.key_heads, -1)).transpose(1, 2)

    def over(
        self,
        query: Tensor,
        seen: Cache,
        mask: Mask | None,
        bias: Tensor | None,
        want: Iterable[str],
    ) -> Attended:
        """Attend over a cache and lead the heads out: `output` is (B, L, dim)."""
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
        return result.with_changed({"output": self.out(result.output.transpose(1, 2).flatten(2))})


def inputs_of(score: Score) -> Score | None:
    """The score inside that takes the tokens themselves (it has `query_dim`), or None."""
    return score.inner if score.inner.query_dim is not None else None


def _project(
    score: Score,
    dim: int,
    memory_dim: int,
    heads: int,
    key_heads: int,
    head_dim: int | None,
    qk_norm: str | None,
    bias: bool,
) -> Projected:
    """Projections before the score, as wide as it needs; norms between them if wanted."""
    width = head_dim or score.width or _share(dim, heads, "head_dim")
    if qk_norm is not None:
        score = Normalized(score, width, norm=qk_norm)  # type: ignore[arg-type] # checked there
    return Projected(
        score, dim, memory_dim, width=width, heads=heads, key_heads=key_heads, bias=bias
    )


def _share(dim: int, heads: int, name: str) -> int:
    if dim % heads:
        raise ValueError(f"dim {dim} is not divided by {heads} heads; give {name}=")
    return dim // heads


def _check_own(
    own: Score, dim: int, memory_dim: int, heads: int, head_dim: int | None, qk_norm: str | None
) -> None:
    """Refuse a score with its own projections that does not fit the layer."""
    name = type(own).__name__
    if (own.query_dim, own.key_dim) != (dim, memory_dim):
        raise ValueError(
            f"{name} compares the tokens themselves: it needs query_dim={dim} and "
            f"key_dim={memory_dim}, got {own.query_dim} and {own.key_dim}"
        )
    if own.heads != heads:
        raise ValueError(f"heads={heads}, but {name} has {own.heads} heads")
    if head_dim is not None or qk_norm is not None:
        raise ValueError(
            f"{name} has projections of its own: head_dim and qk_norm belong inside it, for "
            f"example Projected(Normalized(ScaledDot(), 16), {dim}, {memory_dim}, width=16)"
        )
