"""Measures one setting: checks the error and memory of every candidate, then times them in turns."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from regard.bench.candidate import BOTH, FORWARD, PASSES, Candidate, Held, Work
from regard.bench.check import Truth, Wrong, check, judge
from regard.bench.results import BenchRow, Measured, Pass
from regard.bench.settings import Setting
from regard.bench.tensors import Tensors, make_tensors
from regard.measuring import memory
from regard.measuring.clock import SAMPLE_SECONDS
from regard.measuring.failures import first_line as brief
from regard.measuring.failures import out_of_memory
from regard.measuring.graphs import CaptureError, Recorder
from regard.measuring.stopwatch import Stopwatch
from regard.measuring.turns import there_and_back

Tell = Callable[[str], None]
# From this many query-by-key elements on (`Candidate.held`), a few heads are tried before all of them.
# The three limits are for the CPU, for a GPU candidate that builds or unrolls these elements, and for one
# that does not; at the last limit such a call takes tens of milliseconds.
LARGE, LARGE_HEAVY, LARGE_LIGHT = 2**27, 2**31, 2**37
# Steps of a loop that are run to estimate the memory of all its steps.
FORESEEN = 4


@dataclass(frozen=True)
class Effort:
    """How much time to spend on a setting.

    Args:
        seconds: time for the timing rounds of a setting.
        longest: a call that would take more seconds with all heads is run with a few and scaled.
        least, most: bounds on the number of rounds.
        eager: on a GPU, number of rounds that time eager calls.
        heads: number of heads of one batch entry to run if all heads would be too much.
    """

    seconds: float
    longest: float
    least: int = 5
    most: int = 25
    eager: int = 3
    heads: int = 1


class Skip(Exception):
    """A pass is skipped; the message says why."""


@dataclass(eq=False)
class TimedPass:
    """A checked pass that takes part in the timing rounds.

    Args:
        run: the eager call, which takes about `cost` seconds.
        factor: scales the time of the heads that run to all heads.
        replay: replays the call as a CUDA graph, in about `replay_cost` seconds.
    """

    which: str
    row: BenchRow
    run: Callable[[], object]
    factor: float
    cost: float
    replay: Callable[[], object] | None = None
    replay_cost: float = 0.0

    @property
    def result(self) -> Pass:
        """The result that its times are added to."""
        return self.row.passes[self.which]

    @property
    def timed(self) -> tuple[Callable[[], object], float]:
        """The function that the rounds call, and about how many seconds it takes."""
        return (self.run, self.cost) if self.replay is None else (self.replay, self.replay_cost)


@dataclass
class Runner:
    """Measures settings on one device, one at a time."""

    device: torch.device
    seed: int
    effort: Effort
    tell: Tell = lambda text: None
    entries: list[TimedPass] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU, which has two times: the device's and the caller's."""
        return self.device.type == "cuda"

    def measure(self, setting: Setting, candidates: Sequence[Candidate]) -> Measured:
        """The results of all candidates in a setting.

        Raises:
            Skip: the inputs alone do not fit into memory.
        """
        began = time.perf_counter()
        if "torch._dynamo" in sys.modules:
            # Dynamo compiles a function for at most 8 sizes; with fullgraph=True the ninth raises.
            torch.compiler.reset()
        self.entries = []
        if not self.on_gpu and setting.input_bytes > self.free():
            raise Skip(f"its inputs take {memory.show(setting.input_bytes)}, more than there is")
        self.tensors = make_tensors(setting, self.device, self.seed)
        self.watch = Stopwatch(self.device, setting.by_wall)
        self.truths: dict[int, Truth] = {}
        rows = [BenchRow.start(candidate) for candidate in candidates]
        for row, candidate in zip(rows, candidates, strict=True):
            self.tell(f"checking {candidate.name}")
            self.prepare(row, candidate)
        # fp64 references are large: drop them before graphs need the memory.
        self.truths = {}
        self.record()
        rounds = self.rounds()
        self.entries = []
        del self.tensors, self.watch
        self.release()
        return Measured(setting, rows, rounds, time.perf_counter() - began)

    def prepare(self, row: BenchRow, candidate: Candidate) -> None:
        """Check both passes of a candidate; an error in one candidate does not affect the others."""
        try:
            unavailable = candidate.available(self.tensors)
        except Exception as error:  # a peer may raise anything, even when asked
            unavailable = brief(error)
        for which in PASSES:
            result, reason = row.passes[which], unavailable
            if reason is None and which == BOTH:
                reason = candidate.no_backward(self.tensors.setting)
            if reason is not None:
                result.status, result.reason = "unavailable", reason
            # A wrong forward pass makes its gradients meaningless: do not spend time on them.
            elif which == BOTH and row.passes[FORWARD].status == "failed":
                result.status, result.reason = "failed", row.passes[FORWARD].reason
            else:
                self.attempt(row, candidate, which)

    def attempt(self, row: BenchRow, candidate: Candidate, which: str) -> None:
        """Add a pass to the timing rounds, or record why it takes no part."""
        result = row.passes[which]
        try:
            self.entries.append(self.entry(row, candidate, which))
            return
        except Skip as skip:
            result.status, result.reason = "skipped", str(skip)
        except Wrong as wrong:
            result.status, result.reason = "failed", str(wrong)
        except Exception as error:  # a peer or a compiler may raise anything
            result.status = "skipped" if out_of_memory(error) else "failed"
            result.reason = brief(error)
        self.release()

    def entry(self, row: BenchRow, candidate: Candidate, which: str) -> TimedPass:
        """The pass on inputs that fit, with its error and peak memory checked and its call warmed up.

        Raises:
            Skip: it does not fit even with one head.
            Wrong: its error is too large.
        """
        result = row.passes[which]
        tensors = self.fit(candidate, which)
        factor = self.tensors.setting.all_heads / tensors.setting.all_heads
        work = Work(candidate, tensors)
        if tensors.setting.loop and which == BOTH and not self.on_gpu:
            self.foresee(work)
        errors = check(work, self.truth(tensors), which)
        judge(result, errors, which)
        # Memory comes before the clock: this run also warms up caches of the allocator.
        run = work.of(which)
        result.bytes = round(factor * memory.peak(run, self.device))
        result.scaled_from = tensors.setting.all_heads if factor > 1 else None
        # A first estimate is rough for a short call: take the best of two more.
        cost = self.watch.first(run)
        if cost < self.effort.longest / 10:
            cost = min(self.watch.first(run) for _ in range(2))
        result.status = "measured"
        return TimedPass(which, row, run, factor, cost)

    def fit(self, candidate: Candidate, which: str) -> Tensors:
        """The inputs with all heads if they fit into memory and time, else with a few heads."""
        whole = self.tensors
        setting = whole.setting
        if setting.all_heads == 1 or not self.large(candidate.held(setting), candidate.heavy):
            self.room(candidate, setting)
            return whole
        few = whole.with_heads(self.few_heads(candidate))
        run = Work(candidate, few).of(which)
        run()  # compiles, loads, fills caches
        heads = few.setting.all_heads
        seconds = min(self.watch.first(run) for _ in range(3)) / heads
        bytes_needed = memory.peak(run, self.device) / heads
        self.release()
        # The more heads run, the better their time scales to all: try all heads, then one batch entry.
        larger = [whole] if setting.batch == 1 else [whole, whole.with_heads(setting.heads)]
        for tensors in larger:
            heads = tensors.setting.all_heads
            # Time and memory are assumed to grow in proportion to the heads; the call itself then
            # confirms that the memory is enough.
            short = heads * seconds <= self.effort.longest
            short = short and heads * bytes_needed <= self.comfortable()
            if heads > few.setting.all_heads and short and self.runs(candidate, tensors, which):
                return tensors
        return few

    def large(self, held: Held, heavy: bool) -> bool:
        """Whether to try a few heads first."""
        if not self.on_gpu:
            return held.numbers >= LARGE
        # The counts were chosen on an H200 with 141 GB; on a smaller GPU the bytes decide.
        return held.numbers >= (LARGE_HEAVY if heavy else LARGE_LIGHT) or (
            held.bytes > self.comfortable()
        )

    def runs(self, candidate: Candidate, tensors: Tensors, which: str) -> bool:
        """Whether a pass runs on these inputs without running out of memory."""
        try:
            Work(candidate, tensors).of(which)()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self.release()
            return False
        return True

    def few_heads(self, candidate: Candidate) -> int:
        """The number of heads of a first try: `effort.heads` if the candidate's tensors fit, else 1."""
        setting = self.tensors.setting
        if candidate.held(setting.with_heads(self.effort.heads)).bytes <= self.free():
            return self.effort.heads
        self.room(candidate, setting.with_heads(1))
        return 1

    def room(self, candidate: Candidate, setting: Setting) -> None:
        """Raise `Skip` if the candidate's tensors would not fit into the CPU's memory.

        On the CPU running out of memory ends the process, so memory is checked before a call.
        """
        if self.on_gpu:
            return
        held = candidate.held(setting)
        if held.bytes > self.free():
            free = memory.available(self.device)
            raise Skip(
                f"about {memory.show(held.bytes)} for {held} of {setting.all_heads} heads, with "
                f"{memory.show(free)} free"
            )

    def foresee(self, work: Work) -> None:
        """Raise `Skip` if a loop would not fit, judged by its first steps.

        The backward pass of a loop keeps the saved tensors of every step.
        """
        steps = work.tensors.setting.len_q
        few = min(steps, FORESEEN)
        work.first_steps(few)  # builds tables and caches, which later steps share
        need = memory.peak(lambda: work.first_steps(few), self.device) / few * steps
        if need > self.free():
            free = memory.available(self.device)
            raise Skip(
                f"about {memory.show(need)} for what {steps} steps keep for their backward, with "
                f"{memory.show(free)} free"
            )

    def free(self) -> float:
        """Bytes of memory that a measurement may use."""
        return memory.SHARE * memory.available(self.device)

    def comfortable(self) -> float:
        """Bytes that a call may hold and still be captured in a CUDA graph.

        On a GPU this is half of the free memory: an earlier graph keeps its memory while the next call
        warms up.
        """
        return self.free() / 2 if self.on_gpu else self.free()

    def truth(self, tensors: Tensors) -> Truth:
        """The reference results for these inputs; cached by number of heads."""
        heads = tensors.setting.all_heads
        if heads not in self.truths:
            self.truths[heads] = Truth(tensors)
        return self.truths[heads]

    def record(self) -> None:
        """On a GPU, capture every pass as a CUDA graph.

        This comes after all memory was measured, because graphs keep their memory.
        """
        if not self.on_gpu or not self.entries:
            return
        # Autograd nodes of earlier backward passes may still be waiting for the garbage collector. They
        # would tie the leaves to the main stream, which must not take part in a capture.
        gc.collect()
        recorder = Recorder(self.device)
        for entry in self.entries:
            self.tell(f"recording {entry.row.name}")
            try:
                replay = recorder.record(entry.run)
            except CaptureError as error:
                entry.result.captured, entry.result.capture_error = False, str(error)
            else:
                entry.result.captured = True
                entry.replay, entry.replay_cost = replay, self.watch.first(replay)

    def rounds(self) -> int:
        """Time all passes in turns, A B C ... C B A; returns the number of rounds.

        Alternating exposes all candidates to the same drift of the machine's speed. Forward passes
        and forward+backward passes have separate turns, so that a ratio compares calls close in time.
        """
        # A sample of a short call repeats it for at least SAMPLE_SECONDS, and a round takes two samples.
        one = sum(2 * max(entry.timed[1], SAMPLE_SECONDS) for entry in self.entries)
        count = int(self.effort.seconds / max(one, 1e-6))
        count = min(max(count, self.effort.least), self.effort.most) if self.entries else 0
        for number in range(count):
            self.tell(f"round {number + 1} of {count}")
            for which in PASSES:
                self.turn([entry for entry in self.entries if entry.which == which])
        if self.on_gpu:
            self.eager_rounds()
        return count

    def eager_rounds(self) -> None:
        """Time eager calls in a few rounds, after the graphs have released their memory."""
        for entry in self.entries:
            entry.replay = None
        self.release()
        for number in range(self.effort.eager):
            self.tell(f"eager round {number + 1} of {self.effort.eager}")
            for which in PASSES:
                self.turn([entry for entry in self.entries if entry.which == which], eager=True)

    def turn(self, entries: list[TimedPass], eager: bool = False) -> None:
        """One round of one pass. A candidate that raises leaves the rounds and loses these times."""
        samples: dict[int, list[float]] = {}
        for entry in there_and_back(entries):
            if entry not in self.entries:
                continue
            try:
                if eager:
                    seconds = self.watch.eager(entry.run, entry.cost)
                else:
                    seconds = self.watch.sample(*entry.timed)
            except Exception as error:  # memory may run out here although it sufficed before
                self.entries.remove(entry)
                self.drop(entry.result, error, eager)
            else:
                samples.setdefault(id(entry), []).append(seconds)
        for entry in entries:
            if entry in self.entries:
                # Each entry ran twice, once in each direction: the mean cancels a linear drift.
                mean = entry.factor * sum(samples[id(entry)]) / 2
                kept = entry.result.eager if eager else entry.result.times
                # Six digits exceed the clock's precision and keep the files short.
                kept.samples.append(float(f"{mean:.6g}"))

    def drop(self, result: Pass, error: Exception, eager: bool) -> None:
        """Record why a pass failed in its rounds, and delete its times of this kind."""
        result.reason = f"in its {'eager ' * eager}rounds: {brief(error)}"
        if eager:
            result.eager.samples.clear()
            return
        result.status = "skipped" if out_of_memory(error) else "failed"
        result.times.samples.clear()

    def release(self) -> None:
        """Free memory that is still held after a failure."""
        gc.collect()
        if self.on_gpu:
            with contextlib.suppress(RuntimeError):  # a lost device is reported by the next call
                torch.cuda.empty_cache()


def broken(setting: Setting, candidates: Sequence[Candidate], error: Exception) -> Measured:
    """The results of a setting that could not be measured at all: every pass holds the reason."""
    rows = [BenchRow.start(candidate) for candidate in candidates]
    for row in rows:
        for result in row.passes.values():
            if isinstance(error, Skip):
                result.status, result.reason = "skipped", str(error)
            else:
                result.reason = f"the setting broke: {brief(error)}"
    return Measured(setting, rows)
