"""Candidates timed in turns, so that changes in a machine's speed reach all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from regard.measuring.clock import clock

Item = TypeVar("Item")
CPU = torch.device("cpu")
WARM_UPS = 3


def there_and_back(items: Sequence[Item]) -> list[Item]:
    """A B C ... C B A: one round, in which each item comes twice.

    The mean place of every item in the round is the same. A drift of the clock rate cancels, and no
    candidate always finds the caches and the heap as the same other one left them.
    """
    return [*items, *reversed(items)]


def compare(
    ours: Callable[[], object], other: Callable[[], object], rounds: int, calls: int = 1
) -> dict[str, float]:
    """The median of ours / other over rounds A B B A, its quartiles, and the median of each.

    Wall-clock time on the CPU; a call that uses another device has to wait for it. A sample is of
    `calls` calls.
    """
    for _ in range(WARM_UPS):
        ours()
        other()
    pairs = []
    for _ in range(rounds):
        a, b, second_b, second_a = (clock(run, calls, CPU) for run in there_and_back([ours, other]))
        pairs.append(((a + second_a) / 2, (b + second_b) / 2))
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    return {
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "ours_ms": 1e3 * statistics.median(a for a, _ in pairs),
        "other_ms": 1e3 * statistics.median(b for _, b in pairs),
        "difference_us": 1e6 * statistics.median(a - b for a, b in pairs),
    }
