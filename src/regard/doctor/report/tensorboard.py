"""Numbers of a doctor in TensorBoard, or any other writer with `add_scalar(name, value, step)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.doctor.report.log import LogTo

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor


class TensorBoard(LogTo):
    """A listener that writes scalars: `with TensorBoard(doctor, SummaryWriter(), every=100): ...`.

    Args:
        doctor: the doctor to log.
        writer: anything with `add_scalar(name, value, step)`; it is not closed.
        every: log after this many steps; nothing is read from the device in between.
        options: options of `LogTo`.
    """

    def __init__(self, doctor: Doctor, writer: Any, every: int = 100, **options: Any) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                f"writer must have add_scalar(name, value, step), got {type(writer).__name__}. "
                "torch.utils.tensorboard.SummaryWriter has it: pip install tensorboard"
            )

        def log(found: dict[str, float], step: int) -> None:
            for name, value in found.items():
                writer.add_scalar(name, value, step)

        super().__init__(doctor, log, every, **options)
