"""Any task with its inputs louder or softer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.claims.tools.learning import Choosing, Task


@dataclass(frozen=True)
class Loud(Choosing):
    """A choosing task whose inputs are all multiplied by a factor. Target as the task's."""

    task: Task
    factor: float

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """See the class."""
        *inputs, target = self.task.sample(count, generator)
        return *(x * self.factor for x in inputs), target
