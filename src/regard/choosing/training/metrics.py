"""Metrics, for which higher is better, and the loss that training minimises for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.describe import describe

Measure = Callable[[Tensor, Tensor], Tensor | float]


IGNORED = -100  # a target that is no answer, such as padding: the value that torch's losses skip


class Goal(NamedTuple):
    """A metric with its name and its loss."""

    name: str
    metric: Measure
    loss: Measure


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of correct answers, from logits (B, *, n) and target (B, *); `IGNORED` ones are left out."""
    return (output.argmax(-1) == target)[target != IGNORED].double().mean()


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


def mrr(output: Tensor, target: Tensor) -> Tensor:
    """The mean reciprocal rank of the first relevant key, for scores and relevances (B, n).

    Rows without any relevant key are left out.
    """
    best = first_ranks(output, target)
    return best[best > 0].mean()


def first_ranks(output: Tensor, target: Tensor) -> Tensor:
    """One over the rank of the first relevant key of each row (B,); 0 for a row without one."""
    found = (target > 0).gather(-1, output.argsort(-1, descending=True)).double()
    ranks = torch.arange(1, output.shape[-1] + 1, device=output.device, dtype=torch.double)
    return (found / ranks).amax(-1)


def listwise(output: Tensor, target: Tensor) -> Tensor:
    """The cross entropy between relevances normalised to sum 1 and the softmax of the scores."""
    share = target / target.sum(-1, keepdim=True).clamp(min=1e-12)
    return -(share * output.log_softmax(-1)).sum(-1).mean()


GOALS = {
    "accuracy": Goal("accuracy", accuracy, cross_entropy),
    "r2": Goal("r2", r2, squared_error),
    "ndcg": Goal("ndcg", ndcg, listwise),
    "mrr": Goal("mrr", mrr, listwise),
}


class RowSums(NamedTuple):
    """A metric as a function of sums over rows: on resampled rows it costs no second look at outputs.

    Attributes:
        rows: from output and target to the terms of each row (B, c), in fp64.
        whole: from sums of terms (*, c) to the metric (*).
        bounded: each row adds a number from 0 to 1, so one row can change the metric by 1/B.
    """

    rows: Callable[[Tensor, Tensor], Tensor]
    whole: Callable[[Tensor], Tensor]
    bounded: bool


def accuracy_rows(output: Tensor, target: Tensor) -> Tensor:
    """Correct answers and answers of each row."""
    asked = target != IGNORED
    right = (output.argmax(-1) == target) & asked
    return torch.stack([x.reshape(len(x), -1).sum(1) for x in (right, asked)], -1).double()


def ndcg_rows(output: Tensor, target: Tensor) -> Tensor:
    """The NDCG of each row, and whether it has any; 0 and 0 for a row without a relevant key."""
    rated = (target > 0).any(-1)
    ranks = torch.arange(2, output.shape[-1] + 2, device=output.device, dtype=torch.double).log2()
    gains = target.double()
    found = (gains.gather(-1, output.argsort(-1, descending=True)) / ranks).sum(-1)
    best = (gains.sort(-1, descending=True).values / ranks).sum(-1)
    return torch.stack([torch.where(rated, found / best, 0.0), rated.double()], -1)


def mrr_rows(output: Tensor, target: Tensor) -> Tensor:
    """The reciprocal rank of each row, and whether it has any."""
    found = first_ranks(output, target)
    return torch.stack([found, (found > 0).double()], -1)


def r2_rows(output: Tensor, target: Tensor) -> Tensor:
    """Squared error, 1, squared target and the targets themselves, of each row."""
    target = target.double().reshape(output.shape)
    # Around the mean of all rows: the variance would else be a small difference of large numbers.
    target, error = target - target.mean(0), output.double() - target
    target, error = (x.reshape(len(x), -1) for x in (target, error))
    ones = torch.ones(len(target), device=target.device, dtype=torch.double)
    terms = torch.stack([error.square().sum(1), ones, target.square().sum(1)], -1)
    return torch.cat([terms, target], -1)


def r2_whole(sums: Tensor) -> Tensor:
    """R squared from the sums of `r2_rows`."""
    error, count, square, means = sums[..., 0], sums[..., 1], sums[..., 2], sums[..., 3:]
    return 1 - error / (square - means.square().sum(-1) / count)


def share(sums: Tensor) -> Tensor:
    """The first sum over the second."""
    return sums[..., 0] / sums[..., 1]


ROW_SUMS: dict[Measure, RowSums] = {
    accuracy: RowSums(accuracy_rows, share, True),
    ndcg: RowSums(ndcg_rows, share, True),
    mrr: RowSums(mrr_rows, share, True),
    r2: RowSums(r2_rows, r2_whole, False),
}


def extras_of(metric: Measure, output: Tensor, target: Tensor, picks_key: bool) -> dict[str, float]:
    """Further metrics of a ranking of keys, by name; empty for any other task.

    Args:
        metric: the metric that is compared, which is left out.
        output: scores (B, n).
        target: relevances (B, n), or the right key (B,).
        picks_key: the classes of an integer target are the keys.
    """
    if output.ndim != 2 or not (metric in (ndcg, mrr) or (metric is accuracy and picks_key)):
        return {}
    if metric is accuracy:
        target = torch.nn.functional.one_hot(target, output.shape[-1])
    rated = (target > 0).any(-1)
    if not bool(rated.any()):
        return {}
    output, target = output[rated], target[rated]
    top = target.gather(-1, output.argmax(-1, keepdim=True)) > 0
    found = {"ndcg": ndcg(output, target), "mrr": mrr(output, target)}
    if metric is accuracy:
        return {"mrr": float(found["mrr"])}
    del found["ndcg" if metric is ndcg else "mrr"]
    return {name: float(x) for name, x in (found | {"accuracy": top.double().mean()}).items()}


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
