"""The recipe as the commands see it."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.recipes.anomaly.comparison import arguments, comparison
from regard.recipes.anomaly.data import SERIES_SETS, load
from regard.recipes.anomaly.detector import AnomalyDetector
from regard.recipes.anomaly.drawing import show
from regard.recipes.estimator import RecipeError
from regard.recipes.kit import Kit

if TYPE_CHECKING:
    from collections.abc import Sequence

MISSING = ("", "nan", "na", "null")  # words for a value that is not there


def read(lines: Sequence[str]) -> np.ndarray:
    """The points (T, C) of lines: a number or several with commas between, after a time or not; NaN for gaps.

    A first line without any number is a header. Times are ISO 8601 and have to ascend.

    Raises:
        RecipeError: a line is no point, has another number of channels, or its time is not after that before.
    """
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    rows = [(number, row) for number, row in enumerate(cells, 1) if any(row)]
    if rows and not any(is_number(cell) for cell in rows[0][1]):
        rows = rows[1:] if all(time_of(cell) is None for cell in rows[0][1]) else rows
    if not rows:
        raise RecipeError("the input is empty: give a series, one point per line")
    if time_of(rows[0][1][0]) is not None:
        check_times(rows)
        rows = [(number, row[1:]) for number, row in rows]
    for number, row in rows:
        if len(row) != len(rows[0][1]) or not row:
            raise RecipeError(
                f"line {number} has {len(row)} numbers, line {rows[0][0]} has {len(rows[0][1])}: give as many in each"
            )
        for cell in row:
            if not (is_number(cell) or cell.lower() in MISSING):
                raise RecipeError(f"line {number}: {cell!r} is no number")
    return np.array([[value_of(cell) for cell in row] for _, row in rows])


def is_number(cell: str) -> bool:
    """Whether it is a number; NaN is none."""
    return not math.isnan(value_of(cell))


def value_of(cell: str) -> float:
    """The number, or NaN."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def time_of(cell: str) -> datetime | None:
    """The time that an ISO 8601 text is; None for a number or another text."""
    if is_number(cell):
        return None
    try:
        return datetime.fromisoformat(cell)
    except ValueError:
        return None


def check_times(rows: list[tuple[int, list[str]]]) -> None:
    """Refuse times that are unsorted, doubled, or missing in a line: the order of the points would be a guess."""
    before: datetime | None = None
    for number, row in rows:
        now = time_of(row[0])
        if now is None:
            raise RecipeError(f"line {number}: {row[0]!r} is no time, as the lines before have")
        try:
            late = before is not None and now <= before
        except TypeError:
            raise RecipeError(
                f"line {number}: {row[0]!r} has a time zone and others have none, or the reverse"
            ) from None
        if late:
            what = "the same time as" if now == before else "an earlier time than"
            raise RecipeError(
                f"line {number} has {what} the line before ({row[0]}): sort the lines by time and join those of one time"
            )
        before = now


def write(x: np.ndarray, predicted: Any) -> list[str]:
    """A line for each point: its number from 0, a tab, and 1 for an alarm."""
    return [f"{number}\t{int(alarm)}" for number, alarm in enumerate(predicted)]


KIT = Kit(
    name="anomaly",
    estimator=AnomalyDetector,
    sets=SERIES_SETS,
    arguments=arguments,
    load=load,
    read=read,
    write=write,
    show=show,
    comparison=comparison,
)
