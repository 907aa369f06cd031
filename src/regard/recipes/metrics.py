"""`Metric`: a quality that is computed from numbers kept for each test row.

A comparison resamples test rows to say how far a result would differ on other rows. Metrics of a whole corpus,
such as BLEU or ROC-AUC, are no mean over rows, so that each metric keeps a few numbers a row (its statistics)
and computes its value from any selection of them.

Shape legend: N rows, K statistics of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from regard.text import Text


@dataclass(frozen=True)
class Metric:
    """A quality of predictions.

    Attributes:
        name: short and unique, for files: "accuracy".
        title: for tables: "accuracy, %".
        value: from the statistics of some rows (N, K) to the quality; any number of rows from 1 on.
        greater: whether a greater value is better.
        digits: decimals in tables.
        bounds: the least and the greatest possible value; intervals end there.
    """

    name: str
    title: Text
    value: Callable[[np.ndarray], float]
    greater: bool = True
    digits: int = 1
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def gain(self, value: float) -> float:
        """The value with its sign turned if smaller is better, so that greater is always better."""
        return value if self.greater else -value

    def widest(self) -> tuple[float, float]:
        """The least and the greatest possible difference of two values."""
        least, greatest = self.bounds
        return least - greatest, greatest - least

    def show(self, value: float) -> str:
        """The value for a table."""
        return f"{value:.{self.digits}f}"


def percent_right(statistics: np.ndarray) -> float:
    """The share of rows whose only statistic, right (1) or wrong (0), is right, in percent."""
    return 100 * float(statistics[:, 0].mean())


def percent_wrong(statistics: np.ndarray) -> float:
    """The share of rows whose only statistic, right (1) or wrong (0), is wrong, in percent."""
    return 100 - percent_right(statistics)


def root_mean_square(statistics: np.ndarray) -> float:
    """The root of the mean of the first statistic, a squared error."""
    return float(np.sqrt(statistics[:, 0].mean()))


PERCENT = (0.0, 100.0)
ACCURACY = Metric("accuracy", Text("accuracy, %", "准确率，%"), percent_right, bounds=PERCENT)
WORD_ERRORS = Metric(
    "word error rate",
    Text("word error rate, %", "词错误率，%"),
    percent_wrong,
    greater=False,
    bounds=PERCENT,
)
RMSE = Metric(
    "rmse",
    Text("RMSE", "均方根误差"),
    root_mean_square,
    greater=False,
    digits=3,
    bounds=(0.0, math.inf),
)
