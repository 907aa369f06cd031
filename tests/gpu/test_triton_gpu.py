"""The `triton` engine at real sizes on a GPU, against fp64.

Each variant of a kernel takes seconds to compile, and a length that 16 does not divide is one more:
few calls are made, and several tests share each of them.

Shape legend: B batch, H query heads, K key heads, Q query length, L key length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from ..engines.triton.tools import deterministic, forget_bound_calls, inputs, outcome, widened

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
# Queries whose pairs with all keys and hidden units are held at once in fp64.
BLOCK = 64
REPEATS = 200


class Call(NamedTuple):
    """A call by its sizes; `scale` spreads the queries and keys of the last head."""

    score: Any
    queries: int
    keys: int
    hidden: int
    value_dim: int
    dtype: torch.dtype
    heads: int = 4
    key_heads: int = 2
    batch: int = 2
    scale: float = 1.0

    def tensors(self, device: str = DEVICE) -> list[Tensor]:
        torch.manual_seed(0)
        q, k, v = inputs(
            self.queries,
            self.keys,
            heads=self.heads,
            hidden=self.hidden,
            value_dim=self.value_dim,
            dtype=self.dtype,
            batch=self.batch,
            key_heads=self.key_heads,
            device=device,
        )
        with torch.no_grad():
            q[:, -1] *= self.scale
            k[:, -1] *= self.scale
        return [q, k, v]

    def build(self, device: str = DEVICE) -> regard.Score | None:
        if self.score is None:
            return None
        torch.manual_seed(1)
        return self.score(self.hidden, self.heads).to(device=device, dtype=self.dtype)


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Queries and keys of the last head are beyond what the fast tanh takes, so that both forms run.
ADDITIVE = Call(regard.Additive, 4096, 4096, 16, 64, BF16, scale=6.0)
ODD = Call(regard.Additive, 1001, 999, 64, 40, BF16)
GATV2 = Call(regard.GATv2, 1000, 333, 512, 64, FP32, heads=2, batch=1)
DOT = Call(None, 1000, 1000, 64, 64, FP16)


def blocked_truth(
    call: Call, tensors: list[Tensor], grad: Tensor, seen: Tensor | None, dtype: torch.dtype
) -> list[Tensor]:
    """Output and all gradients of the reference in `dtype`, a block of queries at a time."""
    score = widened(call.build(str(grad.device)), dtype)
    q, k, v = (x.detach().to(dtype) for x in tensors)
    outputs, of_q, rest = [], [], None
    for first in range(0, call.queries, BLOCK):
        rows = slice(first, first + BLOCK)
        part = [x.detach().requires_grad_() for x in (q[:, :, rows], k, v)]
        mask = None if seen is None else seen[..., rows, :]
        found = outcome(part, score, "reference", grad[:, :, rows].to(dtype), mask=mask)
        outputs.append(found[0])
        of_q.append(found[1])
        added = [x.double() for x in found[2:]]
        rest = added if rest is None else [x + y for x, y in zip(rest, added, strict=True)]
    return [torch.cat(outputs, 2), torch.cat(of_q, 2), *(rest or [])]


def dense(mask: Mask | None, call: Call, device: str) -> Tensor | None:
    """Who sees whom, for blocks of queries."""
    if mask is None:
        return None
    seen = mask.visible(call.queries, call.keys, torch.device(device))
    return None if seen is None else seen.expand(*seen.shape[:-2], call.queries, call.keys)


def relative_errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        float(((x.double() - y).norm() / y.norm()).detach())
        for x, y in zip(found, exact, strict=True)
    ]


def check(call: Call, mask: Mask | None, device: str = DEVICE, fixed: bool = False) -> list[Tensor]:
    """Errors in the norm are at most 1.5 times those of the reference in the same dtype."""
    tensors, score = call.tensors(device), call.build(device)
    grad = torch.randn(call.batch, call.heads, call.queries, call.value_dim).to(tensors[0])
    with deterministic(fixed):
        found = outcome(tensors, score, "triton", grad, mask=mask)
    seen = dense(mask, call, device)
    exact = blocked_truth(call, tensors, grad, seen, torch.float64)
    plain = blocked_truth(call, tensors, grad, seen, call.dtype)
    ours, theirs = relative_errors(found, exact), relative_errors(plain, exact)
    floor = 2 * torch.finfo(call.dtype).eps
    assert all(x <= 1.5 * y + floor for x, y in zip(ours, theirs, strict=True)), (ours, theirs)
    return found


def test_additive_causal_with_grouped_heads():
    check(ADDITIVE, Mask.causal())


def test_additive_in_a_fixed_order():
    check(ADDITIVE, Mask.causal(), fixed=True)


@pytest.mark.parametrize("queries", [1, 5])
def test_few_queries(queries):
    """Many blocks of keys, some of them cut, and grouped heads.

    A batch large enough that norms tell of all rows: terms of a gradient cancel more in some than in
    others.
    """
    check(Call(regard.Additive, queries, 5003, 130, 300, BF16, batch=8), None)
    call = Call(regard.GATv2, queries, 333, 16, 40, FP32, batch=32)
    check(call, Mask.lengths(keys=16 * [333, 100]))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_decoders_gradients_are_equal_to_the_bit_unasked(dtype):
    call = Call(regard.Additive, 1, 1500, 128, 512, dtype, heads=1, key_heads=1, batch=16)
    tensors, score = call.tensors(), call.build()
    grad = torch.randn(16, 1, 1, call.value_dim).to(tensors[0])
    first = outcome(tensors, score, "triton", grad)
    same = torch.ones((), dtype=torch.bool, device=DEVICE)
    for _ in range(REPEATS):
        for x, y in zip(first, outcome(tensors, score, "triton", grad), strict=True):
            same &= (x == y).all()
    assert bool(same)


@pytest.mark.parametrize(
    ("queries", "hidden"),
    [(1, 128), (1, 300), (1, 512), (1, 1000), (2, 1000), (15, 128), (15, 1000)],
)
def test_large_scores_have_the_weights_of_the_forward(queries, hidden):
    """Of 1e8: one key has all the weight of a query, also where the backward recomputes it."""
    call = Call(regard.GATv2, queries, 200, hidden, 16, FP32)
    tensors, score = call.tensors(), call.build()
    with torch.no_grad():
        score.v.mul_(1e8)
    grad = torch.ones(call.batch, call.heads, queries, call.value_dim, device=DEVICE)
    for options in ({}, {"want": ("entropy",)}):
        output = regard.attend(*tensors, score, engine="triton", **options).output
        (of_value,) = torch.autograd.grad(output, tensors[2], grad)
        total = of_value.sum(-2) / (call.heads // call.key_heads * queries)
        torch.testing.assert_close(total, torch.ones_like(total))


def padding(call: Call) -> tuple[int, int, Mask]:
    """Real queries of the first sequence, real keys of the second, and the mask of both."""
    queries, keys = 7 * call.queries // 10, call.keys // 2
    mask = Mask.lengths(keys=[call.keys, keys], queries=[queries, call.queries])
    return queries, keys, mask


def test_odd_lengths_with_padding():
    check(ODD, padding(ODD)[2])


@pytest.mark.parametrize("fixed", [False, True], ids=["any order", "fixed order"])
def test_an_odd_number_of_hidden_units_and_wide_values(fixed):
    """The last unit stands alone, and lengths and value dims are no whole tiles."""
    call = Call(regard.Additive, 131, 97, 33, 300, BF16, batch=1)
    check(call, None, fixed=fixed)


@pytest.mark.parametrize("fixed", [False, True], ids=["any order", "fixed order"])
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 3e38])
def test_a_broken_gradient_stays_in_its_row(garbage, fixed):
    """One row's incoming gradient is not a number, or has no square: other queries keep theirs."""
    call = Call(regard.Additive, 70, 70, 16, 64, BF16, batch=1)
    tensors, score = call.tensors(), call.build()
    grad = torch.randn(1, call.heads, call.queries, call.value_dim).to(tensors[0])
    sound = outcome(tensors, score, "triton", grad)
    grad[0, 1, 40] = garbage
    with deterministic(fixed):
        _, of_q, of_k, *_ = outcome(tensors, score, "triton", grad)
    kept = torch.ones(call.heads, call.queries, dtype=torch.bool)
    kept[1, 40] = False
    assert not of_q[0, 1, 40].isfinite().all() or abs(of_q[0, 1, 40]).max() > 1e30
    torch.testing.assert_close(of_q[0, kept], sound[1][0, kept], rtol=2e-2, atol=2e-2)
    # Heads 2 and 3 have keys of their own.
    torch.testing.assert_close(of_k[0, 1], sound[2][0, 1], rtol=2e-2, atol=2e-2)


def test_the_compiler_arranges_tiles_as_the_sums_need_it(monkeypatch):
    """And where it did not, the gradients would come out the same, summed in the other way."""
    from regard.engines.triton import lanes

    call = Call(regard.Additive, 300, 200, 20, 64, BF16, batch=1)
    tensors, score = call.tensors(), call.build()
    grad = torch.randn(1, call.heads, call.queries, call.value_dim).to(tensors[0])
    monkeypatch.setattr(lanes, "LAYOUT_VERDICTS", {})
    forget_bound_calls()  # it asks where it launches for the first time
    first = outcome(tensors, score, "triton", grad)
    assert lanes.LAYOUT_VERDICTS and not lanes.refused()
    monkeypatch.setattr(lanes, "LAYOUT_VERDICTS", {})
    forget_bound_calls()
    monkeypatch.setattr(lanes, "arranged", lambda text: False)
    second = outcome(tensors, score, "triton", grad)
    assert lanes.refused()
    assert all(x < 1e-2 for x in relative_errors(second, [x.double() for x in first]))


def test_gatv2_with_512_hidden_units_under_a_dense_mask():
    torch.manual_seed(2)
    seen = torch.rand(GATV2.queries, GATV2.keys, device=DEVICE) < 0.7
    seen[:, :128] = False  # whole blocks are skipped
    seen[5] = False
    check(GATV2, Mask.dense(seen))


def test_dot_with_statistics():
    """Statistics and their gradients, beside the reference in fp64."""
    tensors = DOT.tensors()
    want = ("lse", "entropy", "max_logit", "max_weight", "jacobian")
    found = regard.attend(*tensors, want=want, engine="triton")
    wide = [x.detach().double().requires_grad_() for x in tensors]
    exact = regard.attend(*wide, want=want, engine="reference")
    for field in want:
        x, y = getattr(found, field).detach().double(), getattr(exact, field).detach()
        assert float((x - y).norm() / y.norm()) < 1e-3, field
    ends = [(r.lse + r.entropy).sum() for r in (found, exact)]
    ours, theirs = torch.autograd.grad(ends[0], tensors[:2]), torch.autograd.grad(ends[1], wide[:2])
    assert all(x < 2e-3 for x in relative_errors(list(ours), list(theirs)))


def test_nan_in_padding():
    """Keys and values beyond the lengths hold NaN, queries and what comes in for them too."""
    queries, keys, mask = padding(ODD)
    found = []
    for garbage in (0.0, torch.nan):
        (q, k, v), score = ODD.tensors(), ODD.build()
        grad = torch.randn(*q.shape[:-1], v.shape[-1]).to(q)
        with torch.no_grad():
            q[0, :, queries:] = grad[0, :, queries:] = garbage
            k[1, :, keys:] = v[1, :, keys:] = garbage
        found.append(outcome([q, k, v], score, "triton", grad, mask=mask))
    # Heads with NaN take the plain tanh, which rounds otherwise.
    assert all(x.isfinite().all() for x in found[1])
    assert all(x < 1e-2 for x in relative_errors(found[1], [x.double() for x in found[0]]))


def test_repeats_in_a_fixed_order_are_equal_to_the_bit():
    tensors, score = ADDITIVE.tensors(), ADDITIVE.build()
    grad = torch.randn(*tensors[0].shape[:-1], ADDITIVE.value_dim).to(tensors[0])
    with deterministic():
        first = outcome(tensors, score, "triton", grad, mask=Mask.causal())
        same = torch.ones((), dtype=torch.bool, device=DEVICE)
        for _ in range(REPEATS):
            again = outcome(tensors, score, "triton", grad, mask=Mask.causal())
            for x, y in zip(first, again, strict=True):
                same &= (x == y).all()
    assert bool(same)


def check_many_heads(batch: int, device: str = DEVICE) -> None:
    """Tiny lengths; the first and the last heads against the reference."""
    call = Call(regard.Additive, 1, 3, 2, 1, FP32, heads=2, key_heads=2, batch=batch)
    tensors, score = call.tensors(device), call.build(device)
    mask = Mask.lengths(keys=torch.arange(batch, device=device) % 4)
    grad = torch.ones(batch, 2, 1, 1, device=device)
    found = outcome(tensors, score, "triton", grad, mask=mask)
    for at in (slice(0, 4), slice(-4, None)):
        part = [x.detach()[at].requires_grad_() for x in tensors]
        few = Mask.lengths(keys=mask.key_lengths[at])
        expected = outcome(part, score, "reference", grad[at], mask=few)
        for x, y in zip(found[:4], expected[:4], strict=True):
            torch.testing.assert_close(x[at], y, rtol=1e-4, atol=1e-5)


def test_more_than_65535_batch_times_heads():
    """One more than a grid takes in y and z."""
    check_many_heads(65_536 // 2)


def test_queries_outermost_in_a_large_memory():
    """The third query begins 2^31 numbers after the first."""
    call = Call(regard.Additive, 3, 50, 4, 8, BF16, heads=1, key_heads=1, batch=1)
    (q, k, v), score = call.tensors(), call.build()
    memory = torch.empty(2**31 + 4, dtype=BF16, device=DEVICE)
    far = memory.as_strided((1, 1, 3, 4), (0, 0, 2**30, 1))
    far.copy_(q.detach())
    grad = torch.randn(1, 1, 3, 8).to(q)
    found = outcome([far.requires_grad_(), k, v], score, "triton", grad)
    expected = outcome([q, k, v], score, "triton", grad)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("queries", [1, 20])
def test_hidden_units_outermost_in_a_large_memory(queries):
    """The third unit of the keys begins 2^31 numbers after the first."""
    call = Call(regard.Additive, queries, 50, 3, 8, BF16, heads=1, key_heads=1, batch=1)
    (q, k, v), score = call.tensors(), call.build()
    memory = torch.empty(2**31 + 50, dtype=BF16, device=DEVICE)
    far = memory.as_strided((1, 1, 50, 3), (0, 0, 1, 2**30))
    far.copy_(k.detach())
    grad = torch.randn(1, 1, queries, 8).to(q)
    found = outcome([q, far.requires_grad_(), v], score, "triton", grad)
    expected = outcome([q, k, v], score, "triton", grad)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_nothing_waits_for_the_device():
    """Forward and backward without one synchronisation, once the kernels are compiled."""
    tensors, score = ADDITIVE.tensors(), ADDITIVE.build()
    grad = torch.randn(*tensors[0].shape[:-1], ADDITIVE.value_dim).to(tensors[0])
    first = outcome(tensors, score, "triton", grad, mask=Mask.causal())
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = outcome(tensors, score, "triton", grad, mask=Mask.causal())  # a wait raises
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first[0], again[0])
    assert all(x.isfinite().all() for x in again)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TensorFloat32:UserWarning")
def test_one_graph_under_inductor():
    tensors, score = ADDITIVE.tensors(), ADDITIVE.build()
    wanted = [*tensors, score.v]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q, k, v, score, mask=Mask.causal(), engine="triton")

    compiled = torch.compile(call, fullgraph=True)
    found = []
    for function in (call, compiled):
        output = function(*tensors)
        found.append([output, *torch.autograd.grad(output.float().square().sum(), wanted)])
    assert all(x < 1e-2 for x in relative_errors(found[1], [x.double() for x in found[0]]))


def test_the_engine_that_is_picked_on_a_gpu():
    """The exact engine where no approximation may serve, or none can."""
    strict = regard.explain(*ADDITIVE.tensors(), ADDITIVE.build(), error=1e-9)
    assert strict.engine == "triton"
    assert regard.explain(*ODD.tensors(), ODD.build(), mask=padding(ODD)[2]).engine == "triton"
    assert regard.explain(*GATV2.tensors(), GATV2.build()).engine == "triton"
    q, k, v = DOT.tensors()
    assert regard.explain(q, k, v, want=("entropy",)).engine == "triton"
    assert regard.explain(q, k, v).engine == "sdpa"
    wide = [x.double() for x in (q, k, v)]
    plan = regard.explain(*wide, softcap=2.0)
    assert plan.engine == "reference" and "fp64" in plan.refused["triton"][0]
