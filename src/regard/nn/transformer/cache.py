"""What attention keeps of the tokens it has seen: a value, passed in and returned, never state.

Shape legend: B batch, K key heads, L tokens so far, V value width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.arguments import autocast_enabled, readable
from regard.describe import describe
from regard.forms import KeySide
from regard.mask import Mask

# One integer for each sequence.
Counts = Tensor | Sequence[int] | None


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
        start: (B,) how many tokens of padding each sequence begins with, None for none. They are
            hidden, and the first real token has position 0.
        stop: (B,) where each sequence's padding at the end begins, None for no padding.
    """

    key: KeySide | None = None
    value: Tensor | None = None
    start: Tensor | None = None
    stop: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens it holds, padding included."""
        return tokens_in(self.value)

    def append(self, key: KeySide, value: Tensor) -> Cache:
        """These tokens and then later ones."""
        if self.key is None or self.value is None:
            return Cache(key, value, self.start, self.stop)
        if self.stop is not None:
            raise ValueError(
                "this cache has padding at its end, where new tokens would follow; pad the "
                "sequences on the left and use Cache(start=...)"
            )
        if type(key) is not type(self.key):
            raise TypeError(
                f"the cache holds keys of the form {type(self.key).__name__}, but the new ones "
                f"are {type(key).__name__}: it comes from a layer with another score"
            )
        for name, own, new in (("keys", self.key[0], key[0]), ("values", self.value, value)):
            if own.shape[1] != new.shape[1] or own.shape[-1] != new.shape[-1]:
                raise ValueError(
                    f"the cache holds {name} of {own.shape[1]} heads of width {own.shape[-1]}, but "
                    f"the new ones have {new.shape[1]} of width {new.shape[-1]}: it comes from "
                    "another layer"
                )
        whole = self.key.append(key)  # type: ignore[arg-type] # of one type, as just checked
        return Cache(whole, torch.cat([self.value, value], -2), self.start, self.stop)

    def reorder(self, index: Tensor) -> Cache:
        """The sequences of `index` (any number, also more than once), as beam search needs."""
        return Cache(
            None if self.key is None else self.key.reorder(index),
            None if self.value is None else self.value.index_select(0, index),
            None if self.start is None else self.start.index_select(0, index),
            None if self.stop is None else self.stop.index_select(0, index),
        )

    def positions(self, count: int, device: torch.device) -> Tensor:
        """Where the next `count` tokens stand: (count,), or (B, count) with padding at the start.

        Padding itself stands at 0: it is hidden, but must stay in the range of a learned position.
        """
        before = tokens_in(self.value)
        place = torch.arange(before, before + count, device=device)
        if self.start is None:
            return place
        return (place - self.start.unsqueeze(-1)).clamp(min=0)

    def hide(self, x: Tensor) -> Tensor:
        """Zero the padding among the next tokens x (B, count, dim), whatever it holds.

        NaN in padding would otherwise reach the gradient of projections: 0 * NaN is NaN.
        """
        if self.start is None and self.stop is None:
            return x
        before = tokens_in(self.value)
        place = torch.arange(before, before + x.shape[1], device=x.device)
        real = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        if self.start is not None:
            real = real & (place >= self.start.unsqueeze(-1))
        if self.stop is not None:
            real = real & (place < self.stop.unsqueeze(-1))
        return torch.where(real.unsqueeze(-1), x, 0)

    def mask(self) -> Mask | None:
        """Which of its tokens are real; None for all."""
        mask = None if self.stop is None else Mask.lengths(keys=self.stop)
        if self.start is None:
            return mask
        place = torch.arange(tokens_in(self.value), device=self.start.device)
        real = Mask.dense((place >= self.start.unsqueeze(-1))[:, None, None])
        return real if mask is None else mask & real


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


EMPTY = Cache()


def begin(cache: Cache, x: Tensor, lengths: Counts = None, start: Counts = None) -> Cache:
    """The cache that x (B, L, dim) is added to: an empty one learns the padding of x."""
    if not isinstance(cache, Cache):
        raise TypeError(f"cache must be a Cache, of which Cache() is empty, got {describe(cache)}")
    if cache.value is not None and cache.value.shape[0] != x.shape[0]:
        raise ValueError(
            f"the cache holds {cache.value.shape[0]} sequences, but {x.shape[0]} are given; reorder "
            "it with cache.reorder(index)"
        )
    if lengths is None and start is None:
        if cache.key is not None:
            return cache
        # The padding may be longer than the first chunk of a prompt.
        start = check_counts(cache.start, "start", x, bounded=False)
        return Cache(None, None, start, check_counts(cache.stop, "stop", x))
    if cache.key is not None:
        raise ValueError("lengths and start are given with the first tokens, not with later ones")
    return Cache(None, None, check_counts(start, "start", x), check_counts(lengths, "lengths", x))


def check_tokens(x: Tensor, dim: int, name: str, layer: nn.Linear | None = None) -> None:
    """Refuse what is not (B, L, dim), or not of the dtype and device of the layer it comes to."""
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != dim:
        one = f"; a single sequence is {name}.unsqueeze(0)" if getattr(x, "ndim", 0) == 2 else ""
        raise ValueError(f"{name} must be (batch, length, {dim}), got {describe(x)}{one}")
    weight = None if layer is None else layer.weight
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return  # a quantised layer has rules of its own
    if not x.is_floating_point() or (x.dtype != weight.dtype and not autocast_enabled(x)):
        raise TypeError(
            f"{name} is {x.dtype} but the layer is {weight.dtype}; cast one, or use torch.autocast"
        )
    if x.device != weight.device:
        raise ValueError(
            f"{name} is on {x.device} but the layer is on {weight.device}; use "
            f"{name}.to({str(weight.device)!r})"
        )


def check_counts(counts: Counts, name: str, x: Tensor, bounded: bool = True) -> Tensor | None:
    """Counts of tokens (B,) for x (B, L, dim) on its device, at most L if bounded; or an error.

    None stays None.
    """
    if counts is None:
        return None
    if not isinstance(counts, Tensor):
        # On the CPU, where their range is checked; without any number torch would take floats.
        counts = torch.as_tensor(counts, device="cpu")
        counts = counts if counts.numel() else counts.long()
    if counts.dtype == torch.bool or counts.is_floating_point() or counts.is_complex():
        raise TypeError(
            f"{name} must be integers, got {counts.dtype}; a boolean mask is mask=, True = attend"
        )
    if counts.shape != x.shape[:1]:
        raise ValueError(
            f"{name} is one integer for each sequence, shape ({x.shape[0]},), got "
            f"{describe(counts)}"
        )
    if readable(counts):
        low, high = int(counts.min()), int(counts.max())
        if low < 0 or (bounded and high > x.shape[1]):
            most = f"to the length {x.shape[1]}" if bounded else "on"
            raise ValueError(f"{name} must be from 0 {most}, got {low} to {high}")
    return counts.to(x.device)
