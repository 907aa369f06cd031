"""The cost of a training step of each candidate on this machine, measured before the search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.data import DataParts
from regard.choosing.training.trainer import Training, TrainingJob
from regard.measuring import memory
from regard.measuring.clock import clock
from regard.measuring.failures import first_line

ROUNDS, LONGEST = 9, 1.0  # timing rounds, and the most seconds per candidate on average


@dataclass(frozen=True)
class Cost:
    """The cost of a training step of one candidate.

    Attributes:
        seconds: time of a step (forward, backward, optimiser): the fastest of several, which other
            load on the machine affects least.
        pace: mean time of a step, for planning.
        memory: peak bytes of a step, above model and data.
        parameters: number of parameters of the whole model.
    """

    seconds: float
    memory: int
    parameters: int
    pace: float = 0.0


def measure_costs(
    job: TrainingJob, candidates: Sequence[TrialCandidate], parts: DataParts
) -> tuple[dict[str, Cost], dict[str, str]]:
    """The costs by name, and the errors of candidates that cannot run.

    Candidates are timed in turns, so that all see the same drift of the machine's speed.
    """
    batch = next(parts.train.draw(job.batch, 0))
    runs, peaks, failed = {}, {}, {}
    for one in candidates:
        try:
            training = Training(job, one.make, parts, 0, 1e-4)
            training.once(batch)  # warm-up: kernels and libraries are loaded on the first step
            # Old gradients would be freed within the measured step and lower its peak.
            training.optimiser.zero_grad(set_to_none=True)
            peaks[one.name] = memory.peak(lambda t=training: t.once(batch), job.device)
            runs[one.name] = training
        except Exception as error:  # the user's model may raise anything
            failed[one.name] = first_line(error)
    times = {name: [] for name in runs}
    began = time.perf_counter()
    for turn in range(ROUNDS):
        if turn and time.perf_counter() - began > LONGEST * max(len(runs), 1):
            break
        for name, training in runs.items():
            times[name].append(clock(lambda t=training: t.once(batch), 1, job.device))
    found = {
        name: Cost(
            min(times[name]),
            peaks[name],
            sum(p.numel() for p in training.model.parameters()),
            sum(times[name]) / len(times[name]),
        )
        for name, training in runs.items()
    }
    return found, failed
