"""What tests of resuming share: a training that ends in the middle, and the comparison of weights to the bit."""

from __future__ import annotations

from collections.abc import Callable

import torch

from regard.recipes.estimator import Recipe


class Killed(Exception):
    """Stands for a kill in this process."""


class KillAtStep:
    """Progress that ends a training after so many steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def start(self, steps: int, done: int) -> None:
        pass

    def step(self, loss: Callable[[], float]) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def validated(self, epoch: int, quality: float, best: float) -> None:
        pass


def same_weights(one: Recipe, other: Recipe) -> bool:
    """Whether two trained models are the same to the bit."""
    ours, theirs = one.model_.state_dict(), other.model_.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
