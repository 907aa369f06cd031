"""A claim that takes no time and does what a test tells it.

A module of its own, with a name that worker processes can import too: tests put this folder on the
path.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.figures.canvas import Canvas
from regard.text import Text

PATIENCE = 60


@dataclass(frozen=True)
class Fake(Claim):
    """It holds where `value` is above 0.

    Attributes:
        marks: folder where each measurement leaves a file with the process id.
        act: what to do while measuring.
        other: with `act="meet"`, the id of the claim whose mark it waits for.
    """

    id: str = "A1"
    value: float = 1.0
    marks: str = ""
    act: str = ""
    other: str = ""
    alone: bool = False
    seconds: tuple[float, float] = (1.0, 10.0)
    sample: Callable[[], float] | None = None

    statement = Text("A value is above zero, or so people say.", "据说有一个数大于零。")
    criterion = Text("It is above 0.", "大于 0。")
    meaning = Text("Nothing at all.", "没有任何意义。")
    caption = Text("The value.", "数值。")
    control = Text("Zero.", "零。")

    def measure(self, run: Run) -> Numbers:
        """One number, after what `act` says."""
        self.mark("began")
        run.tell(0.5)
        match self.act:
            case "raise":
                print("what it printed")
                raise ValueError("no\nsuch luck")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                time.sleep(PATIENCE)
            case "meet":
                self.wait_for(self.other)
            case "nan":
                return {"value": float("nan")}
        self.mark("ended")
        threads = torch.get_num_threads()
        return {"value": self.value, "seed": run.seed, "full": run.full, "threads": threads}

    def mark(self, event: str) -> None:
        """Leave a line in a file."""
        if self.marks:
            with Path(self.marks, self.id).open("a") as file:
                file.write(f"{event} {os.getpid()} {time.monotonic()}\n")

    def wait_for(self, other: str) -> None:
        """Until the other one has begun: it has to run at the same time."""
        end = time.monotonic() + PATIENCE
        while not Path(self.marks, other).exists():
            assert time.monotonic() < end, f"{other} never began"
            time.sleep(0.01)

    def judge(self, numbers: Numbers) -> Judgement:
        """See `criterion`."""
        value = numbers["value"]
        verdict = ClaimVerdict.HOLDS if value > 0 else ClaimVerdict.FAILS
        because = Text(f"It is {value}.", f"它是 {value}。")
        facts = (Fact(Text("value", "数值"), value, value - 1, value + 1, "m"),)
        return Judgement(verdict, because, facts)

    def draw(self, numbers: Numbers, canvas: Canvas) -> None:
        """A point."""
        (axes,) = canvas.panels()
        axes.plot([numbers["value"]], "o")
        canvas.label(axes, "x", Text("value in m", "数值（米）"))


@dataclass(frozen=True)
class Unsendable(Fake):
    """Its ingredient cannot travel to another process; the claim can, as its class."""

    id: str = "A6"
    sample: Callable[[], float] | None = field(default_factory=lambda: lambda: 1.0)
