"""A callback for the `Trainer` of Hugging Face: `Trainer(..., callbacks=[DoctorCallback("out.html")])`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.doctor.report import write_report
from regard.doctor.report.log import numbers
from regard.doctor.watch import Doctor, attach

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError(
        "DoctorCallback needs transformers: pip install 'regard[hf]' accelerate"
    ) from None


class DoctorCallback(TrainerCallback):
    """A callback that watches the model of a `Trainer` while it trains.

    It attaches a doctor when training begins. Each time the trainer logs, `attention/...` numbers go
    into its log history, and to `log` if given; in between nothing is read from the device. When
    training ends it detaches and writes the report. A step of the doctor is one call of the model, so
    accumulated batches and evaluation count too; logged numbers carry the trainer's steps.

    The trainer does not tell its callbacks when training ends by an error: call `detach` then.

    Args:
        report: path of the HTML report; None for none.
        log: called as `log(dict, step=...)`, like `wandb.log`.
        vitals: names of vitals to log; `KEY_VITALS` unless given.
        options: options of `regard.doctor.watch`: level, every, window, rows.

    Attributes:
        doctor: the doctor that watches, or watched last.
    """

    def __init__(
        self,
        report: str | Path | None = None,
        *,
        log: Callable[..., Any] | None = None,
        vitals: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.report, self.log, self.vitals, self.options = report, log, vitals, options
        self.doctor: Doctor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Attach a new doctor."""
        # A training before may have ended by an error, with its doctor still attached.
        self.detach()
        self.doctor = attach(given["model"], **self.options)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Add the newest numbers to what the trainer logged."""
        if self.doctor is None or not self.doctor.attached or not state.is_world_process_zero:
            return
        found = numbers(self.doctor, self.vitals)
        if state.log_history:
            state.log_history[-1].update(found)
        if self.log is not None and found:
            self.log(found, step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Detach and write the report."""
        self.detach()
        if self.doctor is not None and self.report is not None and state.is_world_process_zero:
            write_report(self.doctor, self.report)

    def detach(self) -> None:
        """Stop watching; measurements stay readable."""
        if self.doctor is not None:
            self.doctor.detach()
