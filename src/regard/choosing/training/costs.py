"""What one training step of each candidate costs on this machine: measured before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.data import DataParts
from regard.choosing.training.trainer import Training, TrainingJob
from regard.measuring import memory
from regard.measuring.clock import clock
from regard.measuring.graphs import first_line

ROUNDS, LONGEST = 9, 1.0  # rounds of timing, and seconds for one candidate


@dataclass(frozen=True)
class Cost:
    """Of one candidate.

    Attributes:
        seconds: for a step: forward, backward and the optimiser; the fastest, since others use the
            machine.
        pace: the mean instead: what to reckon with.
        memory: bytes at the peak of a step, above model and data.
        parameters: of the whole model.
    """

    seconds: float
    memory: int
    parameters: int
    pace: float = 0.0


def measure_costs(
    job: TrainingJob, candidates: Sequence[TrialCandidate], parts: DataParts
) -> tuple[dict[str, Cost], dict[str, str]]:
    """Costs by name, and why those that cannot be run cannot.

    Candidates take turns, so that they share the machine's moods.
    """
    batch = next(parts.train.draw(job.batch, 0))
    runs, peaks, failed = {}, {}, {}
    for one in candidates:
        try:
            training = Training(job, one.make, parts, 0, 1e-4)
            training.once(batch)  # pays for what is loaded late
            training.optimiser.zero_grad(set_to_none=True)  # what it frees is no part of a step
            peaks[one.name] = memory.peak(lambda t=training: t.once(batch), job.device)
            runs[one.name] = training
        except Exception as error:  # whatever the user's model raises
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
