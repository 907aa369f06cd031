"""What tests of `regard recipe` share: the fake recipe's row in the catalogue, and mishaps."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from regard.cli import recipe_help
from regard.cli.recipe import VERBS
from regard.recipes import catalog
from regard.recipes.estimator import read_saved
from regard.text import Text

from .fake_recipe import PointsJob

FAKE = catalog.Listed("fake", Text("Points.", "点。"), Text("a", "b"), ("points",), ("public",), ())
USAGE = recipe_help.Usage(
    "[POINT]...",
    "Classify.",
    "Draw.",
    {verb: (verb,) for verb in VERBS},
    ("additive",),
    "dot",
    ("beam",),
)


def weights(path: str = "fake.safetensors") -> dict[str, torch.Tensor]:
    return read_saved(Path(path))[1]


def stop_at(monkeypatch: pytest.MonkeyPatch, epoch: int, error: type[BaseException]) -> None:
    """Raise an error in the validation of that epoch."""
    known, count = PointsJob.validate, 0

    def validate(job: PointsJob, model: torch.nn.Module) -> float:
        nonlocal count
        count += 1
        if count == epoch:
            raise error
        return known(job, model)

    monkeypatch.setattr(PointsJob, "validate", validate)


def full(file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
