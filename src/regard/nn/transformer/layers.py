"""Attention layers of blocks: `SelfAttention` among tokens, `CrossAttention` to a memory.

Shape legend: B batch, L tokens, M tokens of the memory, H heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from torch import Tensor

from regard.arguments import Counts
from regard.describe import describe
from regard.engines import step_plan
from regard.mask import Mask
from regard.nn.position import Alibi, Rotary
from regard.nn.transformer.cache import EMPTY, Cache, begin, tokens_in
from regard.nn.transformer.heads import AttentionOutput, Heads, check_tokens
from regard.nn.transformer.options import AttentionOptions, check_keywords
from regard.scores import Projected, Score
from regard.stabilize import Normalized, Stabilized


class SelfAttention(Heads):
    """Self-attention of tokens with any score, positions and cache.

    ```python
    layer = SelfAttention(64, heads=4, score="additive", causal=True)
    y = layer(x, lengths=[10, 7])               # (2, 10, 64) to (2, 10, 64)
    y, cache = layer.step(x[:, :1])             # or token by token
    ```

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: how queries and keys compare. None is scaled dot; a name is built as wide as each
            head; a `Score` takes projected heads: `Additive(hidden, heads)` gets projections of
            width `hidden`. A score with projections of its own, `Projected`, `Bilinear` or
            `LowRank`, takes the tokens themselves as one shared head, and the layer adds no
            projections.
        causal: hide later tokens; needed for a cache.
        position: a `Rotary`, an `Alibi` or None.
        key_heads: heads of keys and values, a divisor of `heads`; default `heads`.
        width: width of queries and keys for each head; default the score's own, or dim / heads.
        value_dim: width of the values for each head; default dim / heads.
        qk_norm: "rms" or "layer": normalise projected queries and keys, before rotary positions.
            The same as `score=Normalized(score, width)`.
        sink: learn a logit for each head, initially 0, of attending to nothing.
        bias: add biases, initially 0, to all projections.
        dropout: probability of dropping a weight, in training.
        engine: the name of an engine, as in `regard.attention`; None picks one.

    Parameters: W_q and W_k in `score`, `value`, `out`. All are initialised normal with variance 1 /
    fan-in, so that scores have variance 1 for unit-variance tokens. Exceptions: `Dot`, whose scores
    have the width as their variance by definition, and `Gaussian`, 1.5 over the keys.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        causal: bool = False,
        position: Rotary | Alibi | None = None,
        **options: Unpack[AttentionOptions],
    ) -> None:
        check_keywords(self, options, AttentionOptions)
        super().__init__(dim, heads, dim, score, **options)
        _check_position(position, self)
        self.causal, self.position = causal, position

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
    ) -> Tensor:
        """Attend over x (B, L, dim) to (B, L, dim).

        Args:
            x: the tokens.
            mask: a `Mask`, or booleans with True = attend, (L, L) or (B, H or 1, L, L).
            lengths: (B,) number of real tokens of each sequence; the rest is padding.
            left_padding: (B,) number of padding tokens at the start of each sequence.
        """
        return self.attend(x, mask=mask, lengths=lengths, left_padding=left_padding).output

    def step(
        self, x: Tensor, cache: Cache = EMPTY, *, mask: Mask | Tensor | None = None
    ) -> tuple[Tensor, Cache]:
        """The output for the next tokens, one or more, and the cache with them appended.

        Start with `Cache()`, or `Cache(left_padding=...)` if sequences start with padding.
        """
        result = self.attend(x, cache=cache, mask=mask)
        return result.output, result.cache

    def attend(
        self,
        x: Tensor,
        *,
        cache: Cache = EMPTY,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
    ) -> AttentionOutput:
        """What `forward` and `step` do, with statistics: `want={"weights"}` and others."""
        check_tokens(x, self.dim, "x", self.value)
        cache = begin(cache, x, lengths, left_padding)
        return self.attend_after(cache, cache.hide(x), want, mask)

    def attend_after(
        self, cache: Cache, x: Tensor, want: Iterable[str], mask: Mask | Tensor | None
    ) -> AttentionOutput:
        """As `attend`, for a cache from `begin` and tokens whose padding is zeroed already."""
        if cache.key is not None and not self.causal:
            raise ValueError(
                "a cache needs SelfAttention(causal=True): without it earlier tokens, whose outputs "
                "are final, would have to attend to later ones"
            )
        # Queries and keys are (B, 1, L, dim) for a score like `Bilinear`, which projects them itself.
        count, query, key = x.shape[1], self.queries(x), self.keys(x)
        # Keys are rotated before they enter the cache, so that each is rotated once.
        if isinstance(self.position, Rotary):
            where = cache.positions(count, x.device)
            query = self.position(query, positions=where)
            key = self.position(key, positions=where)
        cache = cache.append(self.compare, key, self.values(x))
        keys, bias = tokens_in(cache.value), None
        if isinstance(self.position, Alibi):
            # The new queries are the last of all tokens, which is Alibi's default offset. Left padding
            # needs no correction: the bias depends on distances only.
            bias = self.position(count, keys, device=x.device).unsqueeze(0)
        seen = _as_mask(mask, x, keys) & cache.mask()
        if cache.stop is not None:  # all tokens came at once: queries have the padding of the keys
            seen = seen & Mask.lengths(queries=cache.stop)
        if self.causal:
            seen = seen & Mask.causal()
        return self.attend_over(query, cache, seen, bias, want)

    def extra_repr(self) -> str:
        """Sizes, and what is set."""
        return f"{super().extra_repr()}, causal={self.causal}"


class CrossAttention(Heads):
    """Cross-attention of tokens to a memory, as a decoder to its encoder's output.

    ```python
    layer = CrossAttention(64, heads=4, score="additive", memory_dim=32)
    memory = layer.prepare(encoded, lengths=[20, 13])    # project and lower (2, 20, 32) once
    y = layer(x, memory)                                 # (2, 10, 64) to (2, 10, 64)
    ```

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: as in `SelfAttention`; with projections of its own its `key_dim` is `memory_dim`.
        memory_dim: width of the memory; default `dim`.
        key_heads: heads of keys and values, a divisor of `heads`; default `heads`.
        width: width of queries and keys for each head; default the score's own, or dim / heads.
        value_dim: width of the values for each head; default dim / heads.
        qk_norm: "rms" or "layer": normalise projected queries and keys.
        sink: learn a logit for each head, initially 0, of attending to nothing.
        bias: add biases, initially 0, to all projections.
        dropout: probability of dropping a weight, in training.
        engine: the name of an engine, as in `regard.attention`; None picks one.

    Parameters and their initialisation are those of `SelfAttention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        memory_dim: int | None = None,
        **options: Unpack[AttentionOptions],
    ) -> None:
        check_keywords(self, options, AttentionOptions)
        super().__init__(dim, heads, dim if memory_dim is None else memory_dim, score, **options)

    def prepare(self, memory: Tensor, lengths: Counts | None = None) -> Cache:
        """Project and lower a memory (B, M, memory_dim) once, to pass at every step."""
        check_tokens(memory, self.memory_dim, "memory", self.value)
        empty = begin(EMPTY, memory, lengths)
        return self.prepare_after(empty, empty.hide(memory))

    def prepare_after(self, padding: Cache, memory: Tensor) -> Cache:
        """As `prepare`, for a memory whose padding is known and zeroed already."""
        check_tokens(memory, self.memory_dim, "memory", self.value)
        values = self.values(memory)
        if values.device.type in step_plan.STEPS_ON:
            # Once for all steps: their kernels read rows that are next to each other.
            values = values.contiguous()
        return padding.append(self.compare, self.keys(memory), values)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Cache,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
    ) -> Tensor:
        """Attend from x (B, L, dim) to (B, L, dim).

        Args:
            x: the tokens.
            memory: (B, M, memory_dim), or what `prepare` returned for it.
            mask: a `Mask`, or booleans with True = attend, (L, M) or (B, H or 1, L, M).
            lengths: (B,) number of real tokens of each memory; not with a prepared memory.
        """
        return self.attend(x, memory, mask=mask, lengths=lengths).output

    def attend(
        self,
        x: Tensor,
        memory: Tensor | Cache,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
    ) -> AttentionOutput:
        """What `forward` does, with statistics: `want={"weights"}` and others."""
        check_tokens(x, self.dim, "x", self.out)
        if not isinstance(memory, Cache):
            memory = self.prepare(memory, lengths)
        elif lengths is not None:
            raise ValueError("lengths belong to prepare(memory, lengths), which made this memory")
        elif memory.key is None:
            raise ValueError("memory is an empty Cache; make it with prepare(memory, lengths)")
        assert memory.value is not None
        # One memory for all sequences broadcasts; any other mismatch would broadcast wrongly or fail
        # deep inside an engine.
        given = memory.value.shape[0]
        if given != 1 and given != x.shape[0]:
            raise ValueError(
                f"memory is for {given} sequences, but x has {x.shape[0]}; give one for each, one "
                "for all, or reorder it with memory.reorder(index)"
            )
        seen = _as_mask(mask, x, memory.value.shape[-2]) & memory.mask()
        return self.attend_over(self.queries(x), memory, seen, None, want)

    def extra_repr(self) -> str:
        """Sizes, and what is set."""
        return f"{super().extra_repr()}, memory_dim={self.memory_dim}"


def _as_mask(mask: Mask | Tensor | None, x: Tensor, keys: int) -> Mask:
    """The mask given as a `Mask`, checked for x (B, L, dim) and `keys` keys; None hides nothing."""
    if mask is None:
        return Mask()
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"mask must be a Mask or a boolean tensor, got {describe(mask)}; for example "
            "mask=Mask.causal()"
        )
    # A common mistake is a padding mask (batch, length). If batch and length are equal it cannot be
    # told from (query length, key length), which is what the documentation promises.
    if mask.ndim == 2:
        (rows, columns), (batch, length, _) = mask.shape, x.shape
        if columns == keys and rows == batch and rows != length and rows != 1:
            raise ValueError(
                f"mask of shape ({rows}, {columns}) looks like (batch, length), but two dims are "
                f"(query length, key length) = ({length}, {keys}); padding is lengths=[...], how "
                "many tokens of each sequence are real"
            )
    return Mask.dense(mask)


def _check_position(position: object, layer: SelfAttention) -> None:
    if position is None:
        return
    if isinstance(position, Alibi):
        if position.heads != layer.heads:
            raise ValueError(
                f"Alibi has {position.heads} heads, but there are {layer.heads}; use "
                f"Alibi({layer.heads})"
            )
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
        raise ValueError(
            f"Rotary was built for heads of width {position.dim}, but they have {width}; use "
            f"Rotary({width})"
        )
    # `queries` and `keys` apply the outermost norm before the rotation. A norm further inside is part
    # of `compare` and would act after it.
    inside = layer.compare
    while isinstance(inside, Stabilized):
        if isinstance(inside, Normalized):
            raise ValueError(
                "Rotary turns normalised heads, so that Normalized must be the outermost "
                f"stabiliser, with what is around it inside: Normalized(..., {width}), or qk_norm="
            )
        inside = inside.score
