"""Transformer blocks with any score: pre or post norm, a cache for generation.

Shape legend: B batch, L tokens, M tokens of the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import NamedTuple, Unpack

from torch import Tensor, nn

from regard.arguments import Counts, check_sizes
from regard.describe import describe
from regard.engines.base import Attended
from regard.mask import Mask
from regard.nn.linear import reset_all
from regard.nn.transformer.cache import EMPTY, Cache, Checked, begin
from regard.nn.transformer.feedforward import FeedForward, Residual
from regard.nn.transformer.heads import check_tokens
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.nn.transformer.options import BlockOptions, attention_options, check_keywords
from regard.scores import Score


class BlockOutput(NamedTuple):
    """The result of `attend` of a block.

    Args:
        output: (B, L, dim).
        cache: the tokens so far.
        own: output of the self-attention, with the statistics asked for.
        memory: the same for the attention to the memory; None without one.
    """

    output: Tensor
    cache: Cache
    own: Attended
    memory: Attended | None = None


class Block(nn.Module):
    """Base class of blocks: self-attention and a feed-forward layer, each with norm and residual."""

    def __init__(
        self, dim: int, heads: int, score: Score | str | None, causal: bool, options: BlockOptions
    ) -> None:
        super().__init__()
        norm, norm_type = options.get("norm", "pre"), options.get("norm_type", "layer")
        bias, dropout = options.get("bias", False), options.get("dropout", 0.0)
        check_sizes(feedforward=options.get("feedforward"))  # by its name here
        self.dim = dim
        self.attention = SelfAttention(
            dim,
            heads,
            score,
            causal=causal,
            position=options.get("position"),
            **attention_options(options),
        )
        self.around_attention = Residual(dim, norm, norm_type, dropout)
        self.feedforward = FeedForward(
            dim,
            options.get("feedforward"),
            options.get("activation", "gelu"),
            bias=bias,
            dropout=dropout,
        )
        self.around_feedforward = Residual(dim, norm, norm_type, dropout)

    def look_around(
        self, cache: Cache, x: Tensor, want: Iterable[str], mask: Mask | Tensor | None
    ) -> tuple[Tensor, Cache, Attended]:
        """The self-attention with its norm and residual connection."""
        seen = self.attention.attend_after(cache, self.around_attention.enter(x), want, mask)
        return self.around_attention.leave(x, seen.output), seen.cache, seen.attended

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward layer with its norm and residual connection."""
        y = self.feedforward(self.around_feedforward.enter(x))
        return self.around_feedforward.leave(x, y)


class EncoderBlock(Block):
    """Encoder block: self-attention and a feed-forward layer, each with norm, dropout and residual.

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: any score, by name or built; see `SelfAttention`.
        position: a `Rotary`, an `Alibi` or None.
        feedforward: hidden width of the feed-forward layer; default 4 * dim.
        norm: "pre", the default, which trains without warm-up, or "post", as in the original
            Transformer.
        norm_type: "layer", the default, or "rms".
        activation: "gelu", the default, "relu" or "swiglu".
        key_heads: heads of keys and values, a divisor of `heads`; default `heads`.
        width: width of queries and keys for each head; default the score's own, or dim / heads.
        value_dim: width of the values for each head; default dim / heads.
        qk_norm: "rms" or "layer": normalise projected queries and keys, before they are turned.
        sink: learn a logit for each head of looking at nothing.
        bias: add biases to all linear layers.
        dropout: of weights, hidden units and what is added to the shortcut, while training.
        engine: the name of an engine, as in `regard.attention`; None picks one.

    Linear layers start normal with variance 1 / fan-in, biases 0, norms 1.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        hint = (
            "an EncoderBlock sees all tokens; give the call mask=Mask.causal(), or use DecoderBlock"
        )
        check_keywords(self, options, BlockOptions, {"causal": hint})
        super().__init__(dim, heads, score, False, options)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
        checked: Checked | None = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim); mask, lengths and left_padding as in `SelfAttention`.

        A stack passes `checked` in place of lengths and left_padding, so that padding is checked
        and zeroed once and not in every block.
        """
        if checked is not None:
            return self.attend_after(checked.own, x, (), mask).output
        return self.attend(x, mask=mask, lengths=lengths, left_padding=left_padding).output

    def attend(
        self,
        x: Tensor,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
    ) -> BlockOutput:
        """What `forward` does, with statistics: `want={"weights"}`."""
        check_tokens(x, self.dim, "x", self.attention.out)
        padding = begin(EMPTY, x, lengths, left_padding)
        return self.attend_after(padding, padding.hide(x), want, mask)

    def attend_after(
        self, cache: Cache, x: Tensor, want: Iterable[str], mask: Mask | Tensor | None
    ) -> BlockOutput:
        """As `attend`, for a cache from `begin` and tokens whose padding is zeroed already."""
        check_tokens(x, self.dim, "x", self.attention.out)
        x, cache, own = self.look_around(cache, x, want, mask)
        return BlockOutput(self.feed(x), cache, own)


class DecoderBlock(Block):
    """Decoder block: causal self-attention, attention to a memory if any, a feed-forward layer.

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: any score, by name or built; see `SelfAttention`.
        memory_dim: width of the memory to attend to; None for a block without one.
        memory_score: the score of tokens against the memory; default a copy of `score` with newly
            drawn parameters.
        position: a `Rotary` or an `Alibi` for the self-attention, or None.
        feedforward: hidden width of the feed-forward layer; default 4 * dim.
        norm: "pre", the default, which trains without warm-up, or "post", as in the original
            Transformer.
        norm_type: "layer", the default, or "rms".
        activation: "gelu", the default, "relu" or "swiglu".
        key_heads: heads of keys and values, a divisor of `heads`; default `heads`.
        width: width of queries and keys for each head; default the score's own, or dim / heads.
        value_dim: width of the values for each head; default dim / heads.
        qk_norm: "rms" or "layer": normalise projected queries and keys, before they are turned.
        sink: learn a logit for each head of looking at nothing.
        bias: add biases to all linear layers.
        dropout: of weights, hidden units and what is added to the shortcut, while training.
        engine: the name of an engine, as in `regard.attention`; None picks one.

    Linear layers start normal with variance 1 / fan-in, biases 0, norms 1.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        memory_dim: int | None = None,
        memory_score: Score | str | None = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        hint = "a DecoderBlock always is; EncoderBlock sees all tokens"
        check_keywords(self, options, BlockOptions, {"causal": hint})
        super().__init__(dim, heads, score, True, options)
        self.cross = self.around_cross = None
        if memory_dim is None:
            if memory_score is not None:
                raise ValueError("memory_score is given, but no memory_dim: there is no memory")
            return
        if memory_score is None:
            # A copy, so that the two attentions do not share parameters, drawn again, so that they do
            # not start equal.
            memory_score = copy.deepcopy(score)
            if isinstance(memory_score, Score):
                reset_all(memory_score)
        self.cross = CrossAttention(
            dim, heads, memory_score, memory_dim=memory_dim, **attention_options(options)
        )
        # A copy is enough: the parameters of a norm start at constants, none is drawn.
        self.around_cross = copy.deepcopy(self.around_attention)

    def prepare(self, memory: Tensor, lengths: Counts | None = None) -> Cache:
        """Project and lower a memory (B, M, memory_dim) once, to pass at every step."""
        self._check_memory(memory)
        assert self.cross is not None
        return self.cross.prepare(memory, lengths)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Cache | None = None,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
        memory_lengths: Counts | None = None,
        checked: Checked | None = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim).

        `memory` is (B, M, memory_dim) with `memory_lengths` (B,), or what `prepare` returned; the
        rest is as in `SelfAttention`. A stack passes `checked` in place of all lengths and padding.
        """
        if checked is not None:
            if self.cross is not None and isinstance(memory, Tensor):
                memory = self.cross.prepare_after(checked.memory, memory)
            return self.attend_after(checked.own, x, memory, (), mask).output
        return self.attend(
            x,
            memory,
            mask=mask,
            lengths=lengths,
            left_padding=left_padding,
            memory_lengths=memory_lengths,
        ).output

    def step(
        self,
        x: Tensor,
        cache: Cache = EMPTY,
        memory: Tensor | Cache | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """The output for the next tokens, one or more, and the cache with them appended.

        Start with `Cache()`, or `Cache(left_padding=...)` if sequences start with padding.
        """
        result = self.attend(x, memory, cache=cache, mask=mask)
        return result.output, result.cache

    def attend(
        self,
        x: Tensor,
        memory: Tensor | Cache | None = None,
        *,
        cache: Cache = EMPTY,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts | None = None,
        left_padding: Counts | None = None,
        memory_lengths: Counts | None = None,
    ) -> BlockOutput:
        """What `forward` and `step` do, with statistics: `want={"weights"}`."""
        check_tokens(x, self.dim, "x", self.attention.out)
        cache = begin(cache, x, lengths, left_padding)
        if memory_lengths is not None:
            if not isinstance(memory, Tensor):
                raise ValueError("memory_lengths go with a memory tensor, or into prepare()")
            memory = self.prepare(memory, memory_lengths)
        return self.attend_after(cache, cache.hide(x), memory, want, mask)

    def attend_after(
        self,
        cache: Cache,
        x: Tensor,
        memory: Tensor | Cache | None,
        want: Iterable[str],
        mask: Mask | Tensor | None,
    ) -> BlockOutput:
        """As `attend`, for a cache from `begin` and tokens whose padding is zeroed already."""
        check_tokens(x, self.dim, "x", self.attention.out)
        self._check_memory(memory)
        x, cache, own = self.look_around(cache, x, want, mask)
        seen = None
        if self.cross is not None and self.around_cross is not None and memory is not None:
            found = self.cross.attend(self.around_cross.enter(x), memory, want=want)
            x, seen = self.around_cross.leave(x, found.output), found.attended
        return BlockOutput(self.feed(x), cache, own, seen)

    def _check_memory(self, memory: object) -> None:
        if memory is None and self.cross is not None:
            raise ValueError(
                f"the block was built with memory_dim={self.cross.memory_dim}, but no memory is "
                "given: call block(x, memory), or block.step(x, cache, memory)"
            )
        if memory is not None and self.cross is None:
            raise ValueError(
                f"memory is {describe(memory)}, but the block was built without memory_dim=; a "
                "cache of tokens is cache="
            )
