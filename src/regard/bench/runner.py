"""Measures one setting: check and weigh every candidate, then time all of them in turns."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from regard.bench.candidate import BOTH, FORWARD, PASSES, Candidate, Held, Work
from regard.bench.check import Errors, Truth, check
from regard.bench.results import Measured, Pass, Row
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
# From this many numbers of all pairs on (`Candidate.held`), a few heads are tried before all of them: on
# the CPU; on a GPU for what builds or unrolls them; and for what does not, where it takes tens of
# milliseconds.
LARGE, LARGE_HEAVY, LARGE_LIGHT = 2**27, 2**31, 2**37
# Steps of a loop by which the memory of all of them is foreseen.
FORESEEN = 4


@dataclass(frozen=True)
class Effort:
    """How much time to spend.

    Args:
        seconds: for the timing rounds of a setting.
        longest: a call of all heads that would take more seconds is run with a few and scaled.
        least, most: rounds, however long or short they are.
        eager: on a GPU, rounds for the time that a caller waits.
        heads: of one batch entry, run where all would be too much.
    """

    seconds: float
    longest: float
    least: int = 5
    most: int = 25
    eager: int = 3
    heads: int = 1


class Skip(Exception):
    """A pass is left out; the message says why."""


class Wrong(Exception):
    """A pass gets no time, since its error is too large; the message says by how much."""


@dataclass(eq=False)
class Entry:
    """A pass that takes part in the rounds.

    Args:
        run: the call, which takes about `cost` seconds.
        factor: by which the time of the heads that are run is scaled to all.
        replay: the call recorded as a graph, which takes about `replay_cost` seconds.
    """

    which: str
    row: Row
    run: Callable[[], object]
    factor: float
    cost: float
    replay: Callable[[], object] | None = None
    replay_cost: float = 0.0

    @property
    def result(self) -> Pass:
        """Where its times are kept."""
        return self.row.passes[self.which]

    @property
    def timed(self) -> tuple[Callable[[], object], float]:
        """What the rounds call, and about how long that takes."""
        return (self.run, self.cost) if self.replay is None else (self.replay, self.replay_cost)


@dataclass
class Runner:
    """One setting at a time on one device."""

    device: torch.device
    seed: int
    effort: Effort
    tell: Tell = lambda text: None
    entries: list[Entry] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether there are two times to measure, the device's and the caller's."""
        return self.device.type == "cuda"

    def measure(self, setting: Setting, candidates: Sequence[Candidate]) -> Measured:
        """All candidates of a setting."""
        began = time.perf_counter()
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # a function may be compiled for a few sizes only
        self.entries = []
        if not self.on_gpu and setting.input_bytes > self.free():
            raise Skip(f"its inputs take {memory.show(setting.input_bytes)}, more than there is")
        self.tensors = make_tensors(setting, self.device, self.seed)
        self.watch = Stopwatch(self.device, setting.by_wall)
        self.truths: dict[int, Truth] = {}
        rows = [Row.start(candidate) for candidate in candidates]
        for row, candidate in zip(rows, candidates, strict=True):
            self.tell(f"checking {candidate.name}")
            self.prepare(row, candidate)
        self.truths = {}
        self.record()
        rounds = self.rounds()
        self.entries = []
        del self.tensors, self.watch
        self.release()
        return Measured(setting, rows, rounds, time.perf_counter() - began)

    def prepare(self, row: Row, candidate: Candidate) -> None:
        """Check both passes of a candidate; what breaks must not take the others with it."""
        try:
            unavailable = candidate.available(self.tensors)
        except Exception as error:  # whatever asking may raise
            unavailable = brief(error)
        for which in PASSES:
            result, reason = row.passes[which], unavailable
            if reason is None and which == BOTH:
                reason = candidate.no_backward(self.tensors.setting)
            if reason is not None:
                result.status, result.reason = "unavailable", reason
            elif which == BOTH and row.passes[FORWARD].status == "failed":
                result.status, result.reason = "failed", row.passes[FORWARD].reason
            else:
                self.attempt(row, candidate, which)

    def attempt(self, row: Row, candidate: Candidate, which: str) -> None:
        """Let a pass take part in the rounds, or say why it does not."""
        result = row.passes[which]
        try:
            self.entries.append(self.entry(row, candidate, which))
            return
        except Skip as skip:
            result.status, result.reason = "skipped", str(skip)
        except Wrong as wrong:
            result.status, result.reason = "failed", str(wrong)
        except Exception as error:  # whatever a peer or a compiler may raise
            result.status = "skipped" if out_of_memory(error) else "failed"
            result.reason = brief(error)
        self.release()

    def entry(self, row: Row, candidate: Candidate, which: str) -> Entry:
        """Find inputs that fit, check the error, take the peak of memory, warm up.

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
        self.judge(result, errors, which)
        run = work.of(which)
        result.bytes = round(factor * memory.peak(run, self.device))
        result.scaled_from = tensors.setting.all_heads if factor > 1 else None
        cost = self.watch.first(run)
        if cost < self.effort.longest / 10:
            cost = min(self.watch.first(run) for _ in range(2))
        result.status = "measured"
        return Entry(which, row, run, factor, cost)

    def judge(self, result: Pass, errors: Errors, which: str) -> None:
        """Keep the errors; raise where they are too large."""
        if which == FORWARD:
            result.error, result.plain_error = errors.output, errors.plain_output
            result.limit = errors.output_limit
        else:
            result.error, result.plain_error = errors.gradient, errors.plain_gradient
            result.limit, result.others_error = errors.gradient_limit, errors.others
        if not errors.output_passed:
            raise Wrong(
                f"no time: its output errs by {errors.output:.1e} against fp64, and "
                f"{errors.output_limit:.1e} would pass"
            )
        if which == BOTH and not errors.gradient_passed:
            raise Wrong(
                f"no time: the gradient of a errs by {errors.gradient:.1e} against fp64 and the "
                f"others by {errors.others:.1e}; {errors.gradient_limit:.1e} and "
                f"{errors.others_limit:.1e} would pass"
            )

    def fit(self, candidate: Candidate, which: str) -> Tensors:
        """All heads where they fit into memory and time, else a few."""
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
        # The more heads, the closer a multiple of their time: all, or else those of one batch entry.
        larger = [whole] if setting.batch == 1 else [whole, whole.with_heads(setting.heads)]
        for tensors in larger:
            heads = tensors.setting.all_heads
            short = heads * seconds <= self.effort.longest
            short = short and heads * bytes_needed <= self.comfortable()
            if heads > few.setting.all_heads and short and self.runs(candidate, tensors, which):
                return tensors
        return few

    def large(self, held: Held, heavy: bool) -> bool:
        """Whether a few heads are tried first."""
        if not self.on_gpu:
            return held.numbers >= LARGE
        # By their bytes too: the counts were chosen on a GPU that is larger than most.
        return held.numbers >= (LARGE_HEAVY if heavy else LARGE_LIGHT) or (
            held.bytes > self.comfortable()
        )

    def runs(self, candidate: Candidate, tensors: Tensors, which: str) -> bool:
        """Whether the memory is enough for these."""
        try:
            Work(candidate, tensors).of(which)()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            self.release()
            return False
        return True

    def few_heads(self, candidate: Candidate) -> int:
        """As many as the effort says where that fits by what the candidate holds, else one."""
        setting = self.tensors.setting
        if candidate.held(setting.with_heads(self.effort.heads)).bytes <= self.free():
            return self.effort.heads
        self.room(candidate, setting.with_heads(1))
        return 1

    def room(self, candidate: Candidate, setting: Setting) -> None:
        """On the CPU memory that runs out ends the program, so that it is foreseen."""
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
        """The same for a loop, whose backward keeps what each step has left, by its first steps."""
        steps = work.tensors.setting.len_q
        few = min(steps, FORESEEN)
        work.first_steps(few)  # tables and caches, which stay
        need = memory.peak(lambda: work.first_steps(few), self.device) / few * steps
        if need > self.free():
            free = memory.available(self.device)
            raise Skip(
                f"about {memory.show(need)} for what {steps} steps keep for their backward, with "
                f"{memory.show(free)} free"
            )

    def free(self) -> float:
        """Bytes that a measurement may take."""
        return memory.SHARE * memory.available(self.device)

    def comfortable(self) -> float:
        """Bytes that a call may hold and still be recorded.

        On a GPU half: what was recorded before holds as much as a call, while the next one warms up.
        """
        return self.free() / 2 if self.on_gpu else self.free()

    def truth(self, tensors: Tensors) -> Truth:
        """What is true of these inputs; made once."""
        heads = tensors.setting.all_heads
        if heads not in self.truths:
            self.truths[heads] = Truth(tensors)
        return self.truths[heads]

    def record(self) -> None:
        """On a GPU, record every pass as a graph. After all memory was measured: graphs hold theirs."""
        if not self.on_gpu or not self.entries:
            return
        # A backward of the main stream that is not collected yet would tie its leaves to that stream,
        # which must not depend on a recording.
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
        """Time all in turn, A B C ... C B A, so that they share the machine's moods.

        Forward and backward passes take turns of their own: a ratio compares neighbours.
        """
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
        """The same for what a caller waits, in few rounds, when the graphs' memory is free again."""
        for entry in self.entries:
            entry.replay = None
        self.release()
        for number in range(self.effort.eager):
            self.tell(f"eager round {number + 1} of {self.effort.eager}")
            for which in PASSES:
                self.turn([entry for entry in self.entries if entry.which == which], eager=True)

    def turn(self, entries: list[Entry], eager: bool = False) -> None:
        """One round of one pass; who breaks leaves the rounds, and has no time of this kind."""
        samples: dict[int, list[float]] = {}
        for entry in there_and_back(entries):
            if entry not in self.entries:
                continue
            try:
                if eager:
                    seconds = self.watch.eager(entry.run, entry.cost)
                else:
                    seconds = self.watch.sample(*entry.timed)
            except Exception as error:  # memory may run out here that was there before
                self.entries.remove(entry)
                self.drop(entry.result, error, eager)
            else:
                samples.setdefault(id(entry), []).append(seconds)
        for entry in entries:
            if entry in self.entries:
                mean = entry.factor * sum(samples[id(entry)]) / 2
                kept = entry.result.eager if eager else entry.result.times
                # Six digits are more than a clock has, and keep the files short.
                kept.samples.append(float(f"{mean:.6g}"))

    def drop(self, result: Pass, error: Exception, eager: bool) -> None:
        """What broke in its rounds loses the times of this kind."""
        result.reason = f"in its {'eager ' * eager}rounds: {brief(error)}"
        if eager:
            result.eager.samples.clear()
            return
        result.status = "skipped" if out_of_memory(error) else "failed"
        result.times.samples.clear()

    def release(self) -> None:
        """Give memory back that a failure may still hold."""
        gc.collect()
        if self.on_gpu:
            with contextlib.suppress(RuntimeError):  # a device that is lost says so elsewhere
                torch.cuda.empty_cache()


def broken(setting: Setting, candidates: Sequence[Candidate], error: Exception) -> Measured:
    """A setting that could not be measured at all: nobody has a time, and everybody the reason."""
    rows = [Row.start(candidate) for candidate in candidates]
    for row in rows:
        for result in row.passes.values():
            if isinstance(error, Skip):
                result.status, result.reason = "skipped", str(error)
            else:
                result.reason = f"the setting broke: {brief(error)}"
    return Measured(setting, rows)
