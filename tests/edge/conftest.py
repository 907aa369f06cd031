from __future__ import annotations

import pytest

from regard.engines.cpu import tiles


@pytest.fixture
def tiny_tiles(monkeypatch: pytest.MonkeyPatch) -> int:
    """Tiles of the cpu engine as small as they get: one query by `tiny_tiles` keys."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 1)
    size = tiles.tile_sizes(tiles.TiledShape(2, 2, 2, 100, 100, 4))
    assert size[:4] == (1, 1, 1, 1)
    return size[4]
