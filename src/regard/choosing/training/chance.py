"""The quality of guessing on the test part: a candidate that is no better has learned nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.choosing.training.data import Batch
from regard.choosing.training.metrics import GOALS, IGNORED, Measure

MOST_ANSWERS = 8  # answers of a row of which each has a most frequent class of its own


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
    seen = seen_keys(batches)
    if metric in ("ndcg", "mrr"):
        return guessed_order(GOALS[metric].metric, target, draws, seen)
    if metric != "accuracy":
        return None
    # Standard error of a share over the tested answers: sqrt(p (1 - p) / n).
    if not which_key(build):
        share = largest_classes(target)
    elif seen is None:
        share = 1 / batches[0][1].shape[-2]
    else:
        share = float((1 / seen.sum(-1).clamp(min=1)).mean())
    count = int((target != IGNORED).sum()) * draws
    return Chance(share, (share * (1 - share) / max(count, 1)) ** 0.5)


def seen_keys(batches: list[Batch]) -> Tensor | None:
    """Which keys of each row are real (B, n), if an input says so."""
    _, *more = batches[0][:-1]
    place = next((i for i, x in enumerate(more, 1) if x.dtype == torch.bool), None)
    return None if place is None else torch.cat([batch[place] for batch in batches]).cpu()


def which_key(build: Callable[..., Any]) -> bool:
    """Whether the model picks a key by its score alone.

    A score does not see the position of a key, so it cannot learn that some positions are more often
    right; guessing is then uniform over the keys.
    """
    from regard.choosing.tasks.models import Match

    return (build.func if isinstance(build, partial) else build) is Match


def largest_classes(target: Tensor) -> float:
    """The share of the most frequent class, averaged over the answers of a row: target (B, *).

    Of tags, which are many and may be padded, it is the most frequent class of all positions.
    """
    columns = (target.flatten(1) if target.ndim > 1 else target.unsqueeze(1)).long()
    if columns.shape[1] > MOST_ANSWERS or bool((columns == IGNORED).any()):
        counts = columns[columns != IGNORED].bincount()
        return float(counts.max()) / max(int(counts.sum()), 1)
    largest = columns.mode(dim=0).values
    return float((columns == largest).double().mean())


def guessed_order(
    metric: Measure, target: Tensor, draws: int, seen: Tensor | None = None, orders: int = 64
) -> Chance:
    """NDCG or MRR of relevances (B, n) in random order, averaged over several orders; hidden keys come last."""
    generator = torch.Generator().manual_seed(0)
    gains = target.cpu()
    last = torch.zeros(()) if seen is None else (~seen).float()
    found = torch.stack(
        [
            torch.as_tensor(metric(torch.rand(gains.shape, generator=generator) - last, gains))
            for _ in range(orders)
        ]
    )
    return Chance(float(found.mean()), float(found.std()) / draws**0.5)
