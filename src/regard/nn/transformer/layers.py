"""Attention layers for blocks to use: of tokens to one another, and to a memory.

Shape legend: B batch, L tokens, M tokens of the memory, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from regard.describe import describe
from regard.engines.base import Attended
from regard.forms import InnerKey, KeySide
from regard.mask import Mask
from regard.nn.position import Alibi, Rotary
from regard.nn.transformer.cache import (
    EMPTY,
    Cache,
    Counts,
    begin,
    check_counts,
    check_tokens,
    tokens_in,
)
from regard.nn.transformer.heads import Heads
from regard.scores import Projected, Score


class SelfAttention(Heads):
    """Tokens attend to one another: project, turn, score, weigh, project out.

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: how queries and keys compare. None is scaled dot; a name; or a `Score` that takes
            projected heads: `Additive(hidden, heads)` gets projections of width `hidden`. A score
            with projections of its own, `Projected`, `Bilinear` or `LowRank`, takes the tokens
            themselves, one head shared, and the layer adds no projections.
        causal: hide later tokens, as a cache needs.
        position: a `Rotary`, an `Alibi` or None.
        options: key_heads, head_dim, value_dim, qk_norm, sink, bias, dropout and engine, as in
            `Heads`.

    Parameters: W_q, W_k in `score`, `value`, `out`. All start normal with variance 1 / fan-in, so
    that scores have variance 1 for unit-variance tokens, except those of `Dot`, which is meant to
    have the width as its variance, and of `Gaussian`: 1.5 over the keys.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        causal: bool = False,
        position: Rotary | Alibi | None = None,
        **options,
    ) -> None:
        super().__init__(dim, heads, dim, score, **options)
        _check_position(position, self)
        self.causal, self.position = causal, position

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
    ) -> Tensor:
        """Attend over x (B, L, dim) to (B, L, dim).

        Args:
            x: the tokens.
            mask: a `Mask`, or booleans with True = attend, (L, L) or (B, H or 1, L, L).
            lengths: (B,) how many tokens of each sequence are real; the rest is padding.
            start: (B,) how many tokens of padding each sequence begins with.
        """
        return self.attend(x, mask=mask, lengths=lengths, start=start)[0].output

    def step(
        self, x: Tensor, cache: Cache = EMPTY, *, mask: Mask | Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """Attend from the next tokens, one or more, to those before; also the grown cache.

        Begin with `Cache()`, or `Cache(start=...)` where sequences begin with padding.
        """
        result, cache = self.attend(x, cache, mask=mask)
        return result.output, cache

    def attend(
        self,
        x: Tensor,
        cache: Cache = EMPTY,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
    ) -> tuple[Attended, Cache]:
        """What `forward` and `step` do, with statistics: `want={"weights"}` and others."""
        check_tokens(x, self.dim, "x", self.value)
        cache = begin(cache, x, lengths, start)
        if cache.key is not None and not self.causal:
            raise ValueError(
                "a cache needs SelfAttention(causal=True): without it earlier tokens, which are "
                "done, would have to look at later ones"
            )
        x, count = cache.hide(x), x.shape[1]
        query, key = self.queries(x), self.keys(x)
        if isinstance(self.position, Rotary):
            where = cache.positions(count, x.device)
            query = self.position(query, positions=where)
            key = self.position(key, positions=where)
        cache = cache.append(self._lower(key, cache.key), self.values(x))
        bias = None
        if isinstance(self.position, Alibi):
            bias = self.position(count, tokens_in(cache.value), device=x.device).unsqueeze(0)
        return self.over(query, cache, self._visible(cache, mask), bias, want), cache

    def _lower(self, key: Tensor, before: KeySide | None) -> KeySide:
        """Keys as the score lowers them, about the origin of those before, where it has one."""
        if before is None:
            return self.compare.key(key)
        return self.compare.key_at(key, before.origin if isinstance(before, InnerKey) else None)

    def _visible(self, cache: Cache, mask: Mask | Tensor | None) -> Mask | None:
        seen = both(as_mask(mask), cache.mask())
        if cache.stop is not None:  # all tokens came at once: queries are padded as keys are
            seen = both(seen, Mask.lengths(queries=cache.stop))
        return both(seen, Mask.causal()) if self.causal else seen


class CrossAttention(Heads):
    """Tokens attend to a memory, as a decoder to its encoder's output.

    Args:
        dim: width of the tokens.
        heads: query heads.
        memory_dim: width of the memory; default `dim`.
        score: as in `SelfAttention`; with projections of its own its `key_dim` is `memory_dim`.
        options: key_heads, head_dim, value_dim, qk_norm, sink, bias, dropout and engine, as in
            `Heads`.

    Parameters and how they start: as `SelfAttention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        memory_dim: int | None = None,
        score: Score | str | None = None,
        **options,
    ) -> None:
        super().__init__(dim, heads, dim if memory_dim is None else memory_dim, score, **options)

    def remember(self, memory: Tensor, lengths: Counts = None) -> Cache:
        """Project and lower a memory (B, M, memory_dim) once, to pass at every step."""
        check_tokens(memory, self.memory_dim, "memory", self.value)
        empty = Cache(stop=check_counts(lengths, "lengths", memory))
        memory = empty.hide(memory)
        return empty.append(self.compare.key(self.keys(memory)), self.values(memory))

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Cache,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
    ) -> Tensor:
        """Attend from x (B, L, dim) to (B, L, dim).

        Args:
            x: the tokens.
            memory: (B, M, memory_dim), or what `remember` gave for it.
            mask: a `Mask`, or booleans with True = attend, (L, M) or (B, H or 1, L, M).
            lengths: (B,) how much of each memory is real; `remember` has taken it already.
        """
        return self.attend(x, memory, mask=mask, lengths=lengths).output

    def attend(
        self,
        x: Tensor,
        memory: Tensor | Cache,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
    ) -> Attended:
        """What `forward` does, with statistics: `want={"weights"}` and others."""
        check_tokens(x, self.dim, "x", self.out)
        if not isinstance(memory, Cache):
            memory = self.remember(memory, lengths)
        elif lengths is not None:
            raise ValueError("lengths belong to remember(memory, lengths), which made this memory")
        elif memory.key is None:
            raise ValueError("memory is an empty Cache; make it with remember(memory, lengths)")
        assert memory.value is not None
        given = memory.value.shape[0]
        if given != 1 and given != x.shape[0]:
            raise ValueError(
                f"memory is for {given} sequences, but x has {x.shape[0]}; give one for each, one "
                "for all, or reorder it with memory.reorder(index)"
            )
        seen = both(as_mask(mask), memory.mask())
        return self.over(self.queries(x), memory, seen, None, want)


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """A boolean tensor as a `Mask`, and nothing else that is none."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a Mask or a boolean tensor, got {describe(mask)}")
    return Mask.dense(mask)


def both(mask: Mask | None, other: Mask | None) -> Mask | None:
    """What both masks allow; None allows all."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def _check_position(position: object, layer: SelfAttention) -> None:
    if position is None:
        return
    if isinstance(position, Alibi):
        if position.heads != layer.heads:
            raise ValueError(f"Alibi has {position.heads} heads, but there are {layer.heads}")
        return
    if not isinstance(position, Rotary):
        hint = (
            "; Sinusoidal and LearnedPosition are added to the embeddings: "
            "Encoder(blocks, position=...)"
        )
        raise TypeError(f"position must be Rotary, Alibi or None, got {describe(position)}{hint}")
    if not isinstance(layer.score, Projected):
        raise ValueError(
            f"Rotary turns projected heads, which {type(layer.score).__name__} does not show; use "
            "a score that takes projected heads, or Projected(...) outermost, or Alibi"
        )
    width = layer.score.query_weight.shape[0] // layer.heads
    if position.dim != width:
        raise ValueError(f"Rotary was built for heads of width {position.dim}, they have {width}")
