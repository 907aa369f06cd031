"""The quality of guessing on the test part: a candidate that is no better has learned nothing."""

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
        value: expected quality.
        error: its standard error for the number of rows that were tested.
    """

    value: float
    error: float


def chance_of(
    metric: str, build: Callable[..., Any], batches: list[Batch], draws: int
) -> Chance | None:
    """The quality of guessing under a metric; None for a user's own metric.

    Args:
        metric: name of the metric.
        build: builds the model from a score.
        batches: the test batches.
        draws: number of independent test sets: one, or one for each seed.
    """
    target = torch.cat([batch[-1] for batch in batches])
    # Guessing the mean explains none of the variance.
    if metric == "r2":
        return Chance(0.0, 0.0)
    if metric == "ndcg":
        return guessed_order(target, draws)
    if metric != "accuracy":
        return None
    # Standard error of a share over the tested answers: sqrt(p (1 - p) / n).
    share = 1 / batches[0][1].shape[-2] if which_key(build) else largest_classes(target)
    return Chance(share, (share * (1 - share) / (target.numel() * draws)) ** 0.5)


def which_key(build: Callable[..., Any]) -> bool:
    """Whether the model picks a key by its score alone.

    A score does not see the position of a key, so it cannot learn that some positions are more often
    right; guessing is then uniform over the keys.
    """
    from regard.choosing.tasks.models import Match

    return (build.func if isinstance(build, partial) else build) is Match


def largest_classes(target: Tensor) -> float:
    """The share of the most frequent class, averaged over the answers of a row: target (B, *)."""
    columns = (target.flatten(1) if target.ndim > 1 else target.unsqueeze(1)).long()
    largest = columns.mode(dim=0).values
    return float((columns == largest).double().mean())


def guessed_order(target: Tensor, draws: int, orders: int = 64) -> Chance:
    """NDCG of relevances (B, n) in random order, averaged over several orders."""
    generator = torch.Generator().manual_seed(0)
    gains = target.cpu()
    found = torch.stack(
        [ndcg(torch.rand(gains.shape, generator=generator), gains) for _ in range(orders)]
    )
    return Chance(float(found.mean()), float(found.std()) / draws**0.5)
