"""Any classification task with its inputs scaled up or down."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.synthetic.task import ClassificationTask, SyntheticTask


@dataclass(frozen=True)
class Loud(ClassificationTask):
    """A classification task with all inputs of `task` multiplied by `factor`; the target is unchanged."""

    task: SyntheticTask
    factor: float

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw examples of `task` and scale their inputs."""
        *inputs, target = self.task.sample(count, generator)
        return *(x * self.factor for x in inputs), target
