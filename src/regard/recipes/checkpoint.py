"""Checkpoints of a training: one safetensors file, written atomically every few seconds, after whole epochs.

The file holds tensors by name and one JSON text; nothing in it is unpickled. A checkpoint of another plan, seed,
model, of other arguments or other data is refused: going on from it would give the result of neither.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.measuring.failures import first_line
from regard.measuring.files import write_atomic

if TYPE_CHECKING:
    from regard.recipes.training import Trainer

TRAINING_ENTRY = "regard-training"
# What a part of the training is called in the file; names of tensors go on after the point.
MODEL, BEST, AVERAGE, OPTIMIZER, RANDOM = "model.", "best.", "average.", "optimizer.", "random."


class CheckpointError(ValueError):
    """A checkpoint that is damaged or belongs to another training; the message says what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A training after a whole number of epochs: tensors by name, and all else as plain JSON."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    @staticmethod
    def of(trainer: Trainer) -> Checkpoint:
        """The state of a training."""
        tensors = prefixed(MODEL, trainer.job.model.state_dict())
        tensors |= prefixed(BEST, trainer.best_weights)
        if trainer.average is not None:
            tensors |= prefixed(AVERAGE, trainer.average.state_dict())
        state = trainer.optimizer.state_dict()
        for number, own in state["state"].items():
            tensors |= prefixed(f"{OPTIMIZER}{number}.", own)
        tensors[RANDOM + "cpu"] = torch.get_rng_state()
        if trainer.device.type == "cuda":
            tensors[RANDOM + "cuda"] = torch.cuda.get_rng_state(trainer.device)
        facts = {
            "owner": owner(trainer),
            "epoch": trainer.epoch,
            "history": dataclasses.asdict(trainer.history),
            "schedule": trainer.schedule.last_epoch,
            "threads": torch.get_num_threads(),  # sums of other numbers of threads differ in their last bits
        }
        return Checkpoint(tensors, facts)

    def restore(self, trainer: Trainer, path: Path) -> None:
        """Put a training into this state, which was read from a file of that path.

        Raises:
            CheckpointError: it is the checkpoint of another training.
        """
        expected = owner(trainer)
        theirs = self.facts["owner"]
        differing = [k for k in expected if theirs.get(k) != expected[k]]
        if differing:
            raise CheckpointError(
                f"{path} is the checkpoint of another training (it differs in {', '.join(differing)}); "
                "remove it to start over, or give another file"
            )
        try:
            self.put_into(trainer)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({first_line(error)}); remove it to start over"
            ) from None

    def put_into(self, trainer: Trainer) -> None:
        """Set weights, optimiser, schedule, random numbers and history of a training that owns this state."""
        from regard.recipes.training import TrainingHistory

        trainer.job.model.load_state_dict(self.part(MODEL))
        trainer.best_weights = {k: v.to(trainer.device) for k, v in self.part(BEST).items()}
        if trainer.average is not None:
            trainer.average.load_state_dict(self.part(AVERAGE))
        # Groups come from the plan: they hold the rates, which the schedule sets below.
        own: dict[int, dict[str, Tensor]] = {}
        for name, tensor in self.part(OPTIMIZER).items():
            number, _, key = name.partition(".")
            own.setdefault(int(number), {})[key] = tensor
        trainer.optimizer.load_state_dict(
            {"state": own, "param_groups": trainer.optimizer.state_dict()["param_groups"]}
        )
        self.restore_schedule(trainer)
        torch.set_rng_state(self.tensors[RANDOM + "cpu"])
        if trainer.device.type == "cuda" and RANDOM + "cuda" in self.tensors:
            torch.cuda.set_rng_state(self.tensors[RANDOM + "cuda"], trainer.device)
        trainer.epoch = int(self.facts["epoch"])
        history = dict(self.facts["history"])
        history["validations"] = [tuple(one) for one in history["validations"]]
        trainer.history = TrainingHistory(**history)

    def restore_schedule(self, trainer: Trainer) -> None:
        """Set the learning rates to those of the step that was reached."""
        step = int(self.facts["schedule"])
        trainer.schedule.last_epoch = step
        factor = trainer.plan.factor(step, trainer.steps)
        for group, base in zip(
            trainer.optimizer.param_groups, trainer.schedule.base_lrs, strict=True
        ):
            group["lr"] = base * factor

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with the prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


def prefixed(prefix: str, tensors: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors under longer names, on the CPU and each in memory of its own, as safetensors needs them."""
    return {prefix + k: torch.as_tensor(v).detach().cpu().clone() for k, v in tensors.items()}


def owner(trainer: Trainer) -> dict[str, Any]:
    """What makes a training the same as another: plan, seed, steps, weights by shape, arguments and data."""
    shapes = {k: [str(v.dtype), *v.shape] for k, v in trainer.job.model.state_dict().items()}
    plan: dict[str, Any] = dataclasses.asdict(trainer.plan)
    del plan["checkpoint_every"]  # how often it is kept does not change what is kept
    found = {"plan": plan, "seed": trainer.seed, "steps": trainer.steps, "weights": shapes}
    return json.loads(json.dumps(found | dict(trainer.identity)))


def write_checkpoint(path: Path, found: Checkpoint) -> None:
    """Write the file atomically: a full disk or a kill leaves the one before it."""
    import safetensors.torch

    facts = {"format": "pt", TRAINING_ENTRY: json.dumps(found.facts)}
    write_atomic(path, safetensors.torch.save(found.tensors, facts))


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in a file; None if there is no file.

    Raises:
        CheckpointError: the file is damaged or no checkpoint.
    """
    if not path.exists():
        return None
    if not path.is_file():
        raise CheckpointError(f"checkpoint={str(path)!r} exists and is not a file; give another")
    import safetensors

    try:
        with safetensors.safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[TRAINING_ENTRY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        if not (isinstance(facts, dict) and isinstance(facts.get("owner"), dict)):
            raise ValueError("it does not say whose it is")
    # A RecursionError is JSON that is nested too deeply.
    except (safetensors.SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of a training ({error}); remove it to start over"
        ) from None
    return Checkpoint(tensors, facts)
