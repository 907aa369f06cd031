"""Measuring: real errors and memory, no time for a wrong result, nothing lost on the way."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from regard.choosing.cost import check, measurement
from regard.choosing.cost.answer import answer
from regard.choosing.cost.candidates import candidates
from regard.choosing.cost.measurement import measure
from regard.choosing.cost.need import candidate_need
from regard.choosing.cost.results import CostReport
from regard.choosing.cost.shape import ShapeError, parse_shape
from regard.choosing.cost.workload import Workload, make_inputs
from regard.measuring import memory, textbook
from regard.measuring.machine import calm_threads
from regard.measuring.times import Times

CPU = torch.device("cpu")
TINY = "d_q=12,d_k=8,len=24,heads=2"


def run(text: str = TINY, **options) -> CostReport:
    return measure(parse_shape(text), seconds=0.2, **options)


@pytest.fixture(scope="module")
def tiny() -> CostReport:
    return run()


def test_every_score_is_measured_or_says_why_not(tiny: CostReport) -> None:
    refused = {row.candidate.key for row in tiny.of("refused")}
    assert refused == {"dot", "scaled_dot", "cosine", "gaussian"}
    measured = {row.candidate.key for row in tiny.of("measured")}
    assert measured | refused == {c.key for c in candidates(tiny.shape)}
    assert not tiny.interrupted


def test_a_measured_row_is_complete(tiny: CostReport) -> None:
    for row in tiny.of("measured"):
        assert row.timed()
        assert row.parameters == row.candidate.parameters
        assert row.engine == ("eager" if row.candidate.textbook else row.engine) is not None
        assert len(row.forward.samples) == len(row.both.samples) >= 1
        assert min(row.forward.samples + row.both.samples) > 0
        assert row.forward_memory and row.both_memory
        assert row.error is not None and 0 < row.error < 1e-5
        assert row.gradient_error is not None and 0 < row.gradient_error < 1e-4


def test_the_baseline_is_projected_only_where_it_must_be(tiny: CostReport) -> None:
    assert tiny.baseline is not None
    assert tiny.baseline.candidate.key == "projected_scaled_dot"
    alike = run("d_q=8,len=16").baseline
    assert alike is not None and alike.candidate.key == "scaled_dot"


@pytest.mark.parametrize(
    "text",
    [
        "d_q=1,len=1",
        "d_q=8,len_q=5,len_k=3",
        "d_q=16,len_q=3,len_k=40,causal=1,heads=4,key_heads=2",
        "d_q=16,d_k=8,len=32,heads=2,dtype=bfloat16",
        "d_q=16,len=32,heads=2,dtype=float16,causal=1",
        "d_q=16,len=17,batch=3,heads=6,key_heads=3,d_v=5,width=7,hidden=3,rank=2",
    ],
)
def test_odd_shapes_pass_their_error_check(text: str) -> None:
    report = run(text)
    assert not report.of("failed"), [row.reason for row in report.of("failed")]
    assert not report.of("skipped"), [row.reason for row in report.of("skipped")]


def test_a_wrong_result_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The textbook run forgets the softmax's scale of one score; fp64 truth keeps it."""
    honest = Workload.run

    def wrong(self: Workload, query: torch.Tensor | None = None) -> torch.Tensor:
        return honest(self, query) * (1.01 if self.candidate.key == "low_rank" else 1.0)

    monkeypatch.setattr(Workload, "run", wrong)
    report = run()
    (row,) = report.of("failed")
    assert row.candidate.key == "low_rank"
    assert not row.timed() and not row.forward.samples
    assert "error against fp64 is 1.0e-02" in row.reason
    found = row.as_dict(report.baseline)
    assert found["forward_seconds"] is None and found["forward_backward_ratio"] is None


def test_nan_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Workload.run
    monkeypatch.setattr(Workload, "run", lambda self, query=None: honest(self, query) * torch.nan)
    assert run().of("measured") == []


def test_one_candidate_that_breaks_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no such kernel\nlong details")

    monkeypatch.setitem(textbook.FORMULAS, "bilinear", broken)
    report = run()
    (row,) = report.of("failed")
    assert (row.candidate.key, row.reason) == ("bilinear", "no such kernel")
    assert len(report.of("measured")) == len(report.rows) - 5


@pytest.mark.parametrize("step", ["checking", "timing"])
def test_ctrl_c_keeps_what_was_measured(step: str) -> None:
    seen = []

    def stop(label: str, done: float, total: float) -> None:
        seen.append(label)
        assert total >= 0 and done >= 0
        if label.startswith(step) and sum(x.startswith(step) for x in seen) == 4:
            raise KeyboardInterrupt

    report = run(on_step=stop)
    assert report.interrupted
    timed = [row for row in report.rows if row.timed()]
    assert len(timed) == (3 if step == "timing" else 0)
    assert answer(report)


def test_what_does_not_fit_is_skipped_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device: 250 * 2**20)
    report = run("d_q=8,d_k=4,len=1024,heads=2,hidden=16")
    (row,) = report.of("skipped")
    assert row.candidate.key == "textbook_additive"
    assert "1 x 2 x 1024 x 1024 x 16 x 4 bytes = 128.0 MiB" in row.reason
    assert "384.0 MiB; 250.0 MiB are free on cpu" in row.reason


def test_inputs_that_do_not_fit_are_a_mistake() -> None:
    with pytest.raises(ShapeError, match="too large for this machine: inputs of"):
        run("d_q=1000000,len=1000000000")


def test_what_would_take_too_long_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "additive"
    monkeypatch.setattr(
        measurement, "predict", lambda work: 70.4 if work.candidate.key == slow else 0.0
    )
    (row,) = run().of("skipped")
    assert row.candidate.key == slow
    assert "would take about 70 s" in row.reason and "--seconds 141" in row.reason


def test_a_prediction_is_about_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds for the keys and a hundredth for each query."""
    shape = parse_shape("d_q=8,len_q=2000000,len_k=1")
    work = Workload(candidates(shape)[0], make_inputs(shape, CPU, 0), 0)
    monkeypatch.setattr(measurement, "partial", lambda _, count: 10 + count / 100)
    assert measurement.predict(work) == 0.0
    shape = parse_shape("d_q=8,len_q=20000,len_k=1024")
    work = Workload(candidates(shape)[0], make_inputs(shape, CPU, 0), 0)
    assert measurement.predict(work) == pytest.approx(10 + 200)


def test_peak_memory_is_what_was_allocated() -> None:
    held = torch.ones(1000)

    def work() -> torch.Tensor:
        first = torch.empty(2**20, dtype=torch.uint8)
        del first
        second = torch.empty(3 * 2**20, dtype=torch.uint8)
        third = torch.empty(2**19, dtype=torch.uint8)
        return second[: len(third)].float().sum() + held.sum()

    peak = memory.peak(work, CPU)
    assert 3.5 * 2**20 + 4 * 2**19 <= peak < 3.5 * 2**20 + 4 * 2**19 + 4096


def test_textbook_additive_takes_ten_times_our_memory() -> None:
    shape = parse_shape("d_q=32,d_k=16,len=640,heads=4")
    inputs, peaks = make_inputs(shape, CPU, 0), {}
    for candidate in candidates(shape):
        if candidate.key in ("additive", "textbook_additive"):
            work = Workload(candidate, inputs, 0)
            peaks[candidate.key] = [memory.peak(run, CPU) for run in (work.forward, work.both)]
    for ours, theirs in zip(peaks["additive"], peaks["textbook_additive"], strict=True):
        assert theirs > 10 * ours
    # The estimate that guards the machine is no less than what it guards against.
    textbook_one = next(c for c in candidates(shape) if c.textbook)
    assert candidate_need(textbook_one, "eager").bytes >= peaks["textbook_additive"][1]


def test_free_memory_is_found() -> None:
    assert 2**20 < memory.available(CPU) < 2**50


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (2**20, "1.0 MiB"), (3 * 2**39, "1.5 TiB")]
)
def test_bytes_are_spelled(count: int, text: str) -> None:
    assert memory.show(count) == text


def test_sampled_rows_hold_the_first_and_the_last() -> None:
    for text in ("d_q=4,len=1", "d_q=4,len=2", "d_q=4,len=1000,heads=4"):
        shape = parse_shape(text)
        rows = check.sample_rows(Workload(candidates(shape)[0], make_inputs(shape, CPU, 0), 0))
        assert rows[0] == 0 and rows[-1] == shape.len_q - 1
        assert len(rows.unique()) == len(rows) <= check.MOST_ROWS


def test_times_give_median_quartiles_and_ratios_by_round() -> None:
    times = Times([4.0, 1.0, 2.0, 3.0, 100.0])
    assert (times.median, times.quartiles) == (3.0, (2.0, 4.0))
    assert times.spread == pytest.approx(1 / 3)
    assert Times([2.0]).spread is None
    assert times.over(Times([2.0, 2.0])).samples == [2.0, 0.5]


def test_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    assert 1 <= calm_threads() <= before
    assert torch.get_num_threads() == before


def test_the_answer_warns_of_a_busy_machine(tiny: CostReport) -> None:
    quiet = dataclasses.replace(tiny, machine=tiny.machine | {"load": 0.0, "cores": 2})
    busy = dataclasses.replace(tiny, machine=tiny.machine | {"load": 9.0, "cores": 2})
    for row in quiet.rows:
        row.forward.samples[:] = row.forward.samples[:1] * 3
        row.both.samples[:] = row.both.samples[:1] * 3
    assert "busy" not in " ".join(answer(quiet))
    assert "load 9 on 2 cores" in " ".join(answer(busy))
