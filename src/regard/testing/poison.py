"""Two ways to make mistakes show: NaN in fresh memory, and tiles that small inputs fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.engines.cpu import tiles


def _filled(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def poisoned_allocate(*args: Any, **kwargs: Any) -> Tensor:
        fresh = allocate(*args, **kwargs)
        with torch.no_grad():
            if fresh.is_floating_point() or fresh.is_complex():
                return fresh.fill_(torch.nan)
            return fresh if fresh.dtype == torch.bool else fresh.fill_(torch.iinfo(fresh.dtype).min)

    return poisoned_allocate


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what `empty`, `empty_like`, `empty_strided` and `new_empty` return with NaN.

    Memory that is read before it is written holds, as a rule, numbers that look right: an old
    result of the same shape, or zeros. With NaN in it the mistake reaches the output. Integers get
    their lowest value.
    """
    places = [
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (Tensor, "new_empty"),
    ]
    saved = [(place, name, place.__dict__.get(name)) for place, name in places]
    for place, name in places:
        setattr(place, name, _filled(getattr(place, name)))
    try:
        yield
    finally:
        for place, name, own in saved:
            if own is None:  # inherited from the class below
                delattr(place, name)
            else:
                setattr(place, name, own)


@contextmanager
def small_tiles(elements: int = 512) -> Iterator[None]:
    """Let the cpu engine cut its work into tiles of at most `elements` floats.

    Its tiles hold 2**19, so that an input small enough to test quickly is one tile: the online
    softmax, the last cut tile and tiles that are hidden altogether would go untested.
    """
    saved = tiles.TILE_ELEMENTS
    tiles.TILE_ELEMENTS = elements
    try:
        yield
    finally:
        tiles.TILE_ELEMENTS = saved
