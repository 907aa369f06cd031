"""Two contexts that expose mistakes: NaN in fresh memory, and tiles that small inputs fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from regard.engines.compiled import inputs
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
    """Within this context `empty`, `empty_like`, `empty_strided` and `new_empty` return NaN.

    Fresh memory usually holds numbers that look right: zeros, or an old result of the same shape. So code
    that reads it before writing goes unnoticed. NaN makes the mistake reach the output. Integers get their
    lowest value.
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
    """Within this context the CPU engines use small tiles: of at most `elements` floats, or of 16 keys.

    Their usual tiles hold 2**21 floats, or 512 keys, so an input that is small enough to test quickly fits in
    one tile. Then the online softmax, a partial last tile and fully hidden tiles would go untested.
    """
    saved = tiles.TILE_ELEMENTS, inputs.TILE_KEYS
    tiles.TILE_ELEMENTS, inputs.TILE_KEYS = elements, 16
    try:
        yield
    finally:
        tiles.TILE_ELEMENTS, inputs.TILE_KEYS = saved
