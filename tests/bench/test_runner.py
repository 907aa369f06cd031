"""One setting measured: turns, scaling, and no time for what is wrong or does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.bench import check as checking
from regard.bench import runner as running
from regard.bench.candidate import BOTH, FORWARD, Candidate, Prepared, Stated, Work
from regard.bench.check import Truth, check, formula
from regard.bench.ours import OURS, SineFast
from regard.bench.peers import (
    DOTS,
    PEERS,
    CompiledTextbook,
    Eager,
    EagerLinear,
    Flex,
    Keras,
    textbook_summed,
)
from regard.bench.results import Measured
from regard.bench.runner import Effort, Runner, Skip, broken
from regard.bench.settings import Setting
from regard.bench.tensors import V_NORM, Tensors, make_tensors
from regard.measuring import memory, stopwatch
from regard.measuring.stopwatch import Stopwatch

CPU = torch.device("cpu")
TINY = Setting("tiny", 1, 3, 10, 12, 8, 6, "float32")
LOOP = Setting("tiny loop", 2, 1, 5, 12, 8, 6, "float32", loop=True)
EFFORT = Effort(seconds=0.01, longest=5.0, least=2, most=2)


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call is enough: it is not the times that are tested."""
    monkeypatch.setattr(stopwatch, "calls_per_sample", lambda expected: 1)


class Changed(Candidate):
    """The textbook with something done to its result."""

    name, family, what = "changed", "peer", "the textbook, changed"

    def change(self, x: Tensor) -> Tensor:
        return x

    def prepare(self, tensors: Tensors) -> Prepared:
        v = tensors.v
        return Prepared(lambda a, b, value: self.change(textbook_summed(a, b, value, v)), [v])


class Wrong(Changed):
    name = "wrong"

    def change(self, x: Tensor) -> Tensor:
        return 1.01 * x


class WrongGradient(Changed):
    """The output is right, its gradient is not."""

    name = "wrong gradient"

    def change(self, x: Tensor) -> Tensor:
        return 1.01 * x - 0.01 * x.detach()


class NotANumber(Changed):
    name = "nan"

    def change(self, x: Tensor) -> Tensor:
        return x * torch.nan


class Broken(Changed):
    name = "broken"

    def change(self, x: Tensor) -> Tensor:
        raise LookupError("no such kernel\nand a page of log")


class Approximate(Wrong):
    name, stated = "approximate", Stated(output=0.02, gradient=0.02)


class OneHeadOnly(Changed):
    """Memory runs out for more than one head."""

    name = "one head only"

    def change(self, x: Tensor) -> Tensor:
        if x.shape[:2] != (1, 1):
            raise torch.OutOfMemoryError("out of memory")
        return x


def measured(*candidates: Candidate, setting: Setting = TINY, effort: Effort = EFFORT) -> Measured:
    return Runner(CPU, 0, effort).measure(setting, candidates)


@pytest.mark.parametrize("setting", [TINY, LOOP], ids=["square", "loop"])
def test_ours_and_peers_pass_their_checks(setting: Setting) -> None:
    slow = [c for c in PEERS if not isinstance(c, CompiledTextbook)]
    found = measured(*OURS, *slow, setting=setting)
    timed = {row.name for row in found.rows if all(p.timed() for p in row.passes.values())}
    assert {"sine fast", "exact", "textbook eager", "textbook linear", "dot math"} <= timed
    assert {"Keras"} <= timed or "keras" in found.find("Keras").reasons("unavailable")[0].lower()
    assert not [row.name for row in found.rows if row.reasons("failed", "skipped", "pending")]
    exact, near = (found.find(name).passes for name in ("exact", "sine fast"))
    assert exact[FORWARD].error < 1e-6 < near[FORWARD].error < 4.5e-3
    assert exact[BOTH].error < 1e-5 < near[BOTH].error < 5e-2
    assert all(len(p.times.samples) == 2 and p.bytes > 0 for p in exact.values())


@pytest.mark.slow
def test_the_compiled_textbook_is_timed() -> None:
    (row,) = measured(CompiledTextbook()).rows
    assert all(p.timed() for p in row.passes.values()), row.reasons("failed", "skipped")


@pytest.mark.parametrize("candidate", [Wrong(), NotANumber()], ids=lambda c: c.name)
def test_a_wrong_output_gets_no_time(candidate: Candidate) -> None:
    found = measured(candidate, Eager())
    row = found.find(candidate.name)
    for p in row.passes.values():
        assert p.status == "failed" and not p.timed() and not p.times.samples
        assert "no time: its output errs by" in p.reason
    assert found.find("textbook eager").passes[BOTH].timed()


def test_a_wrong_gradient_gets_no_time_for_its_backward_pass() -> None:
    row = measured(WrongGradient()).rows[0]
    assert row.passes[FORWARD].timed()
    assert row.passes[BOTH].status == "failed" and not row.passes[BOTH].times.samples
    assert "gradient of a errs by 1.0e-02" in row.passes[BOTH].reason


def test_what_an_approximation_states_is_allowed_to_it() -> None:
    row = measured(Approximate()).rows[0]
    assert all(p.timed() for p in row.passes.values())
    assert 0.02 < row.passes[FORWARD].limit < 0.0201


def test_one_that_breaks_does_not_take_the_others_with_it() -> None:
    found = measured(Broken(), Eager())
    assert found.rows[0].reasons("failed") == ["LookupError: no such kernel"]
    assert found.rows[1].passes[FORWARD].timed()


def test_candidates_take_turns_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr(Stopwatch, "sample", lambda self, run, cost: order.append(run) or 1.0)
    found = measured(Eager(), EagerLinear())
    names = [(run.__self__.candidate.name.split()[1], run.__name__) for run in order]
    one_round = [
        (name, which)
        for which in ("forward", "both")
        for name in ("eager", "linear", "linear", "eager")
    ]
    assert names == 2 * one_round
    assert found.rows[0].passes[BOTH].times.samples == [1.0, 1.0]


def test_one_that_breaks_in_its_rounds_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def sample(self: Stopwatch, run, cost: float) -> float:
        calls.append(run.__self__.candidate.name)
        if calls.count("textbook eager") == 6:  # in the second round, after a sample was kept
            raise torch.OutOfMemoryError("out of memory")
        return 1.0

    monkeypatch.setattr(Stopwatch, "sample", sample)
    eager, linear = measured(Eager(), EagerLinear()).rows
    assert eager.passes[FORWARD].status == "skipped" and not eager.passes[FORWARD].times.samples
    assert eager.passes[FORWARD].reason.startswith("in its rounds: OutOfMemoryError")
    assert eager.passes[BOTH].times.samples == linear.passes[FORWARD].times.samples == [1.0, 1.0]


def test_a_call_that_would_take_too_long_is_scaled_by_heads(monkeypatch) -> None:
    monkeypatch.setattr(running, "LARGE", 1)
    monkeypatch.setattr(Stopwatch, "sample", lambda self, run, cost: 1.0)
    (row,) = measured(Eager(), effort=Effort(0.01, longest=1e-9, least=2)).rows
    for p in row.passes.values():
        assert p.scaled_from == 1 and set(p.times.samples) == {3.0}
    whole = measured(Eager()).rows[0].passes[FORWARD]
    assert whole.scaled_from is None
    assert row.passes[FORWARD].bytes == pytest.approx(whole.bytes, rel=0.5)


def test_what_does_not_fit_with_all_heads_runs_with_one(monkeypatch) -> None:
    monkeypatch.setattr(running, "LARGE", 1)
    (row,) = measured(OneHeadOnly()).rows
    assert all(p.timed() and p.scaled_from == 1 for p in row.passes.values())


def test_what_does_not_fit_at_all_is_skipped_with_the_arithmetic(monkeypatch) -> None:
    # Enough for the inputs alone.
    monkeypatch.setattr(memory, "available", lambda device: 2**10)
    monkeypatch.setattr(Setting, "input_bytes", 1)
    (row,) = measured(Eager()).rows
    assert all(p.status == "skipped" and not p.times.samples for p in row.passes.values())
    assert "4 tensors [Q, L, hidden] of 3 heads, with 1.0 KiB free" in row.passes[FORWARD].reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dot_written_out_says_what_it_holds(dtype: str) -> None:
    """No hidden units, and fp32 even of halves; what it says is near what it takes."""
    setting = Setting("", 1, 2, 256, 256, 64, 16, dtype)
    *others, math = DOTS
    held = math.held(setting)
    assert str(held) == "4 tensors [Q, L]" and held.bytes == 4 * 2 * 256 * 256 * 4
    assert str(Eager().held(setting)) == "4 tensors [Q, L, hidden]"
    assert not any(c.held(setting).bytes or c.heavy for c in others) and math.heavy
    work = Work(math, make_tensors(setting, CPU, 0))
    work.both()
    assert 0.5 * held.bytes < memory.peak(work.both, CPU) <= held.bytes


def test_inputs_that_do_not_fit_are_not_drawn(monkeypatch) -> None:
    """Of which the CPU's allocator would know too late."""
    drawn = []
    monkeypatch.setattr(running, "make_tensors", lambda *given: drawn.append(given))
    setting = Setting("huge", 1, 8, 2**24, 2**24, hidden=2**12, value_dim=64, dtype="float32")
    with pytest.raises(Skip, match=r"its inputs take 4\.1 TiB"):
        Runner(torch.device("cpu"), 0, EFFORT).measure(setting, [Eager()])
    (row,) = broken(setting, [Eager()], Skip("too large")).rows
    assert drawn == [] and {p.reason for p in row.passes.values()} == {"too large"}
    assert {p.status for p in row.passes.values()} == {"skipped"}


def test_a_loop_that_would_keep_too_much_for_its_backward_is_left_out(monkeypatch) -> None:
    """By its first 4 steps of 8: each keeps a [1, L, hidden] tensor or more."""
    setting = Setting("loop", 1, 1, 8, 64, hidden=32, value_dim=8, dtype="float32", loop=True)
    runner = Runner(torch.device("cpu"), 0, EFFORT)
    monkeypatch.setattr(EagerLinear, "tensors", 0)
    for free, status in ((2**30, "measured"), (40 * 2**10, "skipped")):
        monkeypatch.setattr(Runner, "free", lambda self, free=free: free)
        monkeypatch.setattr(memory, "available", lambda device, free=free: free)
        (row,) = runner.measure(setting, [EagerLinear()]).rows
        assert row.passes[FORWARD].status == "measured"
        assert row.passes[BOTH].status == status
    assert "for what 8 steps keep for their backward, with 40.0 KiB free" in row.passes[BOTH].reason


def test_reasons_for_what_is_not_there(monkeypatch) -> None:
    tensors = make_tensors(TINY, CPU, 0)
    assert Flex().available(tensors) == "it is fast on a GPU alone"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Keras().available(tensors) == "keras is not installed"
    monkeypatch.setattr(SineFast, "engine", "sin")
    assert "unknown engine 'sin'" in SineFast().available(tensors)


def test_inputs_depend_on_the_seed_alone_and_are_not_zero() -> None:
    one, same, other = (make_tensors(TINY, CPU, seed) for seed in (0, 0, 1))
    assert torch.equal(one.a, same.a) and not torch.equal(one.a, other.a)
    assert torch.allclose(one.v.abs().sum(-1), torch.tensor(V_NORM))
    for x in (one.a, one.b, one.value, one.grad, one.dot_query, one.dot_key):
        assert 0.5 < x.std() < 1.5


def test_a_loop_gives_what_one_call_gives() -> None:
    looped = make_tensors(LOOP, CPU, 0)
    at_once = Tensors(
        Setting("", 2, 1, 5, 12, 8, 6, "float32"),
        *(
            getattr(looped, name)
            for name in ["a", "b", "value", "v", "grad", "dot_query", "dot_key"]
        ),
    )
    for x, y in zip(Work(Eager(), looped).both(), Work(Eager(), at_once).both(), strict=True):
        torch.testing.assert_close(x, y)


def test_truth_in_blocks_is_truth_at_once(monkeypatch) -> None:
    tensors = make_tensors(TINY, CPU, 0)
    rows = torch.arange(TINY.len_q)
    whole = formula(tensors, rows, False, torch.float64)
    monkeypatch.setitem(checking.BLOCK_NUMBERS, "cpu", 1)
    for x, y in zip(formula(tensors, rows, False, torch.float64), whole, strict=True):
        torch.testing.assert_close(x, y)
    leaves = [t.detach().double().requires_grad_() for t in (tensors.a, tensors.b, tensors.value)]
    leaves.append(tensors.v.detach().double().requires_grad_())
    output = textbook_summed(*leaves)
    grads = torch.autograd.grad(output, leaves, tensors.grad.double())
    for x, y in zip(whole, (output, *grads[:3], grads[3].sum(0)), strict=True):
        torch.testing.assert_close(x, y.detach())


def test_half_precision_is_held_to_its_own_error() -> None:
    tensors = make_tensors(Setting("half", 1, 2, 16, 32, 8, 8, "bfloat16"), CPU, 0)
    errors = check(Work(Eager(), tensors), Truth(tensors), BOTH)
    assert errors.output_passed and errors.gradient_passed
    assert errors.output == errors.plain_output > 1e-4
    assert errors.gradient == errors.plain_gradient > 1e-4
    assert errors.output_limit == pytest.approx(max(2 * errors.output, 2**-8))
    assert errors.gradient_limit == pytest.approx(max(2 * errors.gradient, 2**-7))
