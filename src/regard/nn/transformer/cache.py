"""What attention keeps of the tokens it has seen: a value, passed in and returned, never state.

Shape legend: B batch, K key heads, L tokens so far, V value width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.arguments import Counts, check_counts
from regard.describe import describe
from regard.forms import KeySide
from regard.mask import Mask
from regard.nn.padding import real_tokens, zero_padding
from regard.scores import Score


def tokens_in(value: Tensor | None) -> int:
    """How many tokens there are values for; older compilers cannot trace a tuple's property."""
    return 0 if value is None else value.shape[-2]


class Cache(NamedTuple):
    """The lowered keys and the values of the tokens so far, for one attention layer.

    `Cache()` is empty. Nothing in it changes: `append` and `reorder` give new ones, so that a
    search may keep and drop any of them.

    Args:
        key: the keys as the score lowered them; None while empty.
        value: (B, K, L, V); None while empty.
        left_padding: (B,) how many tokens of padding each sequence begins with, None for none.
            They are hidden, and the first real token has position 0.
        stop: (B,) where each sequence's padding at the end begins, None for no padding.
    """

    key: KeySide | None = None
    value: Tensor | None = None
    left_padding: Tensor | None = None
    stop: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens it holds, padding included."""
        return tokens_in(self.value)

    def append(self, score: Score, key: Tensor, value: Tensor) -> Cache:
        """These tokens and then later ones: keys (B, K, L, W), which `score` lowers, and values."""
        if self.key is None or self.value is None:
            return Cache(score.key(key), value, self.left_padding, self.stop)
        if self.stop is not None:
            raise ValueError(
                "this cache has padding at its end, where new tokens would follow; pad the "
                "sequences on the left and use left_padding="
            )
        own = self.value
        if own.shape[1] != value.shape[1] or own.shape[-1] != value.shape[-1]:
            raise ValueError(
                f"the cache holds values of {own.shape[1]} heads of width {own.shape[-1]}, but the "
                f"new ones have {value.shape[1]} of width {value.shape[-1]}: it comes from another "
                "layer"
            )
        whole = score.extend(self.key, key)
        return Cache(whole, torch.cat([own, value], -2), self.left_padding, self.stop)

    def reorder(self, index: Tensor) -> Cache:
        """The sequences of `index` (any number, also more than once), as beam search needs."""
        return Cache(
            None if self.key is None else self.key.reorder(index),
            None if self.value is None else self.value.index_select(0, index),
            None if self.left_padding is None else self.left_padding.index_select(0, index),
            None if self.stop is None else self.stop.index_select(0, index),
        )

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Where the next `count` tokens stand: (count,), or (B, count) with padding before them.

        Padding itself stands at 0: it is hidden, but must stay in the range of a learned position.
        """
        before = tokens_in(self.value)
        place = torch.arange(before, before + count, device=device)
        if self.left_padding is None:
            return place
        return (place - self.left_padding.unsqueeze(-1)).clamp(min=0)

    def hide(self, x: Tensor) -> Tensor:
        """Zero the padding among the next tokens x (B, count, dim), whatever it holds."""
        before = tokens_in(self.value)
        real = real_tokens(x.shape[1], self.left_padding, self.stop, x.device, before)
        return zero_padding(x, real)

    def mask(self) -> Mask:
        """Which of its tokens are real."""
        mask = Mask() if self.stop is None else Mask.lengths(keys=self.stop)
        if self.left_padding is None:
            return mask
        real = real_tokens(
            tokens_in(self.value), self.left_padding, device=self.left_padding.device
        )
        assert real is not None
        return mask & Mask.dense(real[:, None, None])

    def __repr__(self) -> str:
        """The sizes, without the numbers."""
        if self.value is None:
            return "Cache(length=0)"
        batch, heads, length, _ = self.value.shape
        return f"Cache(length={length}, batch={batch}, heads={heads})"


class DecoderCache(NamedTuple):
    """What a `Decoder` keeps: a `Cache` for each block, and one of its memory, if it has one."""

    own: tuple[Cache, ...]
    memory: tuple[Cache, ...] = ()

    @property
    def length(self) -> int:
        """How many tokens were decoded, padding included."""
        return self.own[0].length

    def reorder(self, index: Tensor) -> DecoderCache:
        """The sequences of `index`, as beam search needs."""
        return DecoderCache(
            tuple(cache.reorder(index) for cache in self.own),
            tuple(cache.reorder(index) for cache in self.memory),
        )

    def __repr__(self) -> str:
        """The sizes, without the numbers."""
        memory = f", memory={self.memory[0]!r}" if self.memory else ""
        return f"DecoderCache(blocks={len(self.own)}, own={self.own[0]!r}{memory})"


class Checked(NamedTuple):
    """Padding that a stack has checked, and zeroed in what it passes on: its blocks need not again.

    Both caches are empty but for the padding, of the tokens and of the memory.
    """

    own: Cache
    memory: Cache


EMPTY = Cache()


def begin(
    cache: Cache,
    x: Tensor,
    lengths: Counts | None = None,
    left_padding: Counts | None = None,
    name: str = "lengths",
) -> Cache:
    """The cache that x (B, L, dim) is added to: an empty one learns the padding of x.

    `name` is what the lengths are called where they were given.
    """
    if not isinstance(cache, Cache):
        raise TypeError(
            f"cache must be a Cache, of which Cache() is empty, got {describe(cache)}; a memory "
            "goes into CrossAttention, or into a block or Decoder that was built with memory_dim="
        )
    if cache.value is not None and cache.value.shape[0] != x.shape[0]:
        raise ValueError(
            f"the cache holds {cache.value.shape[0]} sequences, but {x.shape[0]} are given; reorder "
            "it with cache.reorder(index)"
        )
    if cache.key is not None:
        if lengths is None and left_padding is None:
            return cache
        raise ValueError(
            "lengths and left_padding are given with the first tokens, not with later ones"
        )
    given = left_padding is not None
    left = left_padding if given else cache.left_padding
    stop = cache.stop if lengths is None else lengths
    return Cache(
        None,
        None,
        # What a cache brings may be longer than the first chunk of a prompt.
        None if left is None else check_counts(left, "left_padding", x, bounded=given),
        None if stop is None else check_counts(stop, name, x),
    )
