"""Look at a doctor's numbers now and then while the model trains.

A step is looked at when the next one begins, in the thread that trains: all of it is measured then,
and no other thread disturbs the capture of a CUDA graph.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor


class Listener:
    """Calls `look` every so many steps or seconds, and once at the end, in a `with` block.

    Between two looks nothing is read from the device. An error in `look` ends the listening, with a
    note: training goes on.

    Args:
        doctor: whose steps are counted.
        steps: look after this many.
        seconds: look when this long has passed.
    """

    def __init__(
        self, doctor: Doctor, *, steps: int | None = None, seconds: float | None = None
    ) -> None:
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ValueError(f"every must be a whole number of 1 or more, got {steps!r}")
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"every_seconds must be 0 or more, got {seconds!r}")
        self.doctor, self.steps, self.seconds = doctor, steps, seconds
        self.seen, self.time = doctor.steps, time.monotonic()
        self.listening = self.ending = False

    def look(self) -> None:
        """What a listener does; `self.doctor.steps` is the last step, and it is complete."""
        raise NotImplementedError

    def close(self) -> None:
        """When it ends, by an error too."""

    def __call__(self) -> None:
        """A step is about to begin."""
        steps, now = self.doctor.steps - self.seen, time.monotonic()
        due = steps >= self.steps if self.steps is not None else False
        due = due or (self.seconds is not None and now - self.time >= self.seconds)
        if steps == 0 or not due or capturing():
            return
        self.seen, self.time = self.doctor.steps, now
        self.try_look()

    def try_look(self) -> None:
        """Look, and give up at an error: the model must not fail because of who watches it."""
        try:
            self.look()
        except Exception as error:  # whatever a user's writer, a disk or a terminal may raise
            self.doctor.chart.note(f"stopped: {type(error).__name__}: {error}", self.name)
            self.stop()

    @property
    def name(self) -> str:
        """In notes."""
        return type(self).__name__

    def start(self) -> Self:
        """Begin to listen."""
        if not self.listening:
            self.doctor.chart.listeners.append(self)
            self.listening = True
        return self

    def stop(self) -> None:
        """End; a second time it does nothing."""
        if self.listening:
            self.listening = False
            self.doctor.chart.listeners.remove(self)
            self.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        try:
            if self.listening and self.doctor.steps > self.seen:
                self.seen, self.ending = self.doctor.steps, True
                self.try_look()
        finally:
            self.stop()


def capturing() -> bool:
    """Whether a CUDA graph is captured, in which nothing may be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
