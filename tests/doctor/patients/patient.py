"""What a patient is: a small model, what it is given, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.doctor.watch import Doctor, watch


class Patient:
    """A model with one disease or none; the docstring of each tells the mechanism.

    Attributes:
        disease: its name, None for a healthy one.
        sites: where it is: all of them, and no other place is sick.
        heads: which heads of each, None for all.
        steps: how many are watched.
        rate: of learning; 0 runs forward and backward alone.
        needs: a package that has to be there.
        every: how many steps apart rows are sampled.
        slow: whether it takes more than a second or two.
    """

    disease: ClassVar[str | None] = None
    sites: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[tuple[int, ...] | None] = None
    steps: ClassVar[int] = 3
    rate: ClassVar[float] = 0.0
    needs: ClassVar[str | None] = None
    every: ClassVar[int] = 1
    slow: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """As tests show it."""
        return type(self).__name__

    def build(self) -> nn.Module:
        """The model; random numbers are seeded before."""
        raise NotImplementedError

    def batch(self, step: int) -> tuple | dict[str, Any]:
        """What the model is given in a step, from 0 on."""
        raise NotImplementedError

    def loss(self, output: Any, step: int) -> Tensor:
        """What is differentiated."""
        output = output if isinstance(output, Tensor) else output[0]
        return output.float().square().mean()

    def run(self, model: nn.Module) -> None:
        """The steps of the patient, with learning where it learns."""
        optimizer = torch.optim.Adam(model.parameters(), self.rate) if self.rate else None
        for step in range(self.steps):
            model.zero_grad()
            self.loss(call(model, self.batch(step)), step).backward()
            if optimizer is not None:
                optimizer.step()

    def examined(self, level: str = "sampled", **options: Any) -> tuple[nn.Module, Doctor]:
        """The model, built from a seed, and a doctor that has watched its steps."""
        torch.manual_seed(0)
        model = self.build()
        with watch(model, level, **{"every": self.every, **options}) as doctor:
            self.run(model)
        return model, doctor


def call(model: nn.Module, batch: tuple | Mapping[str, Any]) -> Any:
    """The model on a batch."""
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


def seeded(step: int) -> torch.Generator:
    """Random numbers of a step."""
    return torch.Generator().manual_seed(100 + step)


def tokens(step: int, words: int, shape: tuple[int, ...], low: int = 0) -> Tensor:
    """Random words."""
    return torch.randint(low, words, shape, generator=seeded(step))


def vectors(step: int, *shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=seeded(step))
