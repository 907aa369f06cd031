"""The training loop of all recipes: epochs, schedule, clipping, mixed precision, early stopping, resuming.

A recipe describes its work as a `Job`; `train` runs it. Optimisers, schedules, averaging of weights and mixed
precision are torch's.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from regard.measuring.clock import worked
from regard.measuring.graphs import Recorder
from regard.recipes.checkpoint import Checkpoint, CheckpointError, read_checkpoint, write_checkpoint
from regard.recipes.recorded import RecordedGradients

Schedule = Literal["cosine", "inverse_sqrt", "constant"]
# Entered around every training with its model, which `fit` makes itself: how the doctor watches on request.
AROUND: list[Callable[[nn.Module], AbstractContextManager[Any]]] = []
# Seconds between two checkpoints at least: a write waits for the disk, which would be most of the time of a
# training whose epochs take milliseconds.
CHECKPOINT_PAUSE = 5.0


class DivergedError(ValueError):
    """A training that left no usable weights: its loss, or each of its validations, was NaN or infinite."""


@dataclass(frozen=True)
class TrainingPlan:
    """How a job is trained.

    Attributes:
        epochs: at most.
        rate: the largest learning rate of AdamW.
        schedule: how the rate falls after the warm-up: along a cosine to 0, with the inverse root of the step,
            or not at all.
        warmup: steps in which the rate rises from 0.
        weight_decay: of AdamW.
        betas: of AdamW.
        clip: the largest norm of the gradient; None for no clipping.
        bf16: run the forward pass under autocast to bfloat16.
        average: decay of an exponential moving average of the weights, which then takes the place of the
            weights in validation and in the result; None for none.
        patience: the most validations in a row without a better one: the next such ends training; None for never.
        validate_every: epochs between two validations; the last epoch is always validated.
        minutes: stop after this much training time; None for no limit. A run that was stopped by the clock is
            not reproducible to the bit.
        checkpoint_every: epochs between two checkpoints, which are also `CHECKPOINT_PAUSE` seconds apart.
        graphs: on a GPU, replay steps as CUDA graphs; see `recorded.py` for what this asks of a job.
    """

    epochs: int
    rate: float
    schedule: Schedule = "cosine"
    warmup: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float | None = 1.0
    bf16: bool = False
    average: float | None = None
    patience: int | None = None
    validate_every: int = 1
    minutes: float | None = None
    checkpoint_every: int = 1
    graphs: bool = False

    def factor(self, step: int, steps: int) -> float:
        """The share of the largest learning rate at a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "inverse_sqrt":
            return math.sqrt(max(self.warmup, 1) / (step + 1))
        done = (step - self.warmup) / max(steps - self.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class Job(ABC):
    """What a recipe trains: a model, batches, a loss and a validation."""

    model: nn.Module

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Any] | Iterable[Any]:
        """The batches of an epoch on the right device. Their order follows from seed and epoch alone."""

    @abstractmethod
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has at most; the schedule and the time left follow from it."""

    def prepare(self, batch: Any) -> Any:
        """What `loss` takes: the batch, or what cannot be recorded as a CUDA graph computed from it."""
        return batch

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """The loss of a prepared batch, a scalar with a gradient."""

    @abstractmethod
    def validate(self, model: nn.Module) -> float:
        """The quality of the model, in eval mode and without gradients; greater is better."""


class TrainingProgress(Protocol):
    """Receives the course of a training: `start`, then `step` for each step and `validated` for each validation."""

    def start(self, steps: int, done: int) -> None:
        """A training of so many steps begins; `done` of them were resumed."""

    def step(self, loss: Callable[[], float]) -> None:
        """One more step is done. Calling `loss` waits for the device, so call it rarely."""

    def validated(self, epoch: int, quality: float, best: float) -> None:
        """An epoch was validated."""


@dataclass
class TrainingHistory:
    """What a training did.

    Attributes:
        losses: the mean training loss of each epoch.
        validations: (epoch, quality) of each validation.
        best: the best quality, and `best_epoch` when it was reached.
        seconds: training time, without validations, by `clock.worked`; of all parts of a resumed training.
        stopped: why it ended: "epochs", "patience", "minutes" or "diverged".
    """

    losses: list[float] = field(default_factory=list)
    validations: list[tuple[int, float]] = field(default_factory=list)
    best: float = -math.inf
    best_epoch: int = -1
    seconds: float = 0.0
    stopped: str = ""

    def worse(self) -> int:
        """The number of validations since the best one."""
        return sum(epoch > self.best_epoch for epoch, _ in self.validations)


class Trainer:
    """One training: model, optimiser, schedule, average and history, as checkpoints save them."""

    def __init__(
        self,
        job: Job,
        plan: TrainingPlan,
        seed: int,
        device: torch.device,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.job, self.plan, self.device, self.seed = job, plan, device, seed
        self.identity, self.written, self.warned = identity or {}, time.monotonic(), False
        self.steps = plan.epochs * job.steps_per_epoch()
        # One kernel a step in place of several for each parameter: on a CPU 0.35 ms, not 2.3 ms, for 63 of them.
        fused = device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(
            decayed_groups(job.model, plan.weight_decay),
            lr=plan.rate,
            betas=plan.betas,
            fused=fused,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: plan.factor(step, self.steps)
        )
        self.average = None
        if plan.average is not None:
            average = get_ema_multi_avg_fn(plan.average)
            self.average = AveragedModel(job.model, multi_avg_fn=average)
            for part in self.average.modules():
                # A copied recurrent layer has its weights in pieces, which a GPU would join at every call.
                if isinstance(part, nn.RNNBase):
                    part.flatten_parameters()
        self.history, self.epoch, self.best_weights = TrainingHistory(), 0, {}
        self.recorded = None
        # Hooks of a doctor run with the kernels' launches, which a recording does not repeat.
        if plan.graphs and device.type == "cuda" and not AROUND:
            self.recorded = RecordedGradients(job, self.precision, Recorder(device))

    @property
    def judged(self) -> nn.Module:
        """The model that is validated and kept: the averaged one if there is one."""
        return self.job.model if self.average is None else self.average.module

    def run(self, checkpoint: Path | None, progress: TrainingProgress | None) -> TrainingHistory:
        """Train to the end, from the checkpoint if there is one, and leave the best weights in the model."""
        if checkpoint is not None:
            self.resume(checkpoint)
        if progress is not None:
            progress.start(self.steps, self.epoch * self.job.steps_per_epoch())
        with ExitStack() as around:
            for enter in AROUND:
                around.enter_context(enter(self.job.model))
            while self.epoch < self.plan.epochs and not self.history.stopped:
                self.run_epoch(progress)
                self.epoch += 1
                self.after_epoch(progress)
                if checkpoint is not None and self.checkpoint_due():
                    self.keep(checkpoint)
        self.history.stopped = self.history.stopped or "epochs"
        if not math.isfinite(self.history.best):  # -inf: there was no validation
            self.history.stopped = "diverged"
            raise DivergedError(
                "the training diverged before a validation gave a number: try a smaller rate= or another seed="
            )
        self.job.model.load_state_dict(self.best_weights)
        return self.history

    def keep(self, checkpoint: Path) -> None:
        """Write the checkpoint. Where that fails, as on a full disk, the one before it stays, and training goes on."""
        try:
            write_checkpoint(checkpoint, self.state())
        except OSError as error:
            if not self.warned:
                warnings.warn(
                    f"checkpoint={str(checkpoint)!r} could not be written ({error.strerror or error}): training goes "
                    "on without a new one",
                    stacklevel=2,
                )
            self.warned = True
        self.written = time.monotonic()

    def checkpoint_due(self) -> bool:
        """Whether the state is to be written after this epoch; at the end it always is."""
        if self.history.stopped or self.epoch == self.plan.epochs:
            return True
        paused = time.monotonic() - self.written >= CHECKPOINT_PAUSE
        return paused and self.epoch % self.plan.checkpoint_every == 0

    def run_epoch(self, progress: TrainingProgress | None) -> None:
        """All batches of one epoch."""
        model, begun = self.job.model.train(), worked(self.device)
        total, count = torch.zeros((), device=self.device), 0
        for batch in self.job.batches(self.epoch):
            loss = self.gradient(batch)
            if self.plan.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), self.plan.clip)
            self.optimizer.step()
            self.schedule.step()
            if self.average is not None:
                self.average.update_parameters(model)
            # Stays on the device: reading the loss at every step would make the host wait.
            total, count = total + loss, count + 1
            if progress is not None:
                progress.step(loss.item)
        self.history.losses.append(float(total) / max(count, 1))
        self.history.seconds += worked(self.device) - begun

    def gradient(self, batch: Any) -> Tensor:
        """The loss of a batch; its gradient is in the parameters."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.recorded is not None:
            return self.recorded(batch)
        with self.precision():
            loss = self.job.loss(self.job.prepare(batch))
        loss.backward()
        return loss.detach()

    def after_epoch(self, progress: TrainingProgress | None) -> None:
        """Validate if it is due, keep the best weights, and decide whether to stop."""
        plan, history = self.plan, self.history
        if not math.isfinite(history.losses[-1]):
            history.stopped = "diverged"
            return
        late = plan.minutes is not None and history.seconds > 60 * plan.minutes
        if not (late or self.epoch % plan.validate_every == 0 or self.epoch == plan.epochs):
            return
        self.validate(progress)
        if late:
            history.stopped = "minutes"
        elif plan.patience is not None and history.worse() > plan.patience:
            history.stopped = "patience"

    def validate(self, progress: TrainingProgress | None) -> None:
        """Measure the quality, and keep the weights if it is the best so far."""
        model, history = self.judged, self.history
        model.eval()
        with torch.no_grad(), self.precision():
            quality = self.job.validate(model)
        history.validations.append((self.epoch, quality))
        # A first validation that is NaN is best only until there is a number.
        if quality > history.best or not self.best_weights or math.isnan(history.best):
            history.best, history.best_epoch = quality, self.epoch
            self.best_weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
        if progress is not None:
            progress.validated(self.epoch, quality, history.best)

    def precision(self) -> AbstractContextManager[Any]:
        """Autocast to bfloat16, or nothing."""
        if not self.plan.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def state(self) -> Checkpoint:
        """All that a later process needs to go on to the same result."""
        return Checkpoint.of(self)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint, if the file exists."""
        found = read_checkpoint(path)
        if found is not None:
            found.restore(self, path)


def decayed_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameters in two groups: matrices, with weight decay, and vectors (biases, norms), without."""
    wanted = [x for x in model.parameters() if x.requires_grad]
    return [
        {"params": [x for x in wanted if x.ndim > 1], "weight_decay": decay},
        {"params": [x for x in wanted if x.ndim <= 1], "weight_decay": 0.0},
    ]


def train(
    job: Job,
    plan: TrainingPlan,
    *,
    seed: int,
    device: torch.device,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: TrainingProgress | None = None,
    identity: Callable[[], Mapping[str, Any]] | None = None,
) -> TrainingHistory:
    """Train a job; its model ends with the weights that were best on validation data.

    Args:
        job: model, batches, loss and validation. The recipe builds the model after `torch.manual_seed(seed)`.
        plan: epochs, rates and the rest.
        seed: of dropout; batches follow from the job's own seed.
        device: where the model is.
        checkpoint: a file, written every few seconds; if it exists, training goes on from it. On a CPU with as many
            threads the result is the same to the bit; on a GPU as far as its kernels are deterministic.
        progress: is told about steps and validations.
        identity: what the result follows from beside plan, seed and shapes, by `Recipe.identity`: a checkpoint
            of another identity is refused. Called only if there is a checkpoint.

    Raises:
        DivergedError: no validation gave a number, so that there are no weights worth keeping.
        CheckpointError: the checkpoint is damaged or of another training, or its folder is missing.
    """
    torch.manual_seed(seed)  # dropout: the same from here on, however the model was made
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not path.parent.is_dir():
        raise CheckpointError(f"checkpoint={str(path)!r}: there is no folder {path.parent}")
    own = None if path is None or identity is None else identity()
    return Trainer(job, plan, seed, device, own).run(path, progress)
