"""What guessing gives on the data that results are of: below it nothing was learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.choosing.training.data import Batch
from regard.choosing.training.metrics import ndcg


class Chance(NamedTuple):
    """The quality of guessing.

    Attributes:
        value: to be expected of it.
        error: the standard error of that, on as many rows as were tested.
    """

    value: float
    error: float


def chance_of(
    metric: str, build: Callable[..., Any], batches: list[Batch], draws: int
) -> Chance | None:
    """Of a metric by its name; None for one of the user's own.

    Args:
        metric: its name.
        build: the model around a score.
        batches: that results are of.
        draws: how many such sets of rows were tested: one, or one for each seed.
    """
    target = torch.cat([batch[-1] for batch in batches])
    if metric == "r2":
        return Chance(0.0, 0.0)
    if metric == "ndcg":
        return guessed_order(target, draws)
    if metric != "accuracy":
        return None
    share = 1 / batches[0][1].shape[-2] if which_key(build) else largest_classes(target)
    return Chance(share, (share * (1 - share) / (target.numel() * draws)) ** 0.5)


def which_key(build: Callable[..., Any]) -> bool:
    """Whether the scores are the answer: no score knows the place of a key, however classes are spread."""
    from regard.choosing.tasks.models import Match

    return (build.func if isinstance(build, partial) else build) is Match


def largest_classes(target: Tensor) -> float:
    """The share of the largest class, the mean over the answers of a row: target (B, *)."""
    columns = (target.flatten(1) if target.ndim > 1 else target.unsqueeze(1)).long()
    largest = columns.mode(dim=0).values
    return float((columns == largest).double().mean())


def guessed_order(target: Tensor, draws: int, orders: int = 64) -> Chance:
    """NDCG of relevances (B, n) in an order at random, the mean of several such orders."""
    generator = torch.Generator().manual_seed(0)
    gains = target.cpu()
    found = torch.stack(
        [ndcg(torch.rand(gains.shape, generator=generator), gains) for _ in range(orders)]
    )
    return Chance(float(found.mean()), float(found.std()) / draws**0.5)
