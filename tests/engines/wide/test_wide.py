"""The wide kernels and their library products, in Triton's interpreter, beside the plain specification."""

import pytest
import torch

from regard.engines.hiding import NOTHING_HIDDEN, Hiding
from regard.engines.launching import interpreted
from regard.engines.wide import Wide, passes, reference, sizes
from regard.engines.wide.sizes import WideTile, chunk_rows, tile_for

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreted
HALF = torch.float16


def tensors(heads=2, queries=45, keys=70, width=128, columns=16):
    q, k = (0.3 * torch.randn(heads, length, width) for length in (queries, keys))
    v, grad = torch.randn(heads, keys, columns), torch.randn(heads, queries, columns)
    return tuple(x.to(HALF) for x in (q, k, v, grad))


def run(q, k, v, grad, hiding=NOTHING_HIDDEN, head=0):
    out = torch.full((*q.shape[:2], v.shape[2]), torch.nan, dtype=HALF)
    lse = torch.full(q.shape[:2], torch.nan)
    Wide().forward(q, k, v, hiding, head, out, lse)
    return out, lse, *Wide().backward(grad, q, k, v, hiding, head, out, lse)


def check(q, k, v, grad, hiding=NOTHING_HIDDEN, kept=None, tolerance=1e-3):
    found = run(q, k, v, grad, hiding)
    wide = [x.double() for x in (q, k, v)]
    wanted = (
        *reference.forward(*wide, hiding, kept),
        *reference.backward(grad.double(), *wide, hiding, kept),
    )
    empty = wanted[1] == -torch.inf
    assert torch.equal(found[1] == -torch.inf, empty)
    assert not found[0][empty].any() and not found[2][empty].any()
    for got, y in zip(found, wanted, strict=True):
        pair = (got.double(), y)
        if y.ndim == 2:  # the LSE, -inf where nothing is seen
            pair = tuple(torch.where(empty, 0, x) for x in pair)
        off = float((pair[0] - pair[1]).abs().max())
        assert off <= tolerance * float(pair[1].abs().max()) + 1e-5
    return found


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of 32 queries, so that few queries are many chunks."""
    monkeypatch.setattr(sizes, "CHUNK_BYTES", 0)
    monkeypatch.setattr(sizes, "ROW_STEP", 32)


def spans(heads, queries, keys):
    start = torch.randint(-1, keys, (heads, queries), dtype=torch.int32)
    return start, (start + torch.randint(0, 40, start.shape)).clamp(max=keys + 1).int()


@pytest.mark.parametrize("queries", [1, 32, 45, 100])
@pytest.mark.parametrize("keys", [1, 33, 64])
def test_without_a_mask(queries, keys, short_chunks):
    check(*tensors(queries=queries, keys=keys))


@pytest.mark.parametrize(("width", "columns"), [(64, 16), (320, 64), (64, 128), (512, 32)])
def test_widths(width, columns):
    check(*tensors(1, 33, 40, width, columns))


@pytest.mark.parametrize("length", [32, 70, 97])
def test_causal_chunks_leave_out_keys(length, short_chunks, monkeypatch):
    seen = []
    plain = passes.slopes_launch
    monkeypatch.setattr(
        passes, "slopes_launch", lambda s, rows, keys: seen.append(keys) or plain(s, rows, keys)
    )
    check(*tensors(queries=length, keys=length), Hiding(causal=True))
    assert seen == sorted({min(n + 32, length) for n in range(0, length, 32)}, reverse=True)


@pytest.mark.parametrize("heads", [1, 3])
def test_spans_of_all_heads_or_of_each(heads, short_chunks):
    start, stop = spans(heads, 45, 70)
    given = tensors(3)
    check(*given, Hiding(start=start, stop=stop))
    check(*given, Hiding(start=start))
    check(*given, Hiding(stop=stop))


def test_segments(short_chunks):
    ids = [torch.randint(-1, 3, (2, n)) for n in (45, 70)]
    check(*tensors(), Hiding(query_segment=ids[0], key_segment=ids[1]))


def test_a_causal_mask_with_ends(short_chunks):
    stop = torch.minimum(torch.arange(1, 71), torch.tensor([[70], [13]])).int()
    check(*tensors(queries=70), Hiding(causal=True, stop=stop))


def test_large_logits_and_far_apart():
    q, k, v, grad = tensors(1, 40, 40)
    check(20 * q, k, v, grad, tolerance=2e-3)


def kept_by(q, k, hiding, head=0):
    """Which weights are kept: values are the rows of an identity."""
    eye = torch.eye(k.shape[1], 128).to(HALF).expand(k.shape[0], -1, -1).contiguous()
    return run(q, k, eye, torch.zeros(*q.shape[:2], 128).to(HALF), hiding, head)[0]


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout(dropout, short_chunks):
    q, k, v, grad = tensors(4, 100, 96)
    hiding = Hiding(seed=torch.tensor(2**61 + 3), dropout=dropout)
    kept = kept_by(q, k, hiding)[..., :96] != 0
    check(q, k, v, grad, hiding, kept.double(), tolerance=2e-3)
    shares = kept.double()
    for dim in ((0, 1, 2), (0, 1), (0, 2), (1, 2)):
        mean = shares.mean(dim)
        count = shares.numel() // mean.numel()
        # Five deviations of the mean of so many independent draws.
        limit = 5 * (dropout * (1 - dropout) / count) ** 0.5
        assert float((mean - (1 - dropout)).abs().max()) < limit
    # Neighbours in any direction, and heads, are drawn apart.
    for dim in (0, 1, 2):
        both = (shares.narrow(dim, 1, shares.shape[dim] - 1) - 1 + dropout) * (
            shares.narrow(dim, 0, shares.shape[dim] - 1) - 1 + dropout
        )
        limit = 5 * dropout * (1 - dropout) / both.numel() ** 0.5
        assert abs(float(both.mean())) < limit


def test_heads_in_parts_draw_the_same_weights():
    q, k, _, _ = tensors(3, 40, 40)
    hiding = Hiding(seed=torch.tensor(11), dropout=0.3)
    whole = kept_by(q, k, hiding)
    for head in range(3):
        part = slice(head, head + 1)
        assert torch.equal(kept_by(q[part], k[part], hiding.heads(head, 1), head), whole[part])


def test_hidden_keys_hold_no_sway(short_chunks):
    """Keys that no query sees may hold anything finite, and get no gradient."""
    q, k, v, grad = tensors()
    stop = torch.full((1, 45), 50, dtype=torch.int32)
    first = run(q, k, v, grad, Hiding(stop=stop))
    k[:, 50:], v[:, 50:] = 900.0, -900.0
    second = run(q, k, v, grad, Hiding(stop=stop))
    for x, y in zip(first, second, strict=True):
        assert torch.equal(x, y)
    assert not second[3][:, 50:].any() and not second[4][:, 50:].any()


def test_nothing_but_the_workspace_grows_with_the_pairs():
    """Rows of a chunk are bounded by bytes, and the last row of a mask is one of the chunk."""
    assert chunk_rows(64, 4096, 4096, False) == 256
    assert chunk_rows(16, 4096, 4096, False) == 1024
    assert chunk_rows(16, 4096, 4096, True) == 512
    assert chunk_rows(1, 131_072, 131_072, False) == 512
    assert chunk_rows(2, 100, 100, False) == 100
    assert chunk_rows(10**6, 4096, 4096, False) == sizes.ROW_STEP
    for heads, keys in ((16, 4096), (64, 4096), (1, 131_072)):
        rows = chunk_rows(heads, 10**6, keys, False)
        assert sizes.PAIR_BYTES * heads * rows * keys <= sizes.CHUNK_BYTES


def test_tiles():
    assert interpreted()
    assert tile_for(9, False, 64) == tile_for(10, False, 16) == sizes.HOPPER[64]
    assert tile_for(9, False, 128) == sizes.HOPPER[128]
    assert tile_for(9, False, 64, slopes=True) == sizes.HOPPER_SLOPES[128]
    assert tile_for(9, False, 64, dropout=True) == sizes.HOPPER_DROPOUT[128]
    assert tile_for(8, False, 64) == tile_for(9, False, 256) == sizes.AMPERE
    assert isinstance(tile_for(0, True, 64), WideTile)
    large = [*sizes.HOPPER.values(), *sizes.HOPPER_SLOPES.values()]
    large += sizes.HOPPER_DROPOUT.values()
    for tile, most in (*((tile, 227) for tile in large), (sizes.AMPERE, 99)):
        held = (tile.queries + tile.keys) * tile.step * HALF.itemsize * tile.stages
        assert held <= most * 1024
