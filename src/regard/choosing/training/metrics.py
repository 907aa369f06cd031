"""Metrics, for which higher is better, and the loss that training minimises for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.describe import describe

Measure = Callable[[Tensor, Tensor], Tensor | float]


class Goal(NamedTuple):
    """A metric with its name and its loss."""

    name: str
    metric: Measure
    loss: Measure


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of correct answers, from logits (B, *, n) and target (B, *)."""
    return (output.argmax(-1) == target).double().mean()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The cross entropy of logits (B, *, n) with target classes (B, *)."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def r2(output: Tensor, target: Tensor) -> Tensor:
    """The coefficient of determination: the share of the target's variance that is explained."""
    # In fp64: for a good fit the mean squared error is a small difference of large numbers.
    target = target.double().reshape(output.shape)
    left = (output.double() - target).square().mean()
    return 1 - left / (target - target.mean(0)).square().mean()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error."""
    return F.mse_loss(output, target.reshape(output.shape))


def ndcg(output: Tensor, target: Tensor) -> Tensor:
    """NDCG of the ranking by scores (B, n), for relevances (B, n) of 0 or more.

    Rows without any relevant key have no ideal order and are left out.
    """
    ranks = torch.arange(2, output.shape[-1] + 2, device=output.device, dtype=torch.double).log2()
    gains = target.double()
    found = gains.gather(-1, output.argsort(-1, descending=True)) / ranks
    best = gains.sort(-1, descending=True).values / ranks
    rated = best.sum(-1) > 0
    return (found.sum(-1)[rated] / best.sum(-1)[rated]).mean()


def listwise(output: Tensor, target: Tensor) -> Tensor:
    """The cross entropy between relevances normalised to sum 1 and the softmax of the scores."""
    share = target / target.sum(-1, keepdim=True).clamp(min=1e-12)
    return -(share * output.log_softmax(-1)).sum(-1).mean()


GOALS = {
    "accuracy": Goal("accuracy", accuracy, cross_entropy),
    "r2": Goal("r2", r2, squared_error),
    "ndcg": Goal("ndcg", ndcg, listwise),
}


def goal(metric: str | Measure | None, loss: Measure | None, target: Tensor) -> Goal:
    """The requested metric with its loss; by default accuracy for integer targets, r2 for floats.

    Raises:
        ValueError: the name is unknown, or a user's own metric comes without a loss.
    """
    if metric is None:
        metric = "r2" if target.is_floating_point() else "accuracy"
    if isinstance(metric, str):
        if metric not in GOALS:
            raise ValueError(f"unknown metric {metric!r}: known are {', '.join(GOALS)}")
        found = GOALS[metric]
        return found if loss is None else found._replace(loss=loss)
    if not callable(metric):
        raise TypeError(f"metric must be a name or a function, got {describe(metric)}")
    if loss is None:
        raise ValueError("a metric of your own needs loss=, the function that training minimises")
    return Goal(getattr(metric, "__name__", "metric"), metric, loss)
