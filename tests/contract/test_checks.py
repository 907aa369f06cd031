"""The checks can fail: broken scores, engines, errors and memory are each found."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import regard
from regard.engines import plan
from regard.engines.reference import Reference
from regard.forms import InnerKey, InnerQuery, PairwiseKey, PairwiseQuery
from regard.testing import Call, check_engine, check_score, compare, poisoned, small_tiles


class Laplace(regard.PairwiseScore):
    name, activation = "laplace", "minus_abs"

    def query(self, q):
        return PairwiseQuery(q, q.new_full((1, q.shape[-1]), 1 / q.shape[-1]))

    def key(self, k):
        return PairwiseKey(-k)


def laplace(score, q, k):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return -(q.unsqueeze(-2) - k.unsqueeze(-3)).abs().mean(-1)


class Popular(regard.InnerScore):
    """`<q, k> + <popular, k>`."""

    name = "popular"

    def __init__(self, dim):
        super().__init__()
        self.popular = nn.Parameter(torch.randn(dim))

    def key(self, k):
        return InnerKey(k, beta=k @ self.popular)


def popular(score, q, k):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return (q + score.popular) @ k.mT


regard.Activation("minus_abs", value=lambda x, _: -x.abs(), slope=lambda x, y, _: -x.sign())
regard.Activation("wrong_slope", value=lambda x, _: -x.abs(), slope=lambda x, y, _: x.sign())


def test_a_pairwise_score_of_a_user_passes():
    """The example of the docstring."""
    report = check_score(
        lambda dq, dk, heads, key_heads: Laplace(), laplace, kinked=True, dtypes=("fp32", "bf16")
    )
    assert report.served > 200 and report.refused > 200 and not report.failures
    assert "cases served" in str(report)


def test_an_inner_score_of_a_user_passes():
    report = check_score(lambda dq, dk, h, kh: Popular(dq), popular, dtypes=("fp64", "fp16"))
    assert set(report.worst) == {"sdpa", "cpu", "reference"}
    assert all(0 < ratio <= 1 for ratio, _ in report.worst.values())


def test_without_a_formula_the_lowering_is_the_formula():
    report = check_score(
        lambda dq, dk, h, kh: Popular(dq), engines=("reference",), dtypes=("bf16",)
    )
    assert report.served


class WrongSlope(Laplace):
    activation = "wrong_slope"


class WrongFormula(Popular):
    def key(self, k):
        return InnerKey(k, beta=k @ self.popular.abs())


class Detached(Popular):
    def key(self, k):
        return InnerKey(k, beta=k @ self.popular.detach())


class Rounded(Popular):
    """Loses digits on the way: bf16 inside."""

    def query(self, q):
        return InnerQuery(q.bfloat16().to(q.dtype))


class LooksAround(Popular):
    """The key side depends on the other keys, so that it cannot be cached."""

    def key(self, k):
        return super().key(k - k.mean(-2, keepdim=True))

    def lower(self, q, k, mask=None):
        return self.join(self.query(q), super().key(k))


BROKEN_SCORES = {
    "wrong slope": (WrongSlope, laplace, "gradient of query"),
    "wrong formula": (WrongFormula, popular, "regard.score: error"),
    "detached parameter": (Detached, popular, "gradient of score.popular"),
    "loses digits": (Rounded, popular, "regard.score: error"),
    "looks around": (LooksAround, popular, "each key lowered alone"),
}


@pytest.mark.parametrize("name", BROKEN_SCORES)
def test_a_broken_score_is_caught(name):
    kind, formula, complaint = BROKEN_SCORES[name]
    with pytest.raises(AssertionError, match=complaint):
        check_score(
            lambda dq, dk, h, kh: kind() if kind is WrongSlope else kind(dq),
            formula,
            kinked=kind is WrongSlope,
            engines=("cpu",),
            dtypes=("fp64",),
        )


class Uniform(Reference):
    """Averages the values where a query sees nothing, as a mask of large negative numbers does."""

    def run(self, problem):
        result = super().run(problem)
        empty = result.output.abs().sum(-1, keepdim=True) == 0
        value = problem.value.mean(-2, keepdim=True).repeat_interleave(
            problem.heads // problem.value.shape[-3], -3
        )
        return result._replace(output=torch.where(empty, value, result.output))


class Sloppy(Reference):
    """Wrong by 32 units in the last place."""

    def run(self, problem):
        result = super().run(problem)
        return result._replace(output=result.output * (1 + 32 * torch.finfo(problem.dtype).eps))


class DetachedLse(Reference):
    def run(self, problem):
        result = super().run(problem)
        return result if result.lse is None else result._replace(lse=result.lse.detach())


class Shy(Reference):
    def refusals(self, problem):
        return ["not today"] if problem.softcap is not None else []


class Crash(Reference):
    def run(self, problem):
        if problem.sink is not None:
            raise RuntimeError("no kernel image")
        return super().run(problem)


class Unwritten(Reference):
    """Leaves the rows that see nothing as the allocator gave them."""

    def run(self, problem):
        result = super().run(problem)
        empty = result.output.abs().sum(-1, keepdim=True) == 0
        fresh = torch.empty_like(result.output)
        return result._replace(output=torch.where(empty, fresh, result.output))


BROKEN_ENGINES = {
    "uniform": (Uniform, "output: .* should be exact"),
    "sloppy": (Sloppy, "output: error"),
    "detached lse": (DetachedLse, "through lse, entropy"),
    "shy": (Shy, "refuses unexpectedly: not today"),
    "crash": (Crash, "RuntimeError: no kernel image"),
    "unwritten": (Unwritten, "output: NaN"),
}


def check(monkeypatch, kind, expected):
    monkeypatch.setitem(plan.BY_NAME, "broken", kind())
    return check_engine("broken", expected, scores=("scaled_dot",), dtypes=("fp32",))


@pytest.mark.parametrize("name", BROKEN_ENGINES)
def test_a_broken_engine_is_caught(name, monkeypatch):
    kind, complaint = BROKEN_ENGINES[name]
    with pytest.raises(AssertionError, match=complaint):
        check(monkeypatch, kind, lambda engine, call: True)


def test_an_engine_that_serves_in_silence_is_caught(monkeypatch):
    def no_softcap(engine: str, call: Call) -> bool:
        return "softcap" not in call.options

    with pytest.raises(AssertionError, match="option softcap: serves what it should refuse"):
        check(monkeypatch, Reference, no_softcap)


def test_a_sound_engine_passes(monkeypatch):
    assert check(monkeypatch, Reference, lambda engine, call: True).served > 50


EPS = torch.finfo(torch.float32).eps
TRUTH = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
WRONG = {
    "too far": (TRUTH + 9 * EPS, "error"),
    "nan": (TRUTH.masked_fill(TRUTH == 1, torch.nan), "NaN in 1 places, expected 0"),
    "infinity": (TRUTH.masked_fill(TRUTH == 1, torch.inf), "infinities"),
    "not exact": (torch.where(TRUTH == 0, 1e-30, TRUTH), "1 entries should be exact"),
    "shape": (TRUTH[:2], "has shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_rule_finds_what_is_wrong(name):
    got, complaint = WRONG[name]
    exact = TRUTH == 0 if name == "not exact" else None
    found = compare("x", got, TRUTH + 2 * EPS, TRUTH, torch.float32, exact=exact)
    assert not found.passed and found.ratio > 1
    assert complaint in str(found)


def test_the_rule_allows_twice_the_error_of_plain_pytorch_and_two_eps_of_the_size():
    for step, passed in ((7.9, True), (8.1, False)):
        found = compare("x", TRUTH + step * EPS, TRUTH + 2 * EPS, TRUTH, torch.float32)
        assert found.passed is passed
    # The size of the terms, and the logit that LSE is rounded at, widen the floor.
    found = compare("x", TRUTH + 29 * EPS, TRUTH, TRUTH, torch.float32, size=10.0, logit=1.0)
    assert found.passed
    # In half precision LSE is still one number of fp32.
    half = torch.finfo(torch.bfloat16).eps
    got = TRUTH + 5 * half
    assert not compare("x", got, TRUTH, TRUTH, torch.bfloat16, logit=1.0).passed


def test_fp64_is_measured_by_the_error_of_fp32():
    small = torch.finfo(torch.float64).eps
    found = compare("x", TRUTH + 7.9 * small, TRUTH + 2 * EPS, TRUTH, torch.float64)
    assert found.passed and found.plain == pytest.approx(2 * small)


def test_fresh_memory_is_poisoned_and_then_no_more():
    before = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)
    with poisoned():
        like = torch.zeros(3)
        fresh = [torch.empty(3), torch.empty_like(like), like.new_empty(2)]
        fresh.append(torch.empty_strided((2, 2), (1, 2)))
        assert all(x.isnan().all() for x in fresh)
        assert (torch.empty(3, dtype=torch.int64) < 0).all()
        assert not torch.zeros(3).isnan().any()
    after = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)
    assert after == before


def test_small_tiles_cut_small_inputs():
    from regard.engines.cpu.tiles import TiledShape, row_tiles

    shape = TiledShape(1, 1, 2, 9, 33, 4)
    assert len(list(row_tiles(shape))) == 1
    with small_tiles():
        assert len(list(row_tiles(shape))) == 4
    assert len(list(row_tiles(shape))) == 1


def test_the_suite_needs_torch_alone():
    """Authors of scores may run their tests without pytest."""
    code = "import sys, regard.testing; print(*{'pytest', 'hypothesis'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == ""
