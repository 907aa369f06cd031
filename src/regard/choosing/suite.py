"""Runs `regard choose` on several tasks within one time limit, and holds all answers as one value."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.choosing.cost import CostReport, measure, parse_shape
from regard.choosing.rules import bearing
from regard.choosing.tasks.task import Task
from regard.choosing.training.asking import asked_by
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.record import as_dict
from regard.choosing.training.show import ProgressCallback
from regard.choosing.training.verdict import Verdict

SCHEMA = "regard.choose/suite/1"
# Shape and scores of the first table: additive attention as textbooks write it and as the library runs it.
SHAPE = "d_q=64,len=512,heads=4"
FIRST = ("scaled_dot", "additive", "textbook_additive")
FIRST_SECONDS = 3.0


@dataclass
class Answer:
    """One task with its verdict, or the reason there is none."""

    task: Task
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def claims(self) -> tuple[str, ...]:
        """Ids of the claims about the task; for a user's own data, about the winning score."""
        if self.task.claims or self.verdict is None or not self.verdict.recommended:
            return self.task.claims
        return bearing(self.verdict.row(self.verdict.winner).candidate.score)


@dataclass
class Suite:
    """The answers for all tasks, and the first look at additive attention."""

    answers: list[Answer] = field(default_factory=list)
    headline: CostReport | None = None
    seconds: float = 0.0

    @property
    def interrupted(self) -> bool:
        """Whether the user interrupted a task."""
        return any(one.verdict is not None and one.verdict.interrupted for one in self.answers)

    @property
    def failed(self) -> list[Answer]:
        """Tasks without a verdict."""
        return [one for one in self.answers if one.verdict is None]

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        return {
            "schema": SCHEMA,
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "textbook": None if self.headline is None else self.headline.as_dict(),
            "tasks": [
                {
                    "name": one.task.name,
                    "property": one.task.prop.en,
                    "claims": list(one.claims),
                    "reason": one.reason or None,
                    "verdict": None if one.verdict is None else as_dict(one.verdict),
                }
                for one in self.answers
            ],
        }


def first_look(device: torch.device) -> CostReport:
    """The cost of textbook additive attention and of ours on this machine."""
    return measure(parse_shape(SHAPE), device=device, seconds=FIRST_SECONDS, only=FIRST)


def run_suite(
    tasks: Sequence[Task],
    *,
    minutes: float,
    storage: str | Path,
    tell: ProgressCallback,
    on_answer: Callable[[Answer], None] = lambda answer: None,
    **options: Any,
) -> Suite:
    """Run every task in turn, each with an equal share of the time left.

    Args:
        tasks: the tasks to run.
        minutes: time limit for all tasks together.
        storage: see `regard.choose`.
        tell: called with a label, the fraction done and the seconds left.
        on_answer: called with the answer of each finished task.
        options: further arguments of `regard.choose`.
    """
    suite, began = Suite(), time.time()
    until = began + 60 * minutes
    for number, task in enumerate(tasks):
        # A task that ends early leaves its time to the later ones; each gets at least 6 seconds.
        share = max(until - time.time(), 6.0) / (len(tasks) - number) / 60

        def told(label: str, part: float, left: float, number: int = number) -> None:
            rest = (until - time.time()) * (1 - (number + 1) / len(tasks))
            whole = min(left + max(rest, 0.0), max(until - time.time(), 0.0))
            tell(f"{tasks[number].name}: {label}", (number + part) / len(tasks), whole)

        answer = Answer(task)
        try:
            with asked_by("command"):
                answer.verdict = task.choose(
                    storage=storage, minutes=share, progress=told, **options
                )
            answer.verdict.asked_by = "command"
        except ChooseError as error:
            answer.reason = str(error)
        suite.answers.append(answer)
        on_answer(answer)
        if suite.interrupted:
            break
    suite.seconds = time.time() - began
    return suite
