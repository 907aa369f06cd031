"""Borders of tiles: lengths around a block, and masks that hide whole blocks."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask
from regard.engines.cpu import tiles

from .tools import INF, OWN_PAIRS, assert_same, gradients, inputs, make_score, run

BLOCK = 16  # the smallest block of keys; `tiny_tiles` checks that it is this
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1)
WANT = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")


def check(name: str, queries: int, keys: int, **options) -> None:
    """Output, statistics and gradients of the cpu engine are those of the reference."""
    score, tensors = make_score(name, 2), inputs(1, 2, queries, keys)
    found = []
    for engine in ("cpu", "reference"):
        result = regard.attend(*tensors, score, want=WANT, engine=engine, **options)
        lse = torch.where(result.lse == -INF, 0, result.lse)
        mixed = torch.cat([result.output, lse.unsqueeze(-1), result.entropy.unsqueeze(-1)], -1)
        found.append([*result, *gradients(mixed, [*tensors, *score.parameters()])])
    assert_same(*found)


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("queries", LENGTHS)
@pytest.mark.parametrize("name", ["bilinear", "gaussian", "additive", "gatv2"])
def test_lengths_around_a_block(name, queries, keys, tiny_tiles):
    """flash-attention#334, pytorch#191937 (L % 32 == 1): the last, partial block went wrong."""
    assert tiny_tiles == BLOCK
    check(name, queries, keys)


@pytest.mark.parametrize("elements", [1, 3 * BLOCK * 4, 7 * BLOCK * 4, 2**19])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_the_size_of_tiles_does_not_matter(name, elements, monkeypatch):
    """Tiles of one row, of three rows (the last is cut), of several heads, of everything."""
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", elements)
    check(name, 10, 35, mask=Mask.causal())


@pytest.mark.parametrize("hidden_blocks", [1, 2, 3])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_first_blocks_fully_masked(name, hidden_blocks, tiny_tiles):
    """pytorch#127055, #130014: -inf - -inf in the first blocks of a lazy softmax."""
    keys = 3 * tiny_tiles + 5
    allowed = (torch.arange(keys) >= hidden_blocks * tiny_tiles).expand(4, keys).clone()
    allowed[1] = False  # a row where every block is hidden
    allowed[2] = True  # and one where none is
    check(name, 4, keys, mask=allowed)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_blocks_masked_between_visible_ones(name, tiny_tiles):
    keys = 5 * tiny_tiles
    block = torch.arange(keys) // tiny_tiles
    check(name, 3, keys, mask=(block % 2 == 1).expand(3, keys))


@pytest.mark.parametrize("left", [0, BLOCK - 1, BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_windows_that_start_at_borders(name, left, tiny_tiles):
    """Blocks before the window are skipped, not read: also where it starts in mid-block."""
    length = 3 * tiny_tiles + 1
    check(name, length, length, mask=Mask.causal() & Mask.window(left=left))


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_lengths_that_end_at_borders(name, tiny_tiles):
    keys = 3 * tiny_tiles
    ends = [0, 1, tiny_tiles - 1, tiny_tiles, tiny_tiles + 1, keys]
    score, tensors = make_score(name, 1), inputs(len(ends), 1, 3, keys)
    mask = Mask.lengths(keys=torch.tensor(ends))
    expected = run(tensors, score, "reference", mask=mask)
    output = run(tensors, score, "cpu", mask=mask)
    assert_same([output[0], *output[1]], [expected[0], *expected[1]])


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_segments_across_borders(name, tiny_tiles):
    length = 3 * tiny_tiles
    ids = torch.arange(length) // (tiny_tiles - 3)
    ids[-2:] = -1
    check(name, length, length, mask=Mask.segments(ids) & Mask.causal())


@pytest.mark.parametrize("order", ["rising", "falling"])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_the_largest_logit_may_come_in_any_block(name, order, tiny_tiles):
    """The running maximum is raised at every block, or at none after the first."""
    keys = 4 * tiny_tiles
    bias = torch.linspace(-300, 300, keys, dtype=torch.float64).view(1, keys)
    check(name, 2, keys, bias=bias if order == "rising" else bias.flip(-1))


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_split_and_merge_over_keys(engine, name):
    """Two halves of the keys, merged by their LSE, are the whole: what ring attention rests on."""
    score, (q, k, v) = make_score(name, 2), inputs(keys=2 * BLOCK + 3)
    whole = regard.attend(q, k, v, score, want="lse", engine=engine)
    cut = BLOCK - 2
    parts = [
        regard.attend(q, k[:, :, s], v[:, :, s], score, want="lse", engine=engine)
        for s in (slice(None, cut), slice(cut, None))
    ]
    lse = torch.logaddexp(parts[0].lse, parts[1].lse)
    merged = sum((part.lse - lse).exp().unsqueeze(-1) * part.output for part in parts)
    assert_same([merged, lse], [whole.output, whole.lse], rtol=1e-12)
