"""Transformer blocks with any score: pre or post norm, a cache for generation.

Shape legend: B batch, L tokens, M tokens of the memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from regard.arguments import check_sizes
from regard.describe import describe
from regard.engines.base import Attended
from regard.mask import Mask
from regard.nn.position import Alibi, Rotary
from regard.nn.transformer.cache import EMPTY, Cache, Counts, begin, check_tokens
from regard.nn.transformer.heads import linear
from regard.nn.transformer.layers import CrossAttention, SelfAttention
from regard.scores import Score

# Each with the eps its users expect; RMSNorm's own default depends on the dtype.
NORMS = {"layer": partial(nn.LayerNorm, eps=1e-5), "rms": partial(nn.RMSNorm, eps=1e-6)}
# What attention to a memory takes as the self-attention does.
OF_ATTENTION = (
    "key_heads",
    "head_dim",
    "value_dim",
    "qk_norm",
    "sink",
    "bias",
    "dropout",
    "engine",
)
ACTIVATIONS = {"gelu": gelu, "relu": relu, "swiglu": silu}


class Passed(NamedTuple):
    """What a block gives back.

    Args:
        output: (B, L, dim).
        cache: the tokens so far.
        own: the self-attention's output and the statistics asked for.
        memory: the same of the attention to the memory, None without one.
    """

    output: Tensor
    cache: Cache
    own: Attended
    memory: Attended | None = None


class FeedForward(nn.Module):
    """Two linear layers and an activation for each token: `W_2 f(W_1 x)`.

    Args:
        dim: width of the tokens.
        hidden: width between the layers; default 4 * dim.
        activation: "gelu", "relu", or "swiglu": `W_2 (silu(W_g x) * W_1 x)`, a third matrix.
        bias: add biases.
        dropout: of the hidden units, while training.

    Weights start normal with variance 1 / fan-in, biases 0.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        activation: str = "gelu",
        *,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = 4 * dim if hidden is None else hidden
        check_sizes(dim=dim, hidden=hidden)
        self.activation = _choice(activation, "activation", ACTIVATIONS)
        self.enter, self.leave = linear(dim, hidden, bias), linear(hidden, dim, bias)
        self.gate = linear(dim, hidden, bias) if activation == "swiglu" else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, dim) to (B, L, dim)."""
        function = ACTIVATIONS[self.activation]
        if self.gate is None:
            hidden = function(self.enter(x))
        else:
            hidden = function(self.gate(x)) * self.enter(x)
        return self.leave(self.dropout(hidden))


class Residual(nn.Module):
    """A norm and a shortcut around a layer f: `x + f(norm(x))` (pre) or `norm(x + f(x))` (post)."""

    def __init__(self, dim: int, norm: str, norm_type: str, dropout: float) -> None:
        super().__init__()
        self.pre = _choice(norm, "norm", ("pre", "post")) == "pre"
        self.norm = NORMS[_choice(norm_type, "norm_type", NORMS)](dim)
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        """What the layer sees of x."""
        return normalize(self.norm, x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The shortcut and what the layer made of x."""
        x = x + self.dropout(y)
        return x if self.pre else normalize(self.norm, x)


class Block(nn.Module):
    """What both blocks share: self-attention and the feed-forward layer, with norm and shortcut."""

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        feedforward: int | None = None,
        norm: Literal["pre", "post"] = "pre",
        norm_type: Literal["layer", "rms"] = "layer",
        activation: Literal["gelu", "relu", "swiglu"] = "gelu",
        dropout: float = 0.0,
        bias: bool = False,
        **attention,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.attention = SelfAttention(dim, heads, score, bias=bias, dropout=dropout, **attention)
        self.around_attention = Residual(dim, norm, norm_type, dropout)
        self.feedforward = FeedForward(dim, feedforward, activation, bias=bias, dropout=dropout)
        self.around_feedforward = Residual(dim, norm, norm_type, dropout)

    def look_around(
        self, x: Tensor, cache: Cache, mask: Mask | Tensor | None, want: Iterable[str]
    ) -> tuple[Tensor, Cache, Attended]:
        """The self-attention with its norm and shortcut."""
        entered = self.around_attention.enter(x)
        own, cache = self.attention.attend(entered, cache, want=want, mask=mask)
        return self.around_attention.leave(x, own.output), cache, own

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward layer with its norm and shortcut."""
        y = self.feedforward(self.around_feedforward.enter(x))
        return self.around_feedforward.leave(x, y)


class EncoderBlock(Block):
    """Self-attention and a feed-forward layer, each with norm, dropout and shortcut.

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: any score, as in `SelfAttention`.
        feedforward: hidden width of the feed-forward layer; default 4 * dim.
        norm: "pre", which trains without warm-up, or "post", as in the original Transformer.
        norm_type: "layer" or "rms".
        activation: "gelu", "relu" or "swiglu".
        dropout: of weights, hidden units and what is added to the shortcut, while training.
        position: a `Rotary`, an `Alibi` or None.
        bias: add biases to all linear layers.
        attention: key_heads, head_dim, value_dim, qk_norm, sink and engine, as in `Heads`.

    Linear layers start normal with variance 1 / fan-in, biases 0, norms 1.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        position: Rotary | Alibi | None = None,
        **options,
    ) -> None:
        super().__init__(dim, heads, score, position=position, **options)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim); mask, lengths and start as in `SelfAttention`."""
        return self.attend(x, mask=mask, lengths=lengths, start=start).output

    def attend(
        self,
        x: Tensor,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
    ) -> Passed:
        """What `forward` does, with statistics: `want={"weights"}`."""
        check_tokens(x, self.dim, "x", self.attention.out)
        padding = begin(EMPTY, x, lengths, start)
        x, cache, own = self.look_around(padding.hide(x), padding, mask, want)
        return Passed(self.feed(x), cache, own)


class DecoderBlock(Block):
    """Causal self-attention, attention to a memory if there is one, and a feed-forward layer.

    Args:
        dim: width of the tokens.
        heads: query heads.
        score: any score, as in `SelfAttention`.
        position: a `Rotary` or an `Alibi` for the self-attention, or None.
        memory_dim: width of the memory to attend to; None for a block without one.
        memory_score: the score of tokens against the memory; default a copy of `score` with
            parameters drawn anew.
        options: everything else as in `EncoderBlock`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        score: Score | str | None = None,
        *,
        position: Rotary | Alibi | None = None,
        memory_dim: int | None = None,
        memory_score: Score | str | None = None,
        **options,
    ) -> None:
        super().__init__(dim, heads, score, position=position, causal=True, **options)
        self.cross = self.around_cross = None
        if memory_dim is None:
            if memory_score is not None:
                raise ValueError("memory_score is given, but no memory_dim: there is no memory")
            return
        own = {name: options[name] for name in OF_ATTENTION if name in options}
        memory_score = anew(score) if memory_score is None else memory_score
        self.cross = CrossAttention(dim, heads, memory_dim, memory_score, **own)
        # As around the self-attention, norm and all; its parameters are all at their start.
        self.around_cross = copy.deepcopy(self.around_attention)

    def remember(self, memory: Tensor, lengths: Counts = None) -> Cache:
        """Project and lower a memory (B, M, memory_dim) once, to pass at every step."""
        if self.cross is None:
            raise ValueError("this block has no memory; build it with memory_dim=")
        return self.cross.remember(memory, lengths)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | Cache | None = None,
        *,
        mask: Mask | Tensor | None = None,
        lengths: Counts = None,
        start: Counts = None,
        memory_lengths: Counts = None,
    ) -> Tensor:
        """(B, L, dim) to (B, L, dim).

        `memory` is (B, M, memory_dim) with `memory_lengths` (B,), or what `remember` gave; the
        rest as in `SelfAttention`.
        """
        check_tokens(x, self.dim, "x", self.attention.out)
        padding = begin(EMPTY, x, lengths, start)
        if memory_lengths is not None:
            if not isinstance(memory, Tensor):
                raise ValueError("memory_lengths go with a memory tensor, or into remember()")
            memory = self.remember(memory, memory_lengths)
        return self.attend(x, padding, memory, mask=mask).output

    def step(
        self,
        x: Tensor,
        cache: Cache = EMPTY,
        memory: Tensor | Cache | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """The output for the next tokens, one or more, and the grown cache.

        Begin with `Cache()`, or `Cache(start=...)` where sequences begin with padding.
        """
        passed = self.attend(x, cache, memory, mask=mask)
        return passed.output, passed.cache

    def attend(
        self,
        x: Tensor,
        cache: Cache = EMPTY,
        memory: Tensor | Cache | None = None,
        *,
        want: Iterable[str] = (),
        mask: Mask | Tensor | None = None,
    ) -> Passed:
        """What `forward` and `step` do, with statistics: `want={"weights"}`."""
        check_tokens(x, self.dim, "x", self.attention.out)
        if memory is None and self.cross is not None:
            raise ValueError("the block was built with memory_dim=, but no memory is given")
        if memory is not None and self.cross is None:
            raise ValueError("memory is given, but the block was built without memory_dim=")
        cache = begin(cache, x)
        x, cache, own = self.look_around(cache.hide(x), cache, mask, want)
        seen = None
        if self.cross is not None and self.around_cross is not None and memory is not None:
            seen = self.cross.attend(self.around_cross.enter(x), memory, want=want)
            x = self.around_cross.leave(x, seen.output)
        return Passed(self.feed(x), cache, own, seen)


def normalize(norm: nn.Module, x: Tensor) -> Tensor:
    """The norm in the dtype of its own parameters: under autocast x may be narrower."""
    return norm(x.to(norm.weight.dtype))  # type: ignore[arg-type] # LayerNorm and RMSNorm have it


def anew(score: Score | str | None) -> Score | str | None:
    """A copy of a score with its parameters drawn anew, where it draws them."""
    if not isinstance(score, Score):
        return score
    score = copy.deepcopy(score)
    for module in score.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return score


def _choice(given: str, name: str, choices: Iterable[str]) -> str:
    if given not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {describe(given)}")
    return given
