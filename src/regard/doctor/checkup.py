"""Examine a patient from outside: run or train it while a doctor watches."""

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

# In training the dear level comes at every tenth step, in short runs more often.
EVERY, LOOKS = 10, 20
LONGEST_WINDOW = 4096


@dataclass
class Checkup:
    """One examination.

    Attributes:
        doctor: with all that was measured.
        patient: who it was.
        trained: whether the model learned; else its weights stayed as they were.
        losses: one for each step that had one.
        stopped: why it ended early, "" where it did not.
        interrupted: by Ctrl-C.
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
    """A doctor for the patient, and how many steps there will be.

    Args:
        patient: is run once on the side, to see that it runs and whether it has a loss.
        steps: how many; None for the patient's own number.
        train: None trains for more than one step, where there are a loss and real data.
        level: what is measured; None for "sampled" in training and "exact" else.
        device: where.
    """
    place = torch.device(device)
    if any(x.is_meta for x in patient.model.parameters()):
        raise Unusable(f"{patient.name} has weights on the meta device, which holds no numbers")
    patient.model.to(place)
    learns = has_loss(patient, place)
    steps = patient.steps if steps is None else steps
    if train and not learns:
        raise Unusable(
            f"{patient.name} has no loss to train by: the model returns none. Let the function "
            "return (model, batch, loss) with loss(output, batch), or leave --train out"
        )
    frozen = not any(x.requires_grad for x in patient.model.parameters())
    if train and frozen:
        raise Unusable(f"{patient.name} has nothing to train: all its weights are frozen")
    learns = learns and not frozen
    trained = (learns and steps > 1 and not patient.made_up) if train is None else train
    if learns and steps > 1 and not trained and train is None:
        patient.said.append("made-up data is nothing to learn from: not trained; --train does it")
    every = max(1, min(EVERY, steps // LOOKS)) if trained else 1
    doctor = watch(
        patient.model,
        level or ("sampled" if trained else "exact"),
        every=every,
        window=max(1, min(steps, LONGEST_WINDOW)),
    )
    return Checkup(doctor, patient, trained), steps


def has_loss(patient: Patient, device: torch.device) -> bool:
    """Run the model once, undisturbed: whether there is a loss with gradients."""
    with undisturbed(patient.model):
        batch = batch_at(patient, 0, device)
        return loss_at(patient, run(patient, batch), batch) is not None


def carry_out(
    checkup: Checkup, steps: int, device: torch.device | str, shown: AbstractContextManager | None
) -> None:
    """Run all steps, or until the loss is no number, or Ctrl-C; `shown` shows them."""
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
    """A batch forward, backward where there is a loss, and a step where it learns."""
    patient = checkup.patient
    batch = batch_at(patient, step, device)
    loss = loss_at(patient, run(patient, batch), batch)
    if loss is None:
        return None
    try:
        loss.backward()
    except USERS as error:
        raise Unusable(f"{patient.name} fails in backward: {with_kind(error)}") from None
    if optimizer is not None:
        optimizer.step()
    patient.model.zero_grad(set_to_none=True)
    checkup.losses.append(loss.detach().item())
    return checkup.losses[-1]


def batch_at(patient: Patient, step: int, device: torch.device) -> Any:
    """The batch of a step, checked and on the device."""
    try:
        batch = patient.batch(step)
    except USERS as error:
        raise Unusable(f"{patient.name} has no batch for step {step}: {one_line(error)}") from None
    check_batch(batch, f"the batch of step {step}")
    return moved(batch, device)


def run(patient: Patient, batch: Any) -> Any:
    """The model on a batch; what it cannot digest is said in one sentence."""
    try:
        return call(patient.model, batch)
    except USERS as error:  # data may not fit the model
        hint = ". The batch was made up: give --data, or return (model, batch)"
        hint = hint if patient.made_up else ""
        raise Unusable(f"{patient.name} fails on its batch: {with_kind(error)}{hint}") from None


def loss_at(patient: Patient, output: Any, batch: Any) -> Tensor | None:
    """The loss of an output, None where there is none."""
    if patient.loss is None:
        return own_loss(output)
    try:
        loss = patient.loss(output, batch)
    except USERS as error:
        raise Unusable(f"the loss of {patient.name} fails: {with_kind(error)}") from None
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise Unusable(f"the loss of {patient.name} must be one number, got {describe(loss)}")
    return loss.reshape(()) if loss.requires_grad else None
