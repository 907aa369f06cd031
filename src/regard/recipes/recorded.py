"""Gradients of training steps, replayed as CUDA graphs.

A step of a small network is a few thousand short kernels. Where the host takes longer to launch them than the GPU to
run them, a recording, which launches all at once, saves that time; where the GPU is the slower of the two it saves
nothing. So recordings are off unless a training asks for them. A recording has fixed shapes, so that a job with
recordings gives batches of few shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.measuring.graphs import CaptureError, Recorder

if TYPE_CHECKING:
    from regard.recipes.training import Job

MOST_SHAPES = (
    64  # batches of further shapes run without a recording: each recording keeps its gradients
)
Parts = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class RecordedStep:
    """The recording for one shape of batches.

    Attributes:
        inputs: what the recording reads; a batch is copied into it.
        replay: runs the recording.
        loss: what it leaves as the loss.
        gradients: what it leaves as the gradient of each parameter; None for those that it does not reach.
    """

    inputs: Parts
    replay: Callable[[], None]
    loss: Tensor
    gradients: Sequence[Tensor | None]


class RecordedGradients:
    """Computes the loss and gradients of batches, by a recording for each shape.

    Args:
        job: whose `prepare` returns a tuple of tensors and Nones; `loss` takes such a tuple. What `prepare` does is
            not recorded, and has its gradient too.
        precision: makes the context of the forward pass.
        recorder: records calls on the device.
    """

    def __init__(
        self, job: Job, precision: Callable[[], AbstractContextManager[Any]], recorder: Recorder
    ) -> None:
        self.job, self.precision, self.recorder = job, precision, recorder
        self.parameters: list[nn.Parameter] = list(job.model.parameters())
        self.known: dict[Any, RecordedStep | None] = {}
        self.broken = False

    def __call__(self, batch: Any) -> Tensor:
        """The loss of a batch; its gradients are in the parameters, which had none before."""
        drawn = self.random_state()
        parts = self.prepared(batch)
        shape = tuple(None if one is None else (one.shape, one.dtype) for one in parts)
        if shape not in self.known and len(self.known) < MOST_SHAPES and not self.broken:
            inputs = tuple(
                None if one is None else one.detach().clone().requires_grad_(one.requires_grad)
                for one in parts
            )
            # The graph of `prepare` ties the gradients of its parameters to the current stream, also in a recording
            # on another one, which then fails. So it goes, and is made again from the same random numbers: a
            # training that resumes records again, and must not draw others for that.
            del parts
            self.known[shape] = self.recorded(inputs)
            self.set_random_state(drawn)
            parts = self.prepared(batch)
        found = self.known.get(shape)
        return self.computed(parts) if found is None else self.replayed(found, parts)

    def prepared(self, batch: Any) -> Parts:
        """What the job makes of a batch."""
        with self.precision():
            return tuple(self.job.prepare(batch))

    def random_state(self) -> tuple[Tensor, Tensor | None]:
        """The states of the random numbers of the CPU and of the device."""
        device = self.recorder.device
        return torch.get_rng_state(), (
            torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        )

    def set_random_state(self, drawn: tuple[Tensor, Tensor | None]) -> None:
        """Set the states that `random_state` returned."""
        torch.set_rng_state(drawn[0])
        if drawn[1] is not None:
            torch.cuda.set_rng_state(drawn[1], self.recorder.device)

    def computed(self, parts: Parts) -> Tensor:
        """The loss and gradients without a recording."""
        with self.precision():
            loss = self.job.loss(parts)
        loss.backward()
        return loss.detach()

    def recorded(self, inputs: Parts) -> RecordedStep | None:
        """A recording that reads these tensors; None, with a warning, if none can be made."""
        losses: list[Tensor] = []
        try:
            replay = self.recorder.record(partial(self.run, inputs, losses))
        except CaptureError as error:
            self.broken = True
            warnings.warn(
                f"training steps cannot be recorded as CUDA graphs ({error}): they run kernel by kernel",
                stacklevel=2,
            )
            return None
        finally:
            gradients = [one.grad for one in self.parameters]
            forget(self.parameters)
        return RecordedStep(inputs, replay, losses[0], gradients)

    def run(self, inputs: Parts, losses: list[Tensor]) -> None:
        """What is recorded: from the inputs to the only entry of `losses`, and to new gradients of all."""
        forget([*self.parameters, *inputs])
        losses[:] = [self.computed(inputs)]

    def replayed(self, found: RecordedStep, parts: Parts) -> Tensor:
        """The loss and gradients by the recording."""
        given = [
            (own, one)
            for own, one in zip(found.inputs, parts, strict=True)
            if own is not None and one is not None
        ]
        with torch.no_grad():
            for own, one in given:
                own.copy_(one)
        found.replay()
        for parameter, gradient in zip(self.parameters, found.gradients, strict=True):
            parameter.grad = gradient
        # From the recording's inputs back through what `prepare` did.
        back = [(one, own.grad) for own, one in given if own.requires_grad]
        if back:
            torch.autograd.backward([one for one, _ in back], [grad for _, grad in back])
        return found.loss


def forget(tensors: Sequence[Tensor | None]) -> None:
    """Let go of gradients, so that backward makes new ones."""
    for one in tensors:
        if one is not None:
            one.grad = None
