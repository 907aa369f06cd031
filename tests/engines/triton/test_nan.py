"""NaN and Inf: kept out where they are hidden, passed on where they are seen, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from .tools import assert_close_to_truth, check, deterministic, draw, inputs, outcome, truth

pytestmark = pytest.mark.interpreted
NAN, INF = float("nan"), float("inf")
# 40 keys are two blocks of the backward, the second cut; 16 queries or more take the fast tanh.
QUERIES, KEYS, REAL, REAL_QUERIES = 18, 40, 35, 15
SCORES = {
    "additive": lambda dtype: regard.Additive(3, 2).to(dtype),
    "gatv2": lambda dtype: regard.GATv2(3, 2).to(dtype),
    "dot": lambda dtype: None,
}
CALLS = [
    ("additive", torch.float16),
    ("additive", torch.float32),
    ("gatv2", torch.float32),
    ("dot", torch.float16),
]


def hiding(dtype: torch.dtype) -> dict[str, dict]:
    """Every way to hide the last keys from every query; two of them hide the last queries too."""
    seen = torch.arange(KEYS) < REAL
    ids = torch.zeros(KEYS, dtype=torch.int64)
    query_ids = torch.where(torch.arange(QUERIES) < REAL_QUERIES, 0, -1)
    return {
        "lengths": {"mask": Mask.lengths(keys=[REAL], queries=[REAL_QUERIES])},
        "segments": {"mask": Mask.segments(query_ids, ids.masked_fill(~seen, -1))},
        "dense": {"mask": seen.expand(QUERIES, KEYS)},
        "bias": {"bias": torch.zeros(1, KEYS).masked_fill(~seen, -INF).to(dtype)},
    }


def spoiled(x: Tensor, rows: slice, garbage: float) -> Tensor:
    copy = x.detach().clone()
    copy[:, :, rows] = garbage
    return copy.requires_grad_()


@pytest.mark.parametrize("how", ["lengths", "segments", "dense", "bias"])
@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_hidden_garbage_is_not_read(name, dtype, how):
    """In keys and values, and in queries that see nothing and what comes in for them."""
    options = hiding(dtype)[how]
    clean, score = inputs(QUERIES, KEYS, dtype=dtype), SCORES[name](dtype)
    grad = draw(1, 2, QUERIES, 4, dtype=dtype).detach()
    expected = outcome(clean, score, "triton", grad, **options)
    after, unused = slice(REAL, None), slice(REAL_QUERIES, None)
    dirty = [clean[0], spoiled(clean[1], after, NAN), spoiled(clean[2], after, INF)]
    if how in ("lengths", "segments"):
        dirty[0] = spoiled(clean[0], unused, INF)
        grad = spoiled(grad, unused, NAN).detach()
    found = outcome(dirty, score, "triton", grad, **options)
    # Heads with NaN take the plain tanh, which rounds otherwise.
    eps = 4 * torch.finfo(dtype).eps
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=eps, atol=eps * float(y.abs().max()))


@pytest.mark.parametrize("side", ["query", "key", "value"])
@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_nan_reaches_the_rows_that_see_it_alone(name, dtype, side):
    """Under a causal mask: query 4 of head 1, or its key, which queries from 4 on see."""
    tensors, score = inputs(QUERIES, QUERIES, dtype=dtype), SCORES[name](dtype)
    mask = Mask.causal()
    sound = regard.attention(*tensors, score, mask=mask, engine="triton").detach()
    with torch.no_grad():
        tensors[["query", "key", "value"].index(side)][0, 1, 4] = NAN
    result = regard.attend(*tensors, score, mask=mask, want=("lse", "entropy"), engine="triton")
    output = result.output.detach()
    touched = torch.zeros(1, 2, QUERIES, dtype=torch.bool)
    touched[0, 1, 4 : 5 if side == "query" else None] = True
    assert torch.equal(output.isnan(), touched.unsqueeze(-1).expand(1, 2, QUERIES, 4))
    for x in (result.lse, result.entropy):
        assert torch.equal(x.isnan(), touched & (side != "value"))
    torch.testing.assert_close(output[~touched], sound[~touched], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("fixed", [False, True], ids=["any order", "fixed order"])
@pytest.mark.parametrize("what", ["query", "key", "value", "gradient"])
@pytest.mark.parametrize(
    ("name", "dtype"), [CALLS[0], CALLS[3], ("additive", torch.bfloat16)]
)  # in bf16 a tile with a bad number is summed in another way
def test_gradients_where_something_is_nan(name, dtype, what, fixed):
    """What does not depend on the NaN keeps its gradient: other heads, and what other rows see."""
    tensors, score = inputs(QUERIES, QUERIES, dtype=dtype), SCORES[name](dtype)
    grad = draw(1, 2, QUERIES, 4, dtype=dtype).detach()
    mask = Mask.causal()
    sound = outcome(tensors, score, "triton", grad, mask=mask)
    with torch.no_grad():
        places = {"query": tensors[0], "key": tensors[1], "value": tensors[2], "gradient": grad}
        places[what][0, 1, 4] = NAN
    with deterministic(fixed):
        _, of_q, of_k, of_value, *of_v = outcome(tensors, score, "triton", grad, mask=mask)
    close = dict.fromkeys(("rtol", "atol"), 2e-2 if dtype == torch.bfloat16 else 2e-3)
    # Head 0 knows nothing of it, nor do the queries of head 1 that see only keys before.
    for x, y in zip((of_q, of_k, of_value), sound[1:4], strict=True):
        torch.testing.assert_close(x[:, 0], y[:, 0], **close)
    torch.testing.assert_close(of_q[0, 1, :4], sound[1][0, 1, :4], **close)
    assert of_q[0, 1, 4].isnan().all()
    if what in ("query", "gradient"):  # of one row alone: the others' gradients stand
        torch.testing.assert_close(of_q[0, 1, 5:], sound[1][0, 1, 5:], **close)
        # Keys and values after it are seen by sound rows alone.
        torch.testing.assert_close(of_k[0, 1, 5:], sound[2][0, 1, 5:], **close)
        torch.testing.assert_close(of_value[0, 1, 5:], sound[3][0, 1, 5:], **close)
        assert of_k[0, 1, :5].isnan().all() and of_value[0, 1, :5].isnan().all()
    else:
        assert of_q[0, 1, 4:].isnan().all() and of_k[0, 1, 4].isnan().all()
    for x, y in zip(of_v, sound[4:], strict=True):
        torch.testing.assert_close(x[0], y[0], **close)
        assert x[1].isnan().all()


@pytest.mark.parametrize("value", [INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tanh_of_a_visible_inf_is_1(value, dtype):
    tensors, score = inputs(QUERIES, KEYS, dtype=dtype), SCORES["additive"](dtype)
    with torch.no_grad():
        tensors[1][0, 1, 2, 0] = value
    found = regard.attention(*tensors, score, engine="triton").detach()
    with torch.no_grad():
        tensors[1][0, 1, 2, 0] = 50.0 if value > 0 else -50.0
    torch.testing.assert_close(found, regard.attention(*tensors, score, engine="triton").detach())


@pytest.mark.parametrize("garbage", [NAN, INF])
@pytest.mark.parametrize("name", ["additive", "dot"])
def test_an_inf_among_the_values(name, garbage):
    """Inf times a weight is Inf, in its own column, for the rows that see it."""
    tensors, score = inputs(QUERIES, QUERIES), SCORES[name](torch.float32)
    with torch.no_grad():
        tensors[2][0, 1, 4, 2] = garbage
    output = regard.attention(*tensors, score, mask=Mask.causal(), engine="triton").detach()
    bad = torch.zeros_like(output, dtype=torch.bool)
    bad[0, 1, 4:, 2] = True
    assert torch.equal(~output.isfinite(), bad)
    if garbage == INF:
        assert (output[bad] == INF).all()


@pytest.mark.parametrize("name", ["additive", "dot"])
def test_first_blocks_empty_and_rows_that_see_nothing(name):
    """Keys 0 to 127 are hidden, and from row 3 all: blocks before the first seen one are skipped."""
    seen = (torch.arange(140) >= 130).expand(20, 140).clone()
    seen[3] = False
    seen[5] = True
    tensors, score = inputs(20, 140, heads=1), None if name == "dot" else regard.Additive(3, 1)
    grad = torch.randn(1, 1, 20, 4)
    grad[:, :, 3] = NAN  # comes to nothing, whatever it holds
    found = outcome(tensors, score, "triton", grad, mask=seen)
    clean = grad.nan_to_num()
    exact, plain = (
        truth(tensors, score, clean, dtype, mask=seen) for dtype in (torch.float64, torch.float32)
    )
    assert_close_to_truth(found, exact, plain, torch.float32)
    assert (found[0][:, :, 3] == 0).all() and (found[1][:, :, 3] == 0).all()


@pytest.mark.parametrize("left", [1, 31, 64])
def test_windows_whose_first_blocks_are_empty(left):
    check(inputs(70, 70, heads=1), regard.Additive(3, 1), mask=Mask.window(left) & Mask.causal())


@pytest.mark.parametrize("queries", [1, 18])
def test_a_key_that_is_infinite_and_has_no_weight_spoils_no_gradient(queries):
    """LeakyReLU has a slope at infinity too."""
    score, grad = regard.GATv2(40, 1), torch.randn(1, 1, queries, 4)
    with torch.no_grad():
        score.v.fill_(-1.0)
    tensors = inputs(queries, 9, heads=1, hidden=40)
    with torch.no_grad():
        tensors[1][:, :, 3] = INF
    found = outcome(tensors, score, "triton", grad)
    wanted = outcome(tensors, score, "reference", grad)
    for x, y in zip(found[:4], wanted[:4], strict=True):  # that of v is 0 * inf in both
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["triton", "cpu"])
def test_hidden_keys_of_a_broken_row_have_no_weight_beside_a_sink(engine):
    q, k, v = inputs(1, 3, heads=1)
    with torch.no_grad():
        q.fill_(NAN)
    result = regard.attend(
        *(q, k, v, regard.Additive(3, 1)),
        mask=Mask.lengths(keys=[1]),
        sink=torch.zeros(1),
        want=("weights",),
        engine=engine,
    )
    assert result.weights.isnan().flatten().tolist() == [True, False, False]


@pytest.mark.parametrize("queries", [1, 18])
def test_no_sequences_at_all_under_a_mask_or_temperatures(queries):
    tensors, score = inputs(queries, 5, batch=0), regard.Additive(3, 2)
    for options in (
        {"mask": Mask.lengths(keys=torch.zeros(0, dtype=torch.long))},
        {"temperature": torch.ones(0, 2, queries, 1)},
    ):
        found = outcome(tensors, score, "triton", torch.zeros(0, 2, queries, 4), **options)
        assert [x.shape for x in found[1:4]] == [x.shape for x in tensors]
        assert (found[4] == 0).all()


@pytest.mark.parametrize("name", SCORES)
def test_infinite_values_come_through_where_they_are_seen(name):
    """With their sign; two that differ make NaN; what is hidden changes nothing."""
    tensors, score = inputs(QUERIES, 70), SCORES[name](torch.float32)
    # In both parts of a product and in another tile of keys, each in dims of its own.
    bad = ((53, 0, INF), (55, 0, -INF), (57, 1, -INF), (60, 2, NAN), (69, 3, INF))
    sound = regard.attention(*tensors, score, mask=Mask.causal(), engine="triton").detach()
    with torch.no_grad():
        for key, dim, x in bad:
            tensors[2][:, 0, key, dim] = x
    found = regard.attention(*tensors, score, mask=Mask.causal(), engine="triton").detach()
    for row in range(QUERIES):
        for dim in range(4):
            seen = sum(x for key, at, x in bad if at == dim and key <= row + 70 - QUERIES)
            wanted = sound[0, 0, row, dim] + seen
            torch.testing.assert_close(found[0, 0, row, dim], wanted, equal_nan=True)
    torch.testing.assert_close(found[:, 1], sound[:, 1])
