"""Any task with its inputs louder or softer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.synthetic.task import ClassificationTask, SyntheticTask


@dataclass(frozen=True)
class Loud(ClassificationTask):
    """A choosing task whose inputs are all multiplied by a factor. Target as the task's."""

    task: SyntheticTask
    factor: float

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """See the class."""
        *inputs, target = self.task.sample(count, generator)
        return *(x * self.factor for x in inputs), target
