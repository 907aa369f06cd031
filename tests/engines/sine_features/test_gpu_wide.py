"""The series through the wide kernels, in Triton's interpreter, beside the textbook in fp64."""

import math

import pytest
import torch

from regard.engines.hiding import Hiding
from regard.engines.sine_features import operators, wide
from regard.engines.sine_features.operators import SineInputs
from regard.engines.sine_features.parts import PARTS
from regard.engines.triton.behind import Behind
from regard.engines.wide import Wide
from regard.engines.wide import sizes as wide_sizes
from regard.sine import escapes

from .standins import PlainExact, seen_by, textbook

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    behind = PlainExact()
    monkeypatch.setattr(PARTS, "wide", Wide())
    monkeypatch.setattr(PARTS, "exact", behind)
    return behind


def inputs(
    batch=2, heads=2, key_heads=1, queries=45, keys=45, hidden=20, value_dim=9, rank=8, *,
    dtype=torch.float32, spread=1.0, rate=1.5, allowed=math.inf, causal=False, dropout=0.0, **masks,
):  # fmt: skip
    a = (spread * torch.randn(batch, heads, queries, hidden)).to(dtype)
    b = (spread * torch.randn(batch, key_heads, keys, hidden)).to(dtype)
    v = (5 * torch.randn(heads, hidden) / hidden).to(dtype)
    value = torch.randn(batch, key_heads, keys, value_dim).to(dtype)
    leaves = [x.requires_grad_() for x in (a, b, v, value)]
    numbers = torch.tensor([rate, allowed, dropout], dtype=torch.float64)
    return SineInputs(*leaves, numbers, causal, "uniform", rank, **masks)


def ends(count, length, keys):
    """Spans of keys (count, length) with some empty ones."""
    start = torch.randint(-1, keys, (count, length), dtype=torch.int32)
    stop = (start + torch.randint(0, 30, start.shape)).clamp(max=keys + 1).int()
    return {"start": start, "stop": stop}


def segments(count, queries, keys):
    return {
        name: torch.randint(-1, 3, (count, n)).sort(-1).values
        for name, n in (("query_segment", queries), ("key_segment", keys))
    }


def errors(x, size=1.0):
    grad = (size * torch.randn(*x.a.shape[:3], x.value.shape[-1])).to(x.value.dtype)
    out = operators.run(x)
    ours = (out.detach(), *torch.autograd.grad(out, x[:4], grad))
    leaves = [y.detach().double().requires_grad_() for y in x[:4]]
    seen = seen_by(x.hiding, x.a, x.b)
    wanted = textbook(*leaves, float(x.numbers[0]), False, seen)
    wanted = (wanted.detach(), *torch.autograd.grad(wanted, leaves, grad.double()))
    return [float((y.double() - z).norm() / z.norm()) for y, z in zip(ours, wanted, strict=True)]


@pytest.mark.parametrize(
    ("shape", "lent"),
    [
        ({"hidden": 20, "rank": 8}, False),  # 320 features; two columns more need another step
        ({"hidden": 32, "rank": 8, "keys": 70, "key_heads": 2}, True),  # 512 features
        ({"hidden": 17, "rank": 10, "queries": 33, "batch": 1}, False),
    ],
)
def test_features_wider_than_cudnn_takes(exact, shape, lent):
    x = inputs(**shape)
    assert x.wide and x.widths.features > 256
    assert max(errors(x)) < 3e-3
    assert exact.answers == 0


def test_causal(exact):
    assert max(errors(inputs(causal=True, queries=70, keys=70))) < 3e-3
    assert exact.answers == 0


MASKS = {
    "spans of each head": lambda: ends(4, 45, 70),
    "spans that all share": lambda: ends(1, 45, 70),
    "an end alone": lambda: {"stop": ends(4, 45, 70)["stop"]},
    "segments": lambda: segments(4, 45, 70),
    "segments and spans": lambda: {**segments(4, 45, 70), **ends(4, 45, 70)},
}


@pytest.mark.parametrize("hidden", [5, 20])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(exact, mask, hidden):
    x = inputs(keys=70, hidden=hidden, **MASKS[mask]())
    assert x.wide
    assert max(errors(x)) < 3e-3
    assert exact.answers == 0


def test_heads_in_parts_and_queries_in_chunks_change_nothing(monkeypatch):
    x = inputs(2, 4, 2, queries=33, keys=40, **ends(8, 33, 40))
    whole = operators.run(x)
    wanted = torch.autograd.grad(whole.sum(), x[:4])
    for most in (0, 2**18):
        monkeypatch.setattr(wide, "FEATURE_BYTES", most)
        assert len(list(wide.parts_of(wide.shape_of(x), 1))) > 1
        out = operators.run(x)
        assert torch.equal(out, whole)
        for got, y in zip(torch.autograd.grad(out.sum(), x[:4]), wanted, strict=True):
            assert torch.equal(got, y)
    monkeypatch.setattr(wide_sizes, "CHUNK_BYTES", 0)
    monkeypatch.setattr(wide_sizes, "ROW_STEP", 16)
    for got, y in zip(
        torch.autograd.grad(operators.run(x).sum(), x[:4]), wanted, strict=True
    ):  # sums over keys round once for each chunk
        torch.testing.assert_close(got, y, rtol=0, atol=2e-3 * float(y.abs().max()))


def test_parts_cover_all_heads_once():
    x = inputs(3, 6, 3, queries=8, keys=8)
    head = 2 * 16 * (x.widths.features + x.widths.values)
    for most, count in (
        (0, 9),
        (2 * head, 9),
        (4 * head, 6),
        (6 * head, 3),
        (12 * head, 2),
        (99 * head, 1),
    ):
        wide.FEATURE_BYTES, usual = most, wide.FEATURE_BYTES
        try:
            parts = list(wide.parts_of(wide.shape_of(x), 1))
        finally:
            wide.FEATURE_BYTES = usual
        assert len(parts) == count
        covered = [n for part in parts for n in range(part.first, part.first + part.total)]
        assert covered == list(range(18))


@pytest.mark.parametrize("size", [1e-5, 1e-9])
def test_small_gradients_do_not_vanish(exact, size):
    assert max(errors(inputs(), size)) < 3e-3
    assert exact.answers == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(exact, dtype):
    assert max(errors(inputs(dtype=dtype))) < (2e-3 if dtype == torch.float16 else 2e-2)
    assert exact.answers == 0


@pytest.mark.parametrize("mask", [None, "causal", "spans of each head", "segments"])
def test_what_leaves_the_range_is_answered_by_the_exact_kernels(monkeypatch, mask):
    monkeypatch.setattr(PARTS, "exact", Behind())
    masks = {"causal": True} if mask == "causal" else {} if mask is None else MASKS[mask]()
    keys = 70 if mask else 45
    queries = keys if mask == "causal" else 45
    escapes.reset()
    found = errors(inputs(queries=queries, keys=keys, spread=20.0, **masks))
    assert escapes.count("cpu") == (1, 1) and max(found) < 2e-5


def dropped(x):
    """Which weights a call keeps (B, H, Q, L): its values are the columns of an identity."""
    eye = torch.eye(x.b.shape[2]).expand(*x.b.shape[:2], -1, -1)
    with torch.no_grad():
        return operators.run(x._replace(value=eye)) != 0


@pytest.mark.parametrize("spread", [1.0, 20.0])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout(monkeypatch, causal, spread):
    """Weights that are kept are those the exact kernels keep, so that either may compute the gradients."""
    monkeypatch.setattr(PARTS, "exact", Behind())
    x = inputs(hidden=5, causal=causal, dropout=0.25, seed=torch.tensor(2**40 + 7), spread=spread)
    kept = dropped(x)
    seen = seen_by(Hiding(causal), x.a, x.b).view(kept.shape)
    assert not (kept & ~seen).any()
    assert abs(float(kept[seen].float().mean()) - 0.75) < 0.02
    assert torch.equal(kept, dropped(x._replace(a=x.a * (20 / spread))))
    grad = torch.randn(*x.a.shape[:3], x.value.shape[-1])
    out = operators.run(x)
    ours = (out.detach(), *torch.autograd.grad(out, x[:4], grad))
    leaves = [y.detach().double().requires_grad_() for y in x[:4]]
    eye = torch.eye(45).expand(*x.b.shape[:2], -1, -1)
    p = textbook(*leaves[:3], eye.double(), 1.5, causal)
    wanted = torch.where(kept, p / 0.75, 0) @ leaves[3].repeat_interleave(2, 1)
    wanted = (wanted.detach(), *torch.autograd.grad(wanted, leaves, grad.double()))
    for got, y in zip(ours, wanted, strict=True):
        assert float((got.double() - y).norm() / y.norm()) < 3e-3


def test_gradients_that_overflow_are_answered_exactly(exact, monkeypatch):
    class Overflowing(Wide):
        def backward(self, *args):
            by_q, by_k, by_v = super().backward(*args)
            by_k[-1, 5, 3] = torch.inf
            return by_q, by_k, by_v

    monkeypatch.setattr(PARTS, "wide", Overflowing())
    found = errors(inputs())
    assert found[0] > 1e-5 and max(found[1:]) < 1e-6
    assert exact.answers == 1


def test_the_features_are_not_kept():
    x = inputs(value_dim=3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: kept.append(y) or y, lambda y: y):
        operators.run(x)
    assert max(y.shape[-1] for y in kept if y.ndim == 4) <= 20 < x.widths.features


def test_nothing_set_for_wide_features_is_an_error(monkeypatch):
    monkeypatch.setattr(PARTS, "wide", None)
    with pytest.raises(RuntimeError, match="no kernels are set for wide features"):
        operators.run(inputs())
