"""The built-in tasks: one for each property of data that decides which score is best.

All but the digits are synthetic, and their best score is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.choosing.tasks.models import Match, ReadValue
from regard.choosing.tasks.real import digits, folder_tasks
from regard.choosing.tasks.task import Task
from regard.synthetic.criteria import Criteria
from regard.synthetic.lookup import Lookup
from regard.synthetic.task import DATA_SEEDS
from regard.synthetic.views import Views
from regard.synthetic.volumes import Volumes
from regard.text import Text

# Options that all tasks share. Each task lists only the candidates that are informative for it, so that
# `regard choose` without a file takes about a minute.
COMMON: dict[str, Any] = {
    "rates": (3e-3, 1e-2, 3e-2),
    "hidden": (16,),
    "finalists": 3,
    "matters": 0.02,
}
ROWS = (4096, 512, 1024)  # rows to train on, to choose the rate by, to test on


@dataclass(frozen=True)
class Drawn:
    """Draws new data for every seed, so that intervals cover the variation of the task itself too."""

    sampler: Any
    rows: tuple[int, int, int] = ROWS

    def __call__(self, seed: int) -> list[tuple[Tensor, ...]]:
        """The train, validation and test parts of a seed."""
        generator = torch.Generator().manual_seed(DATA_SEEDS + seed)
        return [self.sampler.sample(count, generator) for count in self.rows]


def lookup() -> Task:
    """A task whose query is a noisy copy of a key."""
    task = Lookup(dim=16, keys=8, labels=8)
    return Task(
        "look-up", Text("query and key are alike", "查询与键同类"),
        partial(ReadValue, value_dim=8, outputs=8), Drawn(task), (16, 16), ("A4", "D3", "E5"),
        {**COMMON, "width": 16, "steps": 300, "stabilizers": ("none",),
         "scores": ("scaled_dot", "cosine", "gaussian", "additive")},
        zh="查找",
    )  # fmt: skip


def nonlinear() -> Task:
    """A task whose query holds absolute values only, so no matrix relates it to the key."""
    task = Views(shared=4, query_dim=16, key_dim=16, noise=0.3, shown="folded")
    return Task(
        "non-linear match", Text("no matrix relates query and key", "没有矩阵能把查询与键联系起来"),
        Match, Drawn(task), (16, 16), ("B3", "B4", "B5", "E5"),
        {**COMMON, "width": 16, "steps": 400, "stabilizers": ("none",), "hidden": (16, 64),
         "scores": ("scaled_dot", "cosine", "bilinear", "additive")},
        zh="非线性匹配",
    )  # fmt: skip


def unlike_dims() -> Task:
    """A task with query and key as two views of one latent vector, 48 and 12 numbers wide."""
    task = Views(shared=4, query_dim=48, key_dim=12, noise=0.2)
    return Task(
        "unlike dims", Text("query and key differ in width, a matrix relates them", "查询与键宽度不同，由矩阵相联系"),
        Match, Drawn(task), (48, 12), ("E2", "E3", "E5"),
        {**COMMON, "width": 12, "steps": 300, "stabilizers": ("none",),
         "scores": ("scaled_dot", "bilinear", "low_rank", "additive")},
        zh="维数不同",
    )  # fmt: skip


def hijack() -> Task:
    """A task with keys of very different norms, of which only the directions matter."""
    task = Volumes(latent=8, query_dim=16, key_dim=16, keys=8, spread=2.0)
    return Task(
        "heavy-tailed norms", Text("a few keys are far longer than the others, which means nothing", "少数键远长于其余的键，而长度没有意义"),
        Match, Drawn(task), (16, 16), ("G1", "G2", "C6", "C9"),
        {**COMMON, "width": 16, "steps": 300,
         "scores": ("scaled_dot", "cosine", "additive")},
        zh="重尾的长度",
    )  # fmt: skip


def many_keys() -> Task:
    """A task in which one of 64 keys is right."""
    task = Lookup(dim=16, keys=64, labels=4, noise=0.1)
    return Task(
        "one of many keys", Text("one key among 64 is right", "64 个键里只有一个是对的"),
        partial(ReadValue, value_dim=4, outputs=4), Drawn(task, (2048, 256, 512)), (16, 16),
        ("C8", "A4"),
        {**COMMON, "width": 16, "steps": 300, "batch": 32, "stabilizers": ("none", "temperature"),
         "scores": ("scaled_dot", "cosine", "additive"), "rates": (1e-2, 3e-2)},
        zh="众多键之一",
    )  # fmt: skip


def two_criteria() -> Task:
    """A task whose query asks for two keys, one by each of two criteria."""
    task = Criteria(spaces=2, dim=4, keys=8, labels=4)
    return Task(
        "two criteria", Text("a query asks for two things at once", "一个查询同时问两件事"),
        partial(ReadValue, value_dim=4, outputs=4, answers=2), Drawn(task), (8, 8), ("F1", "F2"),
        {**COMMON, "width": 16, "hidden": (16,), "steps": 400, "stabilizers": ("none",),
         "heads": (1, 2), "scores": ("scaled_dot", "additive")},
        zh="两个条件",
    )  # fmt: skip


MADE: dict[str, Callable[[], Task]] = {
    "look-up": lookup,
    "non-linear match": nonlinear,
    "unlike dims": unlike_dims,
    "heavy-tailed norms": hijack,
    "one of many keys": many_keys,
    "two criteria": two_criteria,
    "digits": digits,
}
# Former names of tasks, which `--tasks` still takes and committed results may hold. "long range" had no
# distance in it: its keys have no order.
RENAMED = {"long range": "one of many keys"}


def all_tasks() -> list[Task]:
    """The tasks of this file, and those of the data folder that `REGARD_DATA` names."""
    return [make() for make in MADE.values()] + folder_tasks()
