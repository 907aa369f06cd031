"""`LogTo`: numbers of a doctor for any logger, `log({"attention/h.0/entropy/worst": 0.4, ...}, step=100)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from regard.doctor.report.listening import Listener
from regard.doctor.report.reading import glance, measured

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

PREFIX = "attention"


def numbers(
    doctor: Doctor, vitals: Sequence[str] | None = None, prefix: str = PREFIX
) -> dict[str, float]:
    """The newest vitals as `{prefix}/{site}/{vital}/worst` and `/mean` over the heads.

    Reads the device once.
    """
    chosen = measured(doctor, vitals)
    found: dict[str, float] = {}
    for site, seen in glance(doctor, chosen).items():
        for column, vital in enumerate(chosen):
            worst = seen.worst(column, vital)
            if not math.isnan(worst):
                key = f"{prefix}/{site or 'model'}/{vital}"
                found |= {f"{key}/worst": worst, f"{key}/mean": seen.mean(column)}
    return found


class LogTo(Listener):
    """A listener that hands numbers to a logger: `with LogTo(doctor, wandb.log, every=100): ...`.

    Args:
        doctor: the doctor to log.
        log: called as `log(dict, step=step)`, like `wandb.log`.
        every: log after this many steps; nothing is read from the device in between.
        vitals: names of vitals to log; `KEY_VITALS` unless given.
        prefix: prefix of the keys.
        step: returns the number of the step; the doctor's own unless given.
    """

    def __init__(
        self,
        doctor: Doctor,
        log: Callable[..., Any],
        every: int = 100,
        *,
        vitals: Sequence[str] | None = None,
        prefix: str = PREFIX,
        step: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(doctor, steps=every)
        if not callable(log):
            raise TypeError(
                f"log must be a function called as log(dict, step=...), got {type(log).__name__}"
            )
        self.log, self.vitals, self.prefix = log, measured(doctor, vitals), prefix
        self.step = step

    def look(self) -> None:
        """Log the newest numbers, unless nothing was measured."""
        found = numbers(self.doctor, self.vitals, self.prefix)
        if found:
            self.log(found, step=self.doctor.steps if self.step is None else self.step())
