"""A patient: a model, its batches, and its loss, if it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.describe import describe

Batch = Tensor | Mapping[str, Any] | Sequence[Any]


# What a user's code may raise. SystemExit is caught because a sys.exit(0) in it would let a check
# in CI pass without an examination.
USERS = (Exception, SystemExit)


class Unusable(Exception):
    """Raised for a model or data that the user has to fix; the message says what and how."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """The message of an error on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def with_kind(error: BaseException) -> str:
    """The type of an error and its message, on one line."""
    return f"{type(error).__name__}: {one_line(error)}"


def new_adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """The default optimizer: AdamW over all parameters that require gradients."""
    return torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], rate)


@dataclass
class Patient:
    """A model to examine, with its batches and its training.

    Attributes:
        name: as the user wrote it.
        model: any module.
        batch: `step -> batch`, a tensor, or a tuple or dict of all arguments of the model.
        loss: `(output, batch) -> scalar`, or None where there is nothing to train.
        steps: the default number of steps.
        optimizer: `(model, rate) -> optimizer`.
        rate: the learning rate.
        made_up: whether the batches are random numbers and not the user's data.
        said: remarks for the user: what was assumed, what is missing.
    """

    name: str
    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Any], Tensor] | None = None
    steps: int = 1
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] = new_adamw
    rate: float = 1e-3
    made_up: bool = False
    said: list[str] = field(default_factory=list)


def no_batch(step: int) -> Batch:
    """A placeholder for batches that are set later."""
    raise AssertionError("a patient without data")


def numbers_of(seed: int, step: int) -> torch.Generator:
    """The random generator for the batch of a step, the same for the same seed."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)


def own_loss(output: Any) -> Tensor | None:
    """The loss in a model's own output: a scalar, `.loss`, or the entry "loss"; else None."""
    found = output["loss"] if isinstance(output, Mapping) and "loss" in output else output
    found = getattr(found, "loss", found)
    if isinstance(found, tuple | list) and found:
        found = found[0]
    scalar = isinstance(found, Tensor) and found.numel() == 1 and found.ndim <= 1
    return found.reshape(()) if scalar and found.requires_grad else None


def moved(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(x, device) for name, x in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)([moved(x, device) for x in batch])
    return batch


def named_tensors(batch: Any, name: str = "the batch") -> dict[str, Tensor]:
    """All tensors in a batch, by the name that messages use."""
    if isinstance(batch, Tensor):
        return {name: batch}
    if isinstance(batch, Mapping):
        parts = [named_tensors(x, str(key)) for key, x in batch.items()]
    elif isinstance(batch, list | tuple):
        parts = [named_tensors(x, f"item {place} of {name}") for place, x in enumerate(batch)]
    else:
        return {}
    return {key: x for part in parts for key, x in part.items()}


def check_batch(batch: Any, where: str) -> None:
    """Raise `Unusable` unless a batch holds tensors that are not empty and have finite numbers.

    Args:
        batch: what was given.
        where: where the batch comes from; begins the message.
    """
    tensors = named_tensors(batch)
    if not tensors:
        raise Unusable(
            f"{where}: a batch is a tensor, or a tuple or dict of tensors, got {describe(batch)}"
        )
    for name, x in tensors.items():
        if x.is_meta:
            raise Unusable(f"{where}: {name} is a meta tensor, which holds no numbers")
        if x.numel() == 0:
            raise Unusable(f"{where}: {name} is empty, its shape is {tuple(x.shape)}")
        if x.is_floating_point() and not x.isfinite().all():
            broken = int((~x.isfinite()).sum())
            raise Unusable(
                f"{where}: {name} holds {broken} NaN or infinite numbers; attention cannot be "
                "judged on these. Fix the data first"
            )
