"""Planted anomalies: a spike, a level shift or a change of frequency added to a series at a known place.

Labels that nobody has to guess, for series that come without any: to choose settings by, and to show what a
detector can see. A set with planted anomalies says so in its title.

Shape legend: T points, C channels.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Anomaly = Literal["spike", "shift", "frequency"]
ANOMALIES: tuple[Anomaly, ...] = ("spike", "shift", "frequency")
SPIKE = 3  # points


def pattern(kind: Anomaly, length: int, first: int, span: int) -> np.ndarray:
    """What an anomaly of amplitude 1 adds to a series (T,).

    Args:
        kind: "spike" for three points, "shift" for another level, or "frequency" for a faster wave.
        length: T.
        first: the point where it begins.
        span: points that it lasts; a spike lasts three.
    """
    found, places = np.zeros(length), np.arange(length)
    if kind == "spike":
        found[first : first + SPIKE] = (0.5, 1.0, 0.5)[: max(length - first, 0)]
    elif kind == "shift":
        found[first : first + span] = 1.0
    else:
        inside = (places >= first) & (places < first + span)
        found[inside] = np.sin(2 * np.pi * 6 * (places[inside] - first) / span)
    return found


def planted(
    values: np.ndarray, kind: Anomaly, amplitude: float, span: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The series (T, C) with one anomaly at a random place, and its labels (T,).

    Args:
        values: the series.
        kind: of the anomaly.
        amplitude: in deviations of each channel.
        span: points that it lasts; a spike lasts three.
        seed: of the place; the anomaly stays away from both ends by its length.
    """
    lasting = SPIKE if kind == "spike" else span
    first = int(np.random.default_rng(seed).integers(span, len(values) - 2 * span))
    added = pattern(kind, len(values), first, span)
    labels = np.zeros(len(values), np.int64)
    labels[first : first + lasting] = 1
    return values + amplitude * values.std(0) * added[:, None], labels
