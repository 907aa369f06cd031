"""Timing candidates in alternation, so that changes in the machine's speed affect all of them equally."""

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

    Every item has the same mean position in the round, so a linear drift of the clock rate cancels. And no
    candidate always runs after the same other one, whose state of caches and heap it would inherit.
    """
    return [*items, *reversed(items)]


def compare(
    ours: Callable[[], object], other: Callable[[], object], rounds: int, calls: int = 1
) -> dict[str, float]:
    """The median of `ours / other` over rounds A B B A with its quartiles, and the median time of each.

    Times are wall-clock times on the CPU; a call that uses another device has to synchronize with it
    itself. Each sample is the mean of `calls` calls.
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
