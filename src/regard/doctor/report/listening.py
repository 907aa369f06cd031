"""`Listener`: reads a doctor's numbers from time to time while the model trains.

A step is read when the next one begins, because only then is all of it measured, gradients included. It
is read in the thread that trains: another thread could disturb the capture of a CUDA graph.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import torch

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor


class Listener:
    """Base class of what reads a doctor in a `with` block: calls `look` regularly and at the end.

    Between two looks nothing is read from the device. An error in `look` stops the listener and leaves
    a note; training continues.

    Args:
        doctor: the doctor whose steps are counted.
        steps: look after this many steps.
        seconds: look when this many seconds have passed.
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
        """Read the doctor; `self.doctor.steps` is the last step, and it is complete."""
        raise NotImplementedError

    def close(self) -> None:
        """Release files and the like; called when the listener stops, also by an error."""

    def __call__(self) -> None:
        """Called by the chart before a step begins: look if it is due."""
        steps, now = self.doctor.steps - self.seen, time.monotonic()
        due = steps >= self.steps if self.steps is not None else False
        due = due or (self.seconds is not None and now - self.time >= self.seconds)
        if steps == 0 or not due or capturing():
            return
        self.seen, self.time = self.doctor.steps, now
        self.try_look()

    def try_look(self) -> None:
        """Look, and stop listening at an error: a listener must not make training fail."""
        try:
            self.look()
        except Exception as error:  # a user's writer, a disk or a terminal may raise anything
            self.doctor.chart.note(f"stopped: {type(error).__name__}: {error}", self.name)
            self.stop()

    @property
    def name(self) -> str:
        """The name of the listener in notes."""
        return type(self).__name__

    def start(self) -> Self:
        """Start to listen."""
        if not self.listening:
            self.doctor.chart.listeners.append(self)
            self.listening = True
        return self

    def stop(self) -> None:
        """Stop listening; stopping twice is allowed."""
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
    """Whether a CUDA graph is being captured, during which nothing may be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
