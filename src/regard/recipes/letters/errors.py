"""Word and phone error rates.

A word is right if its sounds are those of any way to say it that is listed; its phone errors are those to the nearest
way. Shape legend: N words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def error_statistics(
    found: Sequence[Sequence[str]], ways: Sequence[Sequence[Sequence[str]]]
) -> np.ndarray:
    """For each word (N, 3): right (1) or wrong (0), phone errors, and how many sounds the nearest way has.

    Args:
        found: predicted sounds of each word.
        ways: every right way to say it; none counts as the way without a sound.
    """
    rows = np.zeros((len(found), 3))
    for number, (one, right) in enumerate(zip(found, ways, strict=True)):
        errors, length = min((edit_distance(one, way), len(way)) for way in (right or ((),)))
        rows[number] = errors == 0, errors, length
    return rows


def phone_error_rate(statistics: np.ndarray) -> float:
    """Phone errors of all words for each 100 sounds; 0 if there are neither."""
    _, errors, sounds = statistics.sum(0).tolist()
    return 100 * errors / max(sounds, 1)


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that turn one row of symbols into the other."""
    if one == other:
        return 0
    before = list(range(len(other) + 1))
    for number, symbol in enumerate(one, 1):
        now = [number]
        for place, right in enumerate(other):
            now.append(
                min(before[place] + (symbol != right), before[place + 1] + 1, now[place] + 1)
            )
        before = now
    return before[-1]
