"""The two times of a GPU, on a clock and graphs that are made up: no GPU is needed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from regard.bench import runner as running
from regard.bench.bars import outcomes
from regard.bench.candidate import BOTH, FORWARD, PASSES
from regard.bench.peers import DOTS, Eager, EagerLinear, SdpaDot
from regard.bench.present import table
from regard.bench.results import Measured
from regard.bench.runner import Effort, Runner
from regard.bench.settings import Setting, bars
from regard.measuring import memory, stopwatch
from regard.measuring.graphs import CaptureError, Recorder
from regard.measuring.stopwatch import Stopwatch

from .made import made_setting, made_up

CPU = torch.device("cpu")
TINY = Setting("tiny", 2, 3, 10, 12, 8, 6, "float32")
EFFORT = Effort(seconds=0.01, longest=5.0, least=2, most=2, eager=1, heads=2)


class FakeCuda:
    """Counts time and graphs in place of `torch.cuda`; `log` has what happened, in order."""

    def __init__(self) -> None:
        self.now, self.pools, self.current = 0.0, 0, "main"
        self.log: list[str] = []
        self.open_pool: object = None

    def spend(self, ms: float) -> None:
        self.now += ms

    def event(self, enable_timing: bool) -> SimpleNamespace:
        made = SimpleNamespace(at=None)
        made.record = lambda: setattr(made, "at", self.now)
        made.elapsed_time = lambda end: end.at - made.at
        return made

    def handle(self) -> tuple[int, int]:
        self.pools += 1
        return (0, self.pools)

    @contextlib.contextmanager
    def stream(self, which):
        before, self.current = self.current, which.name
        try:
            yield
        finally:
            self.current = before

    def make_stream(self, device) -> SimpleNamespace:
        return SimpleNamespace(name="side", wait_stream=lambda other: None)

    def make_graph(self) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: self.log.append("replay"))

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        """As PyTorch's: where a call breaks, its end raises too and leaves the pool open."""
        self.empty_cache()
        self.log.append(f"begin {pool[1]} on {self.current}")
        self.open_pool = pool
        try:
            yield
        except Exception:
            raise RuntimeError("the recording was invalidated\nand more") from None
        self.open_pool = None
        self.log.append("end")

    def empty_cache(self) -> None:
        if self.open_pool is not None:
            raise RuntimeError("a recording is under way")

    def close(self, index: int, pool: object) -> None:
        assert self.open_pool == pool and index == 0
        self.open_pool = None


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name, made in {
        "Event": fake.event, "Stream": fake.make_stream, "stream": fake.stream, "graph": fake.graph,
        "CUDAGraph": fake.make_graph, "graph_pool_handle": fake.handle, "synchronize": lambda d: None,
        "current_stream": fake.make_stream, "empty_cache": fake.empty_cache,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, made)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.close, raising=False)
    return fake


def gpu_watch(cuda: FakeCuda, small: bool) -> Stopwatch:
    watch = Stopwatch(CPU, small)
    watch.on_gpu = True
    watch.flush = SimpleNamespace(zero_=lambda: cuda.spend(100.0))
    return watch


def test_large_calls_are_timed_one_by_one_with_an_empty_cache(cuda: FakeCuda) -> None:
    took = iter([2.0, 9.0, 3.0])
    seconds = gpu_watch(cuda, small=False).sample(lambda: cuda.spend(next(took)), 0.002)
    assert seconds == pytest.approx(3e-3) and cuda.now == 314.0  # the median, without the flush


def test_small_calls_are_timed_in_a_row(cuda: FakeCuda) -> None:
    watch = gpu_watch(cuda, small=True)
    assert watch.sample(lambda: cuda.spend(0.5), 0.0005) == pytest.approx(5e-4)
    assert cuda.now == 105.0  # ten calls behind one flush


def test_what_a_caller_waits_is_by_the_wall_for_small_calls(cuda: FakeCuda, monkeypatch) -> None:
    monkeypatch.setattr(stopwatch, "clock", lambda run, calls, device: 7.0)
    assert gpu_watch(cuda, small=True).eager(lambda: None, 0.01) == 7.0
    assert gpu_watch(cuda, small=False).eager(lambda: cuda.spend(4.0), 1.0) == pytest.approx(4e-3)


def test_a_call_is_warmed_up_beside_the_main_stream_then_recorded(cuda: FakeCuda) -> None:
    recorder = Recorder(CPU)
    replay = recorder.record(lambda: cuda.log.append(f"call on {cuda.current}"))
    calls = ["call on side"]
    assert cuda.log == [*2 * calls, "begin 1 on side", *calls, "end", "replay"]
    assert cuda.current == "main"
    replay()
    recorder.record(lambda: None)
    assert cuda.log[-4:] == ["replay", "begin 1 on side", "end", "replay"]  # the same pool


def test_a_failed_recording_is_cleaned_up_and_the_next_works(cuda: FakeCuda) -> None:
    def synchronizes() -> None:
        if cuda.open_pool is not None:
            raise RuntimeError("not permitted when stream is capturing")

    recorder = Recorder(CPU)
    with pytest.raises(
        CaptureError, match=r"^RuntimeError: not permitted when stream is capturing$"
    ):
        recorder.record(synchronizes)
    assert cuda.open_pool is None and cuda.current == "main" and not recorder.broken
    cuda.log.clear()
    recorder.record(lambda: None)
    assert cuda.log[0] == "begin 2 on side"  # a fresh pool


def test_the_error_of_the_call_is_told_and_not_one_that_it_handled(cuda: FakeCuda) -> None:
    def asks_first() -> None:
        if cuda.open_pool is not None:
            try:
                {}["plan"]
            except KeyError:
                raise RuntimeError("no plan for this size") from None

    with pytest.raises(CaptureError, match=r"^RuntimeError: no plan for this size$"):
        Recorder(CPU).record(asks_first)


def test_a_failure_that_cannot_be_cleaned_up_is_remembered(cuda: FakeCuda, monkeypatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_endAllocateToPool")
    recorder = Recorder(CPU)
    with pytest.raises(CaptureError):
        recorder.record(lambda: 1 / 0 if cuda.open_pool else None)
    with pytest.raises(CaptureError, match=r"no way to record .*a recording is under way"):
        recorder.record(lambda: None)


class OnGpu(Runner):
    """A runner that thinks it is on a GPU."""

    on_gpu = True


class FakeRecorder:
    """Replays are numbers; one candidate cannot be recorded."""

    refuses = "textbook linear"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def record(self, run):
        if run.__self__.candidate.name == self.refuses:
            raise CaptureError("RuntimeError: it synchronizes")

        def replay() -> None:
            pass

        replay.of = run
        return replay


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A replay takes 1 s, an eager call 3 s by either clock; the list has who was timed, and how."""
    found: list[tuple[str, str]] = []

    def sample(self: Stopwatch, run, cost: float) -> float:
        replayed = hasattr(run, "of")
        work = (run.of if replayed else run).__self__
        found.append(("replay" if replayed else "call", work.candidate.name))
        return 1.0 if replayed else 3.0

    def eager(self: Stopwatch, run, cost: float) -> float:
        found.append(("eager", run.__self__.candidate.name))
        return 3.0

    monkeypatch.setattr(running, "Recorder", FakeRecorder)
    monkeypatch.setattr(Stopwatch, "sample", sample)
    monkeypatch.setattr(Stopwatch, "eager", eager)
    return found


def measured(effort: Effort = EFFORT) -> Measured:
    return OnGpu(CPU, 0, effort).measure(TINY, [Eager(), EagerLinear()])


def test_replays_take_turns_then_eager_calls_do(order) -> None:
    found = measured()
    there = [("replay", "textbook eager"), ("call", "textbook linear")]
    eager = [("eager", name) for _, name in there]
    one, last = [*there, *reversed(there)], [*eager, *reversed(eager)]
    assert order == [*4 * one, *2 * last]  # two rounds of two passes, then one
    for which in PASSES:
        recorded, not_recorded = (row.passes[which] for row in found.rows)
        assert recorded.captured is True and recorded.times.samples == [1.0, 1.0]
        assert recorded.eager_ms() == 3000.0
        assert not_recorded.captured is False and not_recorded.times.samples == [3.0, 3.0]
        assert not_recorded.capture_error == "RuntimeError: it synchronizes"


def test_ratios_use_device_times_and_say_which_were_not(order) -> None:
    found = measured()
    over = found.over(found.rows[1], FORWARD)["textbook"]
    assert over["ratio"] == 3.0 and over["not_captured"] == ["textbook linear"]
    again = Measured.from_dict(found.as_dict())
    assert again.as_dict() == found.as_dict()
    passes = again.as_dict()["rows"][1]["passes"]["forward"]
    assert passes["captured"] is False and passes["eager_ms"] == 3000.0
    text = table(found)
    assert "*3000" in text and "textbook linear, forward: not captured: RuntimeError" in text
    assert "eager, ms: textbook eager 3000/3000" in text


def test_graphs_are_recorded_after_all_memory_was_measured(order, monkeypatch) -> None:
    log = []
    monkeypatch.setattr(memory, "peak", lambda run, device: log.append("peak") or 1)
    whole = FakeRecorder.record
    monkeypatch.setattr(
        FakeRecorder, "record", lambda self, run: log.append("record") or whole(self, run)
    )
    measured()
    assert log == 4 * ["peak"] + 4 * ["record"]


def test_one_that_breaks_when_called_keeps_its_device_time(order, monkeypatch) -> None:
    def eager(self: Stopwatch, run, cost: float) -> float:
        raise RuntimeError("lost")

    monkeypatch.setattr(Stopwatch, "eager", eager)
    for p in measured().rows[0].passes.values():
        assert p.timed() and p.eager_ms() is None
        assert p.reason == "in its eager rounds: RuntimeError: lost"


def test_heavy_candidates_run_with_as_many_heads_as_fit(order, monkeypatch) -> None:
    monkeypatch.setattr(running, "LARGE_HEAVY", 1)

    def heads_of(row) -> int | None:
        (heads,) = {p.scaled_from for p in row.passes.values()}
        return heads

    assert [heads_of(row) for row in measured().rows] == [None, None]  # all 6
    slow = measured(replace(EFFORT, longest=1e-9)).rows
    assert [heads_of(row) for row in slow] == [2, 2]
    assert slow[1].passes[BOTH].times.samples == [9.0, 9.0]
    monkeypatch.setattr(
        memory, "peak", lambda run, device: 10**5 * run.__self__.tensors.setting.all_heads
    )
    # Room for a call and for what was recorded before.
    for free, heads in ((13 * 10**5, None), (9 * 10**5, 3), (5 * 10**5, 2), (2 * 10**4, 1)):
        monkeypatch.setattr(Runner, "free", lambda self, free=free: free)
        assert heads_of(measured().rows[0]) == heads


def test_dot_written_out_is_scaled_by_heads_or_left_out_and_the_others_run(
    order, monkeypatch
) -> None:
    """Its matrix of all pairs would not fit into a GPU at the longest lengths."""
    dots = [DOTS[1], DOTS[3]]  # those that a CPU has
    setting = Setting("dots", 2, 3, 120, 128, 8, 64, "float32")

    def found():
        return OnGpu(CPU, 0, EFFORT).measure(setting, dots).rows

    def heads_of(row) -> set[int | None]:
        return {p.scaled_from for p in row.passes.values()}

    assert [heads_of(row) for row in found()] == [{None}, {None}]
    # Few enough pairs, but their bytes are too many: a few heads first, and then all do not fit.
    held = dots[1].held(setting)
    for share, heads in ((1.0, {2, 3}), (0.2, {1})):
        monkeypatch.setattr(Runner, "free", lambda self, share=share: share * held.bytes)
        flash, math = found()
        assert heads_of(flash) == {None} and heads_of(math) <= heads
        assert all(p.timed() for p in math.passes.values())
    whole = SdpaDot.prepare

    def no_room(self, tensors):
        if self is dots[1]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64 GiB")
        return whole(self, tensors)

    monkeypatch.setattr(SdpaDot, "prepare", no_room)
    flash, math = found()
    assert all(p.timed() for p in flash.passes.values())
    assert math.reasons("skipped") == [
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 64 GiB"
    ]


def test_ratios_stay_over_cudnn_with_every_backend_measured() -> None:
    """Also where another backend is faster, until cuDNN has no time."""
    m = made_setting(bars("cuda")[0])
    fast = m.find("sine fast")
    flash = m.find("dot flash")
    flash.passes[FORWARD].times.samples[:] = [1e-6] * 3
    assert m.over(fast, FORWARD)["dot"]["of"] == "dot cuDNN"
    assert f"dot = dot cuDNN; rounds: {m.rounds}" in table(m)
    m.find("dot cuDNN").passes[FORWARD].status = "skipped"
    assert m.over(fast, FORWARD)["dot"]["of"] == "dot flash"
    assert m.over(fast, BOTH)["dot"]["of"] == "dot cuDNN"


def test_bars_show_both_times_and_say_what_was_not_captured() -> None:
    results = made_up(bars("cuda"))
    rows = {
        row.name: row for m in results.measured.values() for row in m.rows if m.setting.hidden == 16
    }
    for name, factor in {"sine fast": 4.0, "dot cuDNN": 2.0}.items():
        for p in rows[name].passes.values():
            p.captured, p.eager = True, type(p.times)([factor * x for x in p.times.samples])
    rows["dot cuDNN"].passes[BOTH].captured = False
    forward, both = outcomes(results.measured.values(), "cuda")[:2]
    assert forward.eager == pytest.approx(2 * forward.value) and forward.note == ""
    assert both.note == "not captured, so eager time: dot cuDNN"


def test_a_bar_without_a_number_says_why_and_is_missed() -> None:
    results = made_up(bars("cuda"))
    for m in results.measured.values():
        for p in m.find("textbook compiled").passes.values():
            p.status, p.reason = "failed", "no compiler"
    found = {o.name: o for o in outcomes(results.measured.values(), "cuda")}
    # The eager textbook has a time, but the faster of the two is not known.
    for name in (
        "speed-up of fast, hidden 16, forward",
        "speed-up of fast, hidden 16, forward+backward",
    ):
        assert found[name].value is None and not found[name].met
        assert (
            "not measured: textbook compiled" in found[name].note
            and "no compiler" in found[name].note
        )
    assert found["fast, hidden 16, forward"].value is not None
