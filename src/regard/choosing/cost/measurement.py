"""Measures every candidate at a shape: error, memory, then time in interleaved rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from regard.choosing.cost.candidates import candidates
from regard.choosing.cost.check import GRADIENT_FACTOR, OUTPUT_FACTOR, check
from regard.choosing.cost.need import candidate_need, inputs_need
from regard.choosing.cost.results import Report, Row
from regard.choosing.cost.shape import Shape, ShapeError
from regard.choosing.cost.workload import Inputs, Workload, make_inputs
from regard.measuring import memory
from regard.measuring.clock import SAMPLE_SECONDS, calls_per_sample, clock
from regard.measuring.failures import out_of_memory
from regard.measuring.machine import machine

# Rounds of timing that every candidate gets if time allows, and the most that any gets.
ENOUGH, MOST = 5, 25
# Checks and memory may take this many times the seconds of the timing rounds, and at least these.
CHECKS, LEAST_CHECKS = 1.5, 45.0
# A pass of at most so many seconds is measured however little time is given.
SHORT = 5.0
FIRST = (
    "scaled_dot",
    "projected_scaled_dot",
    "additive",
    "textbook_additive",
    "low_rank",
    "bilinear",
)

Step = Callable[[str, float, float], None]
"""Called before each step with what it is, and the seconds of work done and expected in all."""


def measure(
    shape: Shape,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    seconds: float = 30.0,
    only: Sequence[str] | None = None,
    on_step: Step | None = None,
) -> Report:
    """Compare all scores at a shape on this machine. Nothing is trained.

    Args:
        shape: sizes of the call.
        device: where to run.
        seed: of inputs and weights.
        seconds: for the timing rounds together. A candidate of which one forward and backward
            pass would take longer than half of it is skipped.
        only: keys of the candidates to measure; default all.
        on_step: told of progress.

    Returns:
        The report. After Ctrl-C it holds what was measured so far and says so.

    Raises:
        ShapeError: the inputs alone do not fit into memory.
    """
    device = torch.device(device)
    started = time.perf_counter()
    need, free = inputs_need(shape), memory.available(device)
    if need.bytes > memory.SHARE * free:
        raise ShapeError(
            f"shape: too large for this machine: {need.arithmetic}, with {memory.show(free)} free "
            f"on {device.type}. Use a smaller len, batch, heads, d_q or d_k"
        )
    known = candidates(shape)
    rows = [Row(candidate) for candidate in known if only is None or candidate.key in only]
    report = Report(shape, machine(device), seed, rows, notes=notes(device, seconds))
    try:
        Measurement(report, make_inputs(shape, device, seed), seconds, on_step).run()
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.perf_counter() - started
    return report


class Measurement:
    """One run of `measure`, which fills the rows of its report."""

    def __init__(
        self, report: Report, inputs: Inputs, seconds: float, on_step: Step | None
    ) -> None:
        self.report, self.inputs, self.seconds = report, inputs, seconds
        self.device = inputs.query.device
        self.on_step = on_step or (lambda label, done, total: None)
        self.work: dict[str, Workload] = {}
        self.cost: dict[str, tuple[float, float]] = {}
        self.done, self.total = 0.0, 2 * seconds

    def run(self) -> None:
        """Check and weigh each candidate, then time all that passed."""
        self.deadline = time.perf_counter() + max(CHECKS * self.seconds, LEAST_CHECKS)
        for row in sorted(self.report.rows, key=self.order):
            self.on_step(f"checking {row.candidate.label}", self.done, self.total)
            began = time.perf_counter()
            self.guarded(row, self.prepare)
            if row.status == "pending":
                self.guarded(row, self.inspect)
            self.done += time.perf_counter() - began
        self.rounds()

    def order(self, row: Row) -> int:
        """The question's own candidates first, in case time runs out."""
        key = row.candidate.key
        return FIRST.index(key) if key in FIRST else len(FIRST)

    def guarded(self, row: Row, step: Callable[[Row], None]) -> None:
        """Run a step; one candidate that breaks must not take the others with it."""
        try:
            step(row)
        except RuntimeError as error:
            row.status = "skipped" if out_of_memory(error) else "failed"
            row.reason = str(error).strip().partition("\n")[0]
            self.work.pop(row.candidate.key, None)
            self.cost.pop(row.candidate.key, None)

    def prepare(self, row: Row) -> None:
        """Build the score, ask the library for its plan, and see that it fits."""
        candidate, key = row.candidate, row.candidate.key
        if not self.fits(row, None):
            return
        work = Workload(candidate, self.inputs, self.report.seed)
        row.parameters = sum(p.numel() for p in work.score.parameters())
        try:
            row.engine = "eager" if candidate.textbook else work.plan().engine
        except ValueError as refusal:
            row.status, row.reason = "refused", str(refusal)
            return
        if not self.fits(row, row.engine):
            return
        if time.perf_counter() > self.deadline:
            row.status = "skipped"
            row.reason = f"left out to keep to the time: --seconds {4 * self.seconds:g} gives more"
            return
        partial(work, 1)  # pays for what is loaded late
        predicted = predict(work)
        if predicted > max(self.seconds / 2, SHORT):
            row.status = "skipped"
            row.reason = (
                f"one forward and backward pass would take about {predicted:.0f} s, judged from a "
                f"few queries; more time would measure it: --seconds {math.ceil(2 * predicted)}"
            )
            return
        self.work[key] = work

    def fits(self, row: Row, engine: str | None) -> bool:
        """Skip the row, with the arithmetic, where it would take too much memory."""
        need = candidate_need(row.candidate, engine)
        free = memory.available(self.device)
        if need.bytes <= memory.SHARE * free:
            return True
        row.status, row.engine = "skipped", engine
        row.reason = f"{need.arithmetic}; {memory.show(free)} are free on {self.device.type}"
        return False

    def inspect(self, row: Row) -> None:
        """Error, then peak memory. The runs are the warm-up for the clock."""
        key = row.candidate.key
        work = self.work[key]
        errors = check(work)
        row.error, row.plain_error = errors.output, errors.plain_output
        row.gradient_error, row.plain_gradient_error = errors.gradient, errors.plain_gradient
        if not errors.passed:
            row.status = "failed"
            row.reason = (
                f"its error against fp64 is {errors.output:.1e} (gradients {errors.gradient:.1e}), "
                f"plain PyTorch's {errors.plain_output:.1e} ({errors.plain_gradient:.1e})"
            )
            del self.work[key]
            return
        row.forward_memory = memory.peak(work.forward, self.device)
        row.both_memory = errors.memory
        self.cost[key] = (errors.seconds / 3, errors.seconds)
        if errors.seconds < 0.5:  # the profiler weighs on a short run
            self.cost[key] = (clock(work.forward, 1, self.device), clock(work.both, 1, self.device))
        row.status = "measured"

    def rounds(self) -> None:
        """Time all candidates in turn, again and again, so that they share the machine's moods."""
        rows = [row for row in self.report.rows if row.candidate.key in self.cost]
        deadline = time.perf_counter() + self.seconds
        for turn in range(MOST):
            plans = self.repeats()
            rows = [row for row in rows if row.candidate.key in plans]
            for row in rows:
                left = deadline - time.perf_counter()
                if turn and left < 0:
                    return
                if turn < plans[row.candidate.key]:
                    total = self.done + min(self.remaining(plans), max(left, 0.0))
                    self.on_step(f"timing {row.candidate.label}", self.done, total)
                    began = time.perf_counter()
                    self.guarded(row, self.time_once)
                    self.done += time.perf_counter() - began

    def repeats(self) -> dict[str, int]:
        """How many rounds each candidate takes part in, from what one has cost so far."""
        share = self.seconds / max(len(self.cost), 1)
        plans = {}
        for key, pair in self.cost.items():
            one = sum(max(x, SAMPLE_SECONDS) for x in pair)
            least = min(max(int(self.seconds / 2 / one), 2), ENOUGH)
            plans[key] = min(max(int(share / one), least), MOST)
        base = self.report.baseline
        if base is not None and base.candidate.key in plans:
            plans[base.candidate.key] = max(plans.values())  # each round is compared with it
        return plans

    def remaining(self, plans: dict[str, int]) -> float:
        """Seconds that the rest of the plans will take."""
        rows = (row for row in self.report.rows if row.candidate.key in plans)
        todo = ((row.candidate.key, len(row.both.samples)) for row in rows)
        left = (max(plans[key] - done, 0) * sum(self.cost.get(key, ())) for key, done in todo)
        return sum(left)

    def time_once(self, row: Row) -> None:
        """One sample of each time."""
        key = row.candidate.key
        work = self.work[key]
        samples = []
        for run, cost in zip((work.forward, work.both), self.cost[key], strict=True):
            samples.append(clock(run, calls_per_sample(cost), self.device))
        # Both or neither: an interrupt in between would leave the two out of step.
        row.forward.samples.append(samples[0])
        row.both.samples.append(samples[1])
        self.cost[key] = (row.forward.median, row.both.median)


def predict(work: Workload) -> float:
    """About how long a forward and backward pass would take, from two on a few queries.

    What does not depend on the number of queries (lowering the keys, say) is told apart from what
    does by the difference of the two.
    """
    s = work.inputs.shape
    few = max(2**21 // (s.batch * s.heads * s.len_k * work.candidate.depth), 1)
    if 4 * few >= s.len_q:
        return 0.0
    one, four = partial(work, few), partial(work, 4 * few)
    return four + max(four - one, 0.0) * (s.len_q - 4 * few) / (3 * few)


def partial(work: Workload, count: int) -> float:
    """Seconds for the last `count` queries, the fastest of a few runs: others use the machine."""
    query, grad = (x[..., -count:, :] for x in (work.inputs.query, work.inputs.grad))

    def run() -> None:
        torch.autograd.grad(work.run(query), work.leaves, grad)

    return min(clock(run, 1, query.device) for _ in range(3))


def notes(device: torch.device, seconds: float) -> list[str]:
    """How the numbers were made, for a person."""
    clock = (
        f"Time: medians of up to {MOST} rounds within {seconds:g} s. In each round every score runs "
        "once, in turn, after a warm-up; ± is half the interquartile range. Forward is without "
        "gradients; fwd+bwd gives the gradients of query, key, value and all parameters."
    )
    error = (
        "Error: |output - exact| / |exact| over sampled rows, exact being the textbook formula in "
        f"fp64. No time is shown where it is more than {OUTPUT_FACTOR:g} times the error of plain "
        f"PyTorch in the same dtype ({GRADIENT_FACTOR:g} times for a gradient)."
    )
    ratio = "Ratio: fwd+bwd time over that of scaled dot, round by round."
    return [clock, ratio, memory.CUDA_NOTE if device.type == "cuda" else memory.CPU_NOTE, error]
