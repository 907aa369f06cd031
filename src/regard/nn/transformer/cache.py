"""`Cache`: keys and values of earlier tokens, as a value that is passed in and returned.

No module holds state between calls, so a search can keep, drop and reorder caches freely.

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
    """The number of tokens in `value`.

    A function and not a property of `Cache`, which older compilers cannot trace on a tuple.
    """
    return 0 if value is None else value.shape[-2]


class Cache(NamedTuple):
    """The lowered keys and the values of the tokens so far, for one attention layer.

    `Cache()` is empty. A cache never changes: `append` and `reorder` return new ones.

    Args:
        key: the keys as the score lowered them; None while empty.
        value: (B, K, L, V); None while empty.
        left_padding: (B,) number of padding tokens at the start of each sequence; None for none.
            They are hidden, and the first real token has position 0.
        stop: (B,) index of the first padding token at the end of each sequence; None for none.
    """

    key: KeySide | None = None
    value: Tensor | None = None
    left_padding: Tensor | None = None
    stop: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens in the cache, padding included."""
        return tokens_in(self.value)

    def append(self, score: Score, key: Tensor, value: Tensor) -> Cache:
        """The cache with later tokens appended: keys (B, K, L, W), lowered by `score`, and values."""
        if self.key is None or self.value is None:
            return Cache(score.key(key), value, self.left_padding, self.stop)
        # New tokens would come after the padding at the end, and a causal mask counts from there.
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
        # Only the new keys are lowered, relative to the origin of the earlier ones (`Gaussian` has one).
        whole = score.extend(self.key, key)
        return Cache(whole, torch.cat([own, value], -2), self.left_padding, self.stop)

    def reorder(self, index: Tensor) -> Cache:
        """The cache of the sequences `index`, which may repeat, for beam search."""
        return Cache(
            None if self.key is None else self.key.reorder(index),
            None if self.value is None else self.value.index_select(0, index),
            None if self.left_padding is None else self.left_padding.index_select(0, index),
            None if self.stop is None else self.stop.index_select(0, index),
        )

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Positions of the next `count` tokens: (count,), or (B, count) with left padding.

        Padding gets position 0: it is hidden, but a learned position has to stay in range.
        """
        before = tokens_in(self.value)
        place = torch.arange(before, before + count, device=device)
        if self.left_padding is None:
            return place
        return (place - self.left_padding.unsqueeze(-1)).clamp(min=0)

    def hide(self, x: Tensor) -> Tensor:
        """The next tokens x (B, count, dim) with zeros at padding."""
        before = tokens_in(self.value)
        real = real_tokens(x.shape[1], self.left_padding, self.stop, x.device, before)
        return zero_padding(x, real)

    def mask(self) -> Mask:
        """The mask that hides the padding in the cache."""
        mask = Mask() if self.stop is None else Mask.lengths(keys=self.stop)
        if self.left_padding is None:
            return mask
        real = real_tokens(
            tokens_in(self.value), self.left_padding, device=self.left_padding.device
        )
        assert real is not None
        # A dense mask: `Mask.lengths` hides tokens at the end only.
        return mask & Mask.dense(real[:, None, None])

    def __repr__(self) -> str:
        """The sizes, without the numbers."""
        if self.value is None:
            return "Cache(length=0)"
        batch, heads, length, _ = self.value.shape
        return f"Cache(length={length}, batch={batch}, heads={heads})"


class DecoderCache(NamedTuple):
    """The cache of a `Decoder`: a `Cache` of tokens for each block, and one of the memory if any."""

    own: tuple[Cache, ...]
    memory: tuple[Cache, ...] = ()

    @property
    def length(self) -> int:
        """Number of tokens decoded, padding included."""
        return self.own[0].length

    def reorder(self, index: Tensor) -> DecoderCache:
        """The cache of the sequences `index`, for beam search."""
        return DecoderCache(
            tuple(cache.reorder(index) for cache in self.own),
            tuple(cache.reorder(index) for cache in self.memory),
        )

    def __repr__(self) -> str:
        """The sizes, without the numbers."""
        memory = f", memory={self.memory[0]!r}" if self.memory else ""
        return f"DecoderCache(blocks={len(self.own)}, own={self.own[0]!r}{memory})"


class Checked(NamedTuple):
    """Padding of tokens and memory that a stack has checked and zeroed, so that its blocks need not.

    Both caches hold the padding and no tokens.
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
    """The cache to append x (B, L, dim) to, checked; an empty one gets the padding of x.

    `name` is the name of the argument that gave the lengths, for error messages.
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
        # Left padding from a cache may be longer than the first chunk of a prompt, so it is only
        # bounded by the length of x if it was given with x.
        None if left is None else check_counts(left, "left_padding", x, bounded=given),
        None if stop is None else check_counts(stop, name, x),
    )
