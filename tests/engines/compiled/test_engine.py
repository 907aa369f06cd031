"""The compiled engine beside the specification: sizes beyond a tile, options, threads, processes, refusals."""

from __future__ import annotations

import multiprocessing
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import regard
from regard import Additive, GATv2, Mask
from regard.engines.compiled import engine as module
from regard.engines.compiled.inputs import TILE_KEYS, TILE_QUERIES
from regard.engines.native import absent

pytestmark = pytest.mark.skipif(absent() is not None, reason="numba is not installed")
HEADS, UNITS, DIM = 2, 7, 6
# Two tiles of queries and of keys, and a part of a third.
QUERIES, KEYS = 2 * TILE_QUERIES + 5, 2 * TILE_KEYS + 3
SCORES = {"additive": Additive, "gatv2": GATv2}


def drawn(queries: int = QUERIES, keys: int = KEYS, size: float = 1.0) -> list[torch.Tensor]:
    shapes = (1, HEADS, queries, UNITS), (1, HEADS, keys, UNITS), (1, HEADS, keys, DIM)
    a, b, value = (torch.randn(shape) for shape in shapes)
    return [(a * size).requires_grad_(), (b * size).requires_grad_(), value.requires_grad_()]


def everything(tensors, score, engine, upstream, dtype=torch.float32, **options):
    """Output, LSE and entropy, and the gradients of all that is learned."""
    score = score.to(dtype)
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors]
    wide = {
        name: x.detach().to(dtype).requires_grad_() if isinstance(x, torch.Tensor) else x
        for name, x in options.items()
    }
    got = regard.attend(*leaves, score, engine=engine, want=("lse", "entropy"), **wide)
    learned = [x for x in wide.values() if isinstance(x, torch.Tensor)]
    given = [upstream.to(dtype), *(upstream[..., 0].to(dtype) * x for x in (0.3, 0.7))]
    results = (got.output, got.lse, got.entropy)
    grads = torch.autograd.grad(results, [*leaves, *score.parameters(), *learned], given)
    return [x.detach() for x in (*results, *grads)]


OPTIONS = {
    "plain": dict,
    "causal": lambda: {"mask": Mask.causal()},
    "window and dense": lambda: {
        "mask": Mask.window(left=700, right=9) & Mask.dense(torch.rand(QUERIES, KEYS) > 0.3)
    },
    "segments": lambda: {
        "mask": Mask.segments(torch.arange(QUERIES)[None] // 30, torch.arange(KEYS)[None] // 500)
    },
    "everything": lambda: {
        "mask": Mask.lengths(keys=[KEYS - 40]),
        "bias": torch.randn(1, HEADS, QUERIES, KEYS),
        "softcap": 2.0,
        "sink": torch.randn(HEADS),
        "temperature": torch.rand(1, HEADS, QUERIES, 1) + 0.5,
    },
    "a bias for each key": lambda: {"bias": torch.randn(1, 1, 1, KEYS)},
    "a bias for each query": lambda: {"bias": torch.randn(1, HEADS, QUERIES, 1)},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", SCORES)
def test_results_and_gradients_beyond_one_tile(name, option):
    score, tensors, options = SCORES[name](UNITS, HEADS), drawn(), OPTIONS[option]()
    upstream = torch.randn(1, HEADS, QUERIES, DIM)
    truth = everything(tensors, score, "reference", upstream, torch.float64, **options)
    plain = everything(tensors, score, "cpu", upstream, **options)
    found = everything(tensors, score, "compiled", upstream, **options)
    for i, (ours, theirs, exact) in enumerate(zip(found, plain, truth, strict=True)):
        seen = exact.isfinite()
        size = exact[seen].abs().max()
        error, usual = ((x - exact)[seen].abs().max() for x in (ours, theirs))
        # The other exact engine rounds LSE and entropy as this one does, but adds in another order.
        assert error <= 2 * usual + 1e-6 * size, i
        assert torch.equal(ours[~seen].double(), exact[~seen])


@pytest.mark.parametrize("size", [30.0, 200.0])
def test_tanh_of_large_sides(size):
    """e^2a e^2b would be Inf times 0 where large sides nearly cancel."""
    tensors, score = drawn(40, 50), Additive(UNITS, HEADS)
    with torch.no_grad():
        tensors[0].mul_(size), tensors[1].mul_(size)
        tensors[1][:, :, :40] = 0.1 - tensors[0]
    upstream = torch.randn(1, HEADS, 40, DIM)
    truth = everything(tensors, score, "reference", upstream, torch.float64)
    for ours, exact in zip(everything(tensors, score, "compiled", upstream), truth, strict=True):
        # A sum of sides of 200 is itself rounded to 1e-5.
        torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=2e-4)


def with_threads(threads: int, call):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        return call()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("option", ["plain", "everything", "a bias for each key"])
def test_bits_do_not_depend_on_the_number_of_threads(option):
    score, tensors, options = Additive(UNITS, HEADS), drawn(), OPTIONS[option]()
    upstream = torch.randn(1, HEADS, QUERIES, DIM)
    for dropout in (0.0, 0.3):
        call = partial(everything, tensors, score, "compiled", upstream, dropout=dropout, **options)
        found = [with_threads(n, call) for n in (1, 2, 3)]
        for results in zip(*found, strict=True):
            assert all(torch.equal(results[0], x) for x in results[1:])


def test_dropout_keeps_the_share_and_the_backward_draws_the_same():
    """With unit vectors as values the output is the kept weights themselves."""
    keys, rate = 40, 0.4
    a, b, _ = drawn(70, keys)
    value = torch.eye(keys).expand(1, HEADS, keys, keys)
    score = Additive(UNITS, HEADS)
    weights = regard.attention(a, b, value, score, engine="compiled").detach()
    output = regard.attention(a, b, value, score, engine="compiled", dropout=rate)
    keep = (output / weights).detach()
    torch.testing.assert_close(keep[keep != 0], torch.full_like(keep[keep != 0], 1 / (1 - rate)))
    assert abs(float((keep == 0).float().mean()) - rate) < 0.03
    # Rows and columns are drawn apart: neighbours agree as often as chance has it.
    for dim in (-1, -2):
        same = (keep == 0) == (keep.roll(1, dim) == 0)
        assert abs(float(same.float().mean()) - (rate**2 + (1 - rate) ** 2)) < 0.03
    upstream = torch.randn_like(output)
    found = torch.autograd.grad(output, [a, b, score.v], upstream)
    plain = regard.attend(a, b, value, score, engine="reference", want="weights").weights
    truth = torch.autograd.grad(plain * keep, [a, b, score.v], upstream)
    for ours, exact in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_nan_reaches_the_rows_that_see_it_and_no_others(name):
    """A hidden key of NaN leaves no trace, in results or in gradients; a visible one shows."""
    score, tensors = SCORES[name](UNITS, HEADS), drawn(50, 60)
    with torch.no_grad():
        tensors[1][0, 0, 20], tensors[2][0, 1, 30] = torch.nan, torch.inf
    mask = Mask.causal("top_left")
    output = regard.attention(*tensors, score, engine="compiled", mask=mask)
    assert output[0, 0, :20].isfinite().all() and output[0, 0, 20:].isnan().all()
    assert output[0, 1, :30].isfinite().all() and not output[0, 1, 30:].isfinite().any()
    upstream = torch.randn(1, HEADS, 50, DIM)
    found, wanted = (
        everything(tensors, score, engine, upstream, mask=mask) for engine in ("compiled", "cpu")
    )
    for ours, theirs in zip(found, wanted, strict=True):
        clean = theirs.isfinite()
        torch.testing.assert_close(ours[clean], theirs[clean], rtol=1e-4, atol=1e-5)


def test_second_derivatives():
    def penalty(engine, dtype):
        torch.manual_seed(1)
        tensors, score = (
            [x.detach().to(dtype).requires_grad_() for x in drawn(6, 9)],
            Additive(UNITS, HEADS).to(dtype),
        )
        output = regard.attention(*tensors, score, engine=engine)
        first = torch.autograd.grad(output.square().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), [*tensors, score.v])

    found, exact = penalty("compiled", torch.float32), penalty("reference", torch.float64)
    for ours, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-5)


def test_many_short_sequences_share_blocks():
    """More heads than blocks: a block then holds several."""
    a, b, value = (torch.randn(30, HEADS, 20, UNITS, requires_grad=True) for _ in range(3))
    score, bias = Additive(UNITS, HEADS), torch.randn(30, HEADS, 20, 20, requires_grad=True)
    found, wanted = (
        torch.autograd.grad(
            regard.attention(a, b, value, score, bias=bias, engine=engine).square().sum(),
            [a, b, value, bias, score.v],
        )
        for engine in ("compiled", "cpu")
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_compiles_as_one_graph():
    a, b, value = (x.detach().requires_grad_() for x in drawn(20, 30))
    score = Additive(UNITS, HEADS)

    def call(a, b, value):
        return regard.attention(a, b, value, score, engine="compiled")

    graph = torch.compile(call, fullgraph=True, backend="aot_eager")
    found, wanted = (
        torch.autograd.grad(run(a, b, value).sum(), [a, b, value]) for run in (graph, call)
    )
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


class Rows(Dataset):
    """Attention inside the workers of a loader, as a model that prepares data does it."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        torch.manual_seed(index)
        with torch.no_grad():
            return regard.attention(*drawn(), Additive(UNITS, HEADS), engine="compiled")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_a_loader_after_a_call_of_the_parent():
    rows = Rows()
    expected = torch.stack([rows[i] for i in range(4)])
    context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    loader = DataLoader(rows, batch_size=2, num_workers=2, multiprocessing_context=context)
    assert torch.equal(torch.cat(list(loader)), expected)


def test_every_kernel_has_one_specialisation():
    """A second one would be another compilation, of seconds: layouts and dtypes are always the same."""
    from regard.engines.compiled import backward, forward, passes, turning

    tensors, score = drawn(), Additive(UNITS, HEADS)
    got = regard.attend(*tensors, score, engine="compiled", want=("jacobian", "weights"))
    (got.weights.sum() + got.output.sum()).backward()
    regard.attention(*tensors, score, engine="compiled", temperature=0.0)
    half = [x.bfloat16() for x in tensors]
    regard.attention(*half, score.bfloat16(), engine="compiled", mask=Mask.causal())
    kernels = (
        forward.forward_heads, backward.backward_heads, turning.turn, passes.best_heads,
        passes.jacobian_heads, passes.score_heads, passes.score_backward_heads,
    )  # fmt: skip
    assert [len(kernel.signatures) for kernel in kernels] == [1] * len(kernels)


def test_size_decides_and_not_what_is_compiled():
    score = Additive(UNITS, HEADS)
    large, small = drawn(1024, 1024), drawn(128, 128)
    assert regard.explain(*large, score).engine == "compiled"
    assert regard.explain(*small, score).engine in ("plain", "cpu")
    assert "compiled" in regard.explain(*small, score).also
    few = [large[0][:, :, :4], *large[1:]]
    assert regard.explain(*few, score).engine in ("plain", "cpu")


REFUSED = {
    "fp64": (lambda x: x.double(), Additive, "fp32"),
    "an inner score": (lambda x: x, lambda units, heads: "scaled_dot", "inner products"),
    "another device": (lambda x: x.to("meta"), Additive, "'meta'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_refuses(what):
    change, make, reason = REFUSED[what]
    score = make(UNITS, HEADS)
    tensors = [change(x.detach()[..., :6]) for x in drawn(9, 9)]
    score = Additive(6, HEADS).to(tensors[0]) if isinstance(score, Additive) else score
    plan = regard.explain(*tensors, score, engine="compiled")
    assert plan.engine is None and reason in plan.refused["compiled"][0]


def test_without_numba_the_reason_says_what_to_install(monkeypatch):
    reason = "numba is not installed: pip install 'regard[cpu]'"
    monkeypatch.setattr(module, "absent", lambda load=True: reason)
    tensors, score = drawn(1024, 1024), Additive(UNITS, HEADS)
    plan = regard.explain(*tensors, score)
    assert plan.engine == "cpu" and plan.refused["compiled"] == [reason]
    with pytest.raises(regard.EngineRefused, match="pip install"):
        regard.attention(*tensors, score, engine="compiled")
