"""`regard doctor` on one patient: run or train the model while a doctor watches."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.describe import describe
from regard.doctor.patients.patient import (
    USERS,
    Patient,
    Unusable,
    check_batch,
    moved,
    one_line,
    own_loss,
    with_kind,
)
from regard.doctor.running import call, undisturbed
from regard.doctor.watch import Doctor, watch

# Training measures the expensive level at every tenth step. Short runs measure it more often, so that
# rules over several steps get up to 20 of them.
EVERY, LOOKS = 10, 20
# Steps kept at most; the rings are allocated on the device.
LONGEST_WINDOW = 4096


@dataclass
class Checkup:
    """One examination.

    Attributes:
        doctor: the doctor, with all measurements.
        patient: the model and its data.
        trained: whether the model was trained; otherwise its weights did not change.
        losses: one for each step that had a loss.
        stopped: why it ended early; "" if it ran to the end.
        interrupted: whether Ctrl-C ended it.
    """

    doctor: Doctor
    patient: Patient
    trained: bool
    losses: list[float] = field(default_factory=list)
    stopped: str = ""
    interrupted: bool = False


def prepare(
    patient: Patient,
    *,
    steps: int | None = None,
    train: bool | None = None,
    level: str | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Checkup, int]:
    """A checkup that has not started yet, and its number of steps.

    Args:
        patient: the model and its data. The model is run once, without a trace, to check that it runs
            and whether it has a loss.
        steps: number of steps; None for the patient's own number.
        train: whether to train; None trains if there are several steps, a loss and real data.
        level: the level to measure; None for "sampled" in training and "exact" otherwise.
        device: the device to run on.
    """
    place = torch.device(device)
    if any(x.is_meta for x in patient.model.parameters()):
        raise Unusable(f"{patient.name} has weights on the meta device, which holds no numbers")
    patient.model.to(place)
    learns = has_loss(patient, place)
    steps = patient.steps if steps is None else steps
    if train and not learns:
        raise Unusable(
            f"--train: {patient.name} has no loss to train by, because the model returns none. Let the "
            "function return (model, batch, loss) with loss(output, batch), or leave --train out"
        )
    frozen = not any(x.requires_grad for x in patient.model.parameters())
    if train and frozen:
        raise Unusable(
            f"--train: all weights of {patient.name} are frozen. Set requires_grad on some, or leave "
            "--train out"
        )
    learns = learns and not frozen
    trained = (learns and steps > 1 and not patient.made_up) if train is None else train
    if learns and steps > 1 and not trained and train is None:
        patient.said.append(
            "not trained: there is nothing to learn from made-up data; --train trains anyway"
        )
    every = max(1, min(EVERY, steps // LOOKS)) if trained else 1
    doctor = watch(
        patient.model,
        level or ("sampled" if trained else "exact"),
        every=every,
        window=max(1, min(steps, LONGEST_WINDOW)),
    )
    return Checkup(doctor, patient, trained), steps


def has_loss(patient: Patient, device: torch.device) -> bool:
    """Whether the patient has a loss with gradients, from one run that leaves the model as it was."""
    with undisturbed(patient.model):
        batch = batch_at(patient, 0, device)
        return loss_at(patient, run(patient, batch), batch) is not None


def carry_out(
    checkup: Checkup, steps: int, device: torch.device | str, shown: AbstractContextManager | None
) -> None:
    """Run all steps; a loss that is not finite, or Ctrl-C, ends it early.

    Args:
        checkup: what `prepare` returned.
        steps: number of steps.
        device: the device to run on.
        shown: a context that displays progress, such as `Doctor.live`; None for none.
    """
    patient, doctor, place = checkup.patient, checkup.doctor, torch.device(device)
    model = patient.model.train(checkup.trained)
    optimizer = patient.optimizer(model, patient.rate) if checkup.trained else None
    try:
        with doctor, shown or nullcontext():
            for step in range(steps):
                loss = one_step(checkup, step, place, optimizer)
                if loss is not None and not math.isfinite(loss):
                    checkup.stopped = f"the loss is {loss} at step {step + 1}"
                    break
    except KeyboardInterrupt:
        checkup.interrupted = True
        checkup.stopped = f"interrupted after step {doctor.steps}"
    finally:
        model.zero_grad(set_to_none=True)


def one_step(
    checkup: Checkup, step: int, device: torch.device, optimizer: torch.optim.Optimizer | None
) -> float | None:
    """The loss of one step: forward, backward if there is a loss, an update if there is an optimizer."""
    patient = checkup.patient
    batch = batch_at(patient, step, device)
    loss = loss_at(patient, run(patient, batch), batch)
    if loss is None:
        return None
    # Backward runs without an optimizer too: gradients are among the vitals.
    try:
        loss.backward()
    except USERS as error:
        raise Unusable(f"{patient.name} failed in backward: {with_kind(error)}") from None
    if optimizer is not None:
        optimizer.step()
    patient.model.zero_grad(set_to_none=True)
    checkup.losses.append(loss.detach().item())
    return checkup.losses[-1]


def batch_at(patient: Patient, step: int, device: torch.device) -> Any:
    """The batch of a step, checked, on the device."""
    try:
        batch = patient.batch(step)
    except USERS as error:
        raise Unusable(f"{patient.name} has no batch for step {step}: {one_line(error)}") from None
    check_batch(batch, f"the batch of step {step}")
    return moved(batch, device)


def run(patient: Patient, batch: Any) -> Any:
    """The output of the model on a batch; an error of the model becomes one sentence."""
    try:
        return call(patient.model, batch)
    except USERS as error:  # data may not fit the model
        hint = ". The batch was made up: give --data, or let the function return (model, batch)"
        hint = hint if patient.made_up else ""
        raise Unusable(f"{patient.name} failed on its batch: {with_kind(error)}{hint}") from None


def loss_at(patient: Patient, output: Any, batch: Any) -> Tensor | None:
    """The loss of an output; None if there is no loss, or none that gradients flow from."""
    if patient.loss is None:
        return own_loss(output)
    try:
        loss = patient.loss(output, batch)
    except USERS as error:
        raise Unusable(f"the loss of {patient.name} failed: {with_kind(error)}") from None
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise Unusable(
            f"the loss of {patient.name} must be a tensor with one number, got {describe(loss)}"
        )
    return loss.reshape(()) if loss.requires_grad else None
