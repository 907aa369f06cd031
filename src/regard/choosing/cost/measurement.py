"""Measures every candidate at a shape: error and memory first, then times in interleaved rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from regard.choosing.cost.candidates import candidates
from regard.choosing.cost.check import GRADIENT_FACTOR, OUTPUT_FACTOR, check
from regard.choosing.cost.need import candidate_need, inputs_need
from regard.choosing.cost.results import CostReport, CostRow
from regard.choosing.cost.shape import Shape, ShapeError
from regard.choosing.cost.workload import Workload, WorkloadInputs, make_inputs
from regard.measuring import memory
from regard.measuring.clock import SAMPLE_SECONDS, calls_per_sample, clock
from regard.measuring.failures import out_of_memory
from regard.measuring.machine import machine

# Timing rounds that every candidate gets if time allows, and the most that a candidate gets.
ENOUGH, MOST = 5, 25
# Checking errors and memory may take this many times the seconds of the timing rounds, but at least this
# many seconds.
CHECKS, LEAST_CHECKS = 1.5, 45.0
# A pass that takes at most this many seconds is measured however small `seconds` is.
SHORT = 5.0
# The candidates that the answer's sentences are about; they are checked first, in case time runs out.
FIRST = (
    "scaled_dot",
    "projected_scaled_dot",
    "additive",
    "textbook_additive",
    "low_rank",
    "bilinear",
)

Step = Callable[[str, float, float], None]
"""Called before each step with its label, the seconds of work done and the total expected."""


def measure(
    shape: Shape,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    seconds: float = 30.0,
    only: Sequence[str] | None = None,
    on_step: Step | None = None,
) -> CostReport:
    """Measure the cost of all scores at a shape on this machine. Nothing is trained.

    Args:
        shape: sizes of the call.
        device: where to run.
        seed: of inputs and weights.
        seconds: time for all timing rounds together. A candidate is skipped if one forward and
            backward pass would take more than half of it.
        only: keys of the candidates to measure; default all.
        on_step: called with the progress.

    Returns:
        The report. After Ctrl-C it holds the results so far and is marked as interrupted.

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
    rows = [CostRow(candidate) for candidate in known if only is None or candidate.key in only]
    report = CostReport(shape, machine(device), seed, rows, notes=notes(device, seconds))
    try:
        Measurement(report, make_inputs(shape, device, seed), seconds, on_step).run()
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.perf_counter() - started
    return report


class Measurement:
    """One run of `measure`, which fills the rows of its report."""

    def __init__(
        self, report: CostReport, inputs: WorkloadInputs, seconds: float, on_step: Step | None
    ) -> None:
        self.report, self.inputs, self.seconds = report, inputs, seconds
        self.device = inputs.query.device
        self.on_step = on_step or (lambda label, done, total: None)
        self.work: dict[str, Workload] = {}
        self.cost: dict[str, tuple[float, float]] = {}
        self.done, self.total = 0.0, 2 * seconds

    def run(self) -> None:
        """Check the error and memory of each candidate, then time all that passed."""
        self.deadline = time.perf_counter() + max(CHECKS * self.seconds, LEAST_CHECKS)
        for row in sorted(self.report.rows, key=self.order):
            self.on_step(f"checking {row.candidate.label}", self.done, self.total)
            began = time.perf_counter()
            self.guarded(row, self.prepare)
            if row.status == "pending":
                self.guarded(row, self.inspect)
            self.done += time.perf_counter() - began
        self.rounds()

    def order(self, row: CostRow) -> int:
        """A sort key that puts the candidates in `FIRST` first."""
        key = row.candidate.key
        return FIRST.index(key) if key in FIRST else len(FIRST)

    def guarded(self, row: CostRow, step: Callable[[CostRow], None]) -> None:
        """Run a step for a candidate; record its failure without affecting other candidates."""
        try:
            step(row)
        except RuntimeError as error:
            row.status = "skipped" if out_of_memory(error) else "failed"
            row.reason = str(error).strip().partition("\n")[0]
            self.work.pop(row.candidate.key, None)
            self.cost.pop(row.candidate.key, None)

    def prepare(self, row: CostRow) -> None:
        """Build the score, ask the library for its plan, and skip the row if it would not fit."""
        candidate, key = row.candidate, row.candidate.key
        # Before the score is built: its parameters alone may not fit.
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
        partial(work, 1)  # warm-up: kernels and libraries are loaded on the first call
        predicted = predict(work)
        if predicted > max(self.seconds / 2, SHORT):
            row.status = "skipped"
            row.reason = (
                f"one forward and backward pass would take about {predicted:.0f} s, judged from a "
                f"few queries; more time would measure it: --seconds {math.ceil(2 * predicted)}"
            )
            return
        self.work[key] = work

    def fits(self, row: CostRow, engine: str | None) -> bool:
        """Whether the candidate fits into memory; if not, mark the row as skipped with the arithmetic."""
        need = candidate_need(row.candidate, engine)
        free = memory.available(self.device)
        if need.bytes <= memory.SHARE * free:
            return True
        row.status, row.engine = "skipped", engine
        row.reason = f"{need.arithmetic}; {memory.show(free)} are free on {self.device.type}"
        return False

    def inspect(self, row: CostRow) -> None:
        """Check the error, then the peak memory. These runs also warm up for the timing rounds."""
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
        # A first guess: a forward pass takes about a third of forward and backward together.
        self.cost[key] = (errors.seconds / 3, errors.seconds)
        if errors.seconds < 0.5:  # the memory profiler slows down a short run: time it again
            self.cost[key] = (clock(work.forward, 1, self.device), clock(work.both, 1, self.device))
        row.status = "measured"

    def rounds(self) -> None:
        """Time all candidates in turns, so that all see the same drift of the machine's speed."""
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
        """The number of rounds for each candidate, from the cost of its earlier rounds."""
        share = self.seconds / max(len(self.cost), 1)
        plans = {}
        for key, pair in self.cost.items():
            # A sample lasts at least SAMPLE_SECONDS. A slow candidate gets at least 2 rounds, and up to
            # ENOUGH as long as they take no more than half of the time.
            one = sum(max(x, SAMPLE_SECONDS) for x in pair)
            least = min(max(int(self.seconds / 2 / one), 2), ENOUGH)
            plans[key] = min(max(int(share / one), least), MOST)
        base = self.report.baseline
        if base is not None and base.candidate.key in plans:
            # Ratios are taken round by round, so the baseline takes part in every round.
            plans[base.candidate.key] = max(plans.values())
        return plans

    def remaining(self, plans: dict[str, int]) -> float:
        """Estimated seconds for the rounds that are left."""
        rows = (row for row in self.report.rows if row.candidate.key in plans)
        todo = ((row.candidate.key, len(row.both.samples)) for row in rows)
        left = (max(plans[key] - done, 0) * sum(self.cost.get(key, ())) for key, done in todo)
        return sum(left)

    def time_once(self, row: CostRow) -> None:
        """Take one sample of the forward time and one of forward and backward."""
        key = row.candidate.key
        work = self.work[key]
        samples = []
        for run, cost in zip((work.forward, work.both), self.cost[key], strict=True):
            samples.append(clock(run, calls_per_sample(cost), self.device))
        # Append both after both were taken: an interrupt in between would leave unequal lists.
        row.forward.samples.append(samples[0])
        row.both.samples.append(samples[1])
        self.cost[key] = (row.forward.median, row.both.median)


def predict(work: Workload) -> float:
    """Estimated seconds of a forward and backward pass, extrapolated from two runs on a few queries.

    The difference of the two runs is the cost per query. It separates that from fixed costs, such as
    lowering the keys. Returns 0 if the whole call is small.
    """
    s = work.inputs.shape
    # About two million numbers: enough work to time, little enough to be quick on any machine.
    few = max(2**21 // (s.batch * s.heads * s.len_k * work.candidate.depth), 1)
    if 4 * few >= s.len_q:
        return 0.0
    one, four = partial(work, few), partial(work, 4 * few)
    return four + max(four - one, 0.0) * (s.len_q - 4 * few) / (3 * few)


def partial(work: Workload, count: int) -> float:
    """Seconds for a pass over the last `count` queries: the fastest of 3 runs, to ignore other load."""
    query, grad = (x[..., -count:, :] for x in (work.inputs.query, work.inputs.grad))

    def run() -> None:
        torch.autograd.grad(work.run(query), work.leaves, grad)

    return min(clock(run, 1, query.device) for _ in range(3))


def notes(device: torch.device, seconds: float) -> list[str]:
    """Sentences for the report on how the numbers were measured."""
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
    ratio = (
        "Ratio: what a score costs, the time of a forward and backward pass over that of scaled dot at "
        "the same length, heads and width; the median of the ratios of the rounds."
    )
    return [clock, ratio, memory.CUDA_NOTE if device.type == "cuda" else memory.CPU_NOTE, error]
