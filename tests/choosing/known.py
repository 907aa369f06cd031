"""Tasks whose best answer is known, and comparisons small enough for a test."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import regard
from regard.choosing.tasks.models import Match, ReadValue
from regard.choosing.training.stages import SEARCH_SEED
from regard.choosing.training.storage import open_study, opened, quiet
from regard.choosing.training.verdict import Verdict
from regard.synthetic.criteria import Criteria
from regard.synthetic.largest_product import LargestProduct
from regard.synthetic.views import Views
from regard.synthetic.volumes import Volumes

DATA = 5 * 10**8


@dataclass(frozen=True)
class Worlds:
    """Data of a task for each seed; `base` gives other worlds."""

    task: Any
    base: int = 0
    rows: tuple[int, int, int] = (2048, 256, 512)

    def __call__(self, seed: int) -> list[tuple[torch.Tensor, ...]]:
        generator = torch.Generator().manual_seed(DATA + 1000 * self.base + seed)
        return [self.task.sample(count, generator) for count in self.rows]


SMALL = Worlds(LargestProduct(dim=8, keys=4), rows=(256, 64, 64))


@dataclass(frozen=True)
class Meeting:
    """The data of `small`, which nobody gets for the final before two processes hold a trial of it.

    A process asks for data once it has taken a trial. However fast one is, it cannot train all.
    """

    folder: Path
    patience: float = 90.0

    def __call__(self, seed: int) -> list[tuple[torch.Tensor, ...]]:
        if seed != SEARCH_SEED:
            (self.folder / str(os.getpid())).touch()
            until = time.monotonic() + self.patience
            while len(list(self.folder.iterdir())) < 2:
                if time.monotonic() > until:
                    raise TimeoutError("no other process took a trial of the final")
                time.sleep(0.02)
        return SMALL(seed)


# Name: task, model, options of `regard.choose`.
KNOWN: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "non-linear match": (
        Views(shared=4, query_dim=16, key_dim=16, noise=0.3, shown="folded"),
        Match,
        {"dims": 16, "width": 16, "hidden": (64,), "scores": ("additive",),
         "stabilizers": ("none",), "steps": 120},
    ),
    "hijack norms": (
        Volumes(latent=8, query_dim=16, key_dim=16, keys=8, spread=2.0),
        Match,
        {"dims": 16, "width": 16, "scores": ("cosine",), "stabilizers": ("none", "clipped_keys"),
         "steps": 120},
    ),
    "plain data": (
        LargestProduct(dim=8, keys=8),
        Match,
        {"dims": 8, "width": 8, "hidden": (8,), "scores": ("cosine", "additive"),
         "stabilizers": ("none",), "steps": 200, "rates": (1e-2, 3e-2)},
    ),
    "two criteria": (
        Criteria(spaces=2, dim=4, keys=8, labels=4),
        partial(ReadValue, value_dim=4, outputs=4, answers=2),
        {"dims": 8, "width": 16, "hidden": (16,), "heads": (1, 2), "scores": ("additive",),
         "stabilizers": ("none",), "steps": 300, "finalists": 2},
    ),
    "no difference": (
        # Both are bilinear forms, and so is the relation.
        Views(shared=4, query_dim=8, key_dim=8, keys=4, noise=0.2),
        Match,
        {"dims": 8, "width": 8, "scores": ("bilinear",), "stabilizers": ("none",),
         "steps": 200, "matters": 0.03},
    ),
}  # fmt: skip


def chosen(name: str, folder: Path, base: int = 0, **more: Any) -> Verdict:
    """The verdict on a known task."""
    task, build, options = KNOWN[name]
    return regard.choose(
        build,
        Worlds(task, base),
        **{
            "projected": True, "rates": (2e-2,), "seeds": 3, "minutes": 5, "vitals": False,
            "storage": folder / "study.journal", "progress": False, **options, **more,
        },
    )  # fmt: skip


def small(folder: Path | str, **more: Any) -> Verdict:
    """A comparison of two scores that takes a second."""
    options: dict[str, Any] = {
        "dims": 8, "width": 8, "hidden": (8,), "scores": ("additive",), "stabilizers": ("none",),
        "projected": True, "steps": 20, "seeds": 2, "rates": (1e-2, 3e-2), "minutes": 2,
        "vitals": False, "progress": False, "storage": folder,
    }  # fmt: skip
    options |= more
    build = options.pop("build", Match)
    data = options.pop("data", SMALL)
    return regard.choose(build, data, **options)


def trials(place: Path | str, name: str) -> list[Any]:
    """All trials of a study."""
    with quiet(), opened(place) as storage:
        return open_study(storage, name).get_trials(deepcopy=False)
