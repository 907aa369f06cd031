"""The sets: a series of the UCR anomaly archive and an accelerometer inside aeon, and NAB from a folder or by download.

Kept for training are series or parts without a known anomaly; nothing is trained on labels. `kdd` has one labelled
anomaly, at the end of a test of its own, so that settings are chosen on anomalies planted in its training part.
`daphnet` comes without a single label (aeon 1.6 has only an excerpt of it), so that all of its anomalies are planted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from regard.recipes.anomaly.nab import LICENCE, nab
from regard.recipes.anomaly.planted import ANOMALIES, planted
from regard.recipes.datasets import Dataset, Origin, Part
from regard.recipes.estimator import RecipeError
from regard.recipes.sources import DataError
from regard.text import Text

EMBEDDED = "kdd"
AMPLITUDE = 1.5  # deviations; of planted anomalies
SPAN = 64  # points that a planted shift or change of frequency lasts
COPIES = 4  # of each kind of anomaly, at different places
PIECE = 1408  # points of a piece of the accelerometer: a fifth of it
Parts = tuple[Part, Part, Part]


class SeriesSet(NamedTuple):
    """A set: its title, origin and licence, and how its parts are made."""

    title: Text
    origin: Origin
    licence: str
    parts: Callable[[str | os.PathLike[str] | None, bool], Parts]


def kdd(data: str | os.PathLike[str] | None, download: bool) -> Parts:
    """Blood pressure with one bleeding: its first part for training, planted anomalies in it for validation."""
    train, _ = packaged("KDD-TSAD_135", "135_UCR_Anomaly_InternalBleeding16_TRAIN.csv")
    test, labels = packaged("KDD-TSAD_135", "135_UCR_Anomaly_InternalBleeding16_TEST.csv")
    return (
        Part([train], [np.zeros(len(train), np.int64)]),
        with_planted([train], 0),
        Part([test], [labels]),
    )


def daphnet(data: str | os.PathLike[str] | None, download: bool) -> Parts:
    """Nine channels of a walking person in five pieces: two for training, planted anomalies in the others."""
    values, _ = packaged("Daphnet_S06R02E0", "S06R02E0.csv")
    pieces = [values[n : n + PIECE] for n in range(0, len(values), PIECE)]
    train, held, rest = pieces[:2], pieces[2:3], pieces[3:]
    none = [np.zeros(len(one), np.int64) for one in train]
    return Part(train, none), with_planted(held, 0), with_planted(rest, 1000)


SETS: dict[str, SeriesSet] = {
    EMBEDDED: SeriesSet(
        Text(
            "KDD-TSAD 135: blood pressure, with one bleeding in 7,501 points",
            "KDD-TSAD 135：血压，7,501 个点中有一次出血",
        ),
        "package",
        "UCR Anomaly Archive (KDD Cup 2021), inside aeon (BSD)",
        kdd,
    ),
    "daphnet": SeriesSet(
        Text(
            "Daphnet: nine channels of a walking person, with planted anomalies (generated)",
            "Daphnet：行走者的九个通道，异常为人工植入（生成）",
        ),
        "generated",
        "CC BY 4.0 (UCI, Daphnet Freezing of Gait), inside aeon (BSD)",
        daphnet,
    ),
    "nab": SeriesSet(
        Text(
            "NAB: servers, traffic, advertising and tweets; 52 series with known anomalies",
            "NAB：服务器、交通、广告与推文；52 条有已知异常的序列",
        ),
        "public",
        LICENCE,
        nab,
    ),
}
SERIES_SETS = tuple(SETS)


def load(
    name: str = EMBEDDED,
    data: str | os.PathLike[str] | None = None,
    download: bool = False,
    limit: int | None = None,
) -> Dataset:
    """The set of that name; a row is a series (T, C) with labels (T,) of 0, 1, and -1 where it is not judged.

    Args:
        name: one of `SERIES_SETS`.
        data: the folder with the public set; None for `REGARD_DATA`.
        download: get the public set from its public address if no folder has it.
        limit: keep that many series for training.

    Raises:
        DataError: the set is not there, or damaged.
        RecipeError: there is no set of that name.
    """
    if name not in SETS:
        raise RecipeError(f"there is no set {name!r} of series; the sets are {', '.join(SETS)}")
    known = SETS[name]
    train, validation, test = known.parts(data, download)
    if limit is not None:
        train = Part(train.x[:limit], train.y[:limit])
    return Dataset(name, known.title, known.origin, train, validation, test, known.licence)


def with_planted(series: list[np.ndarray], seed: int) -> Part:
    """Copies of the series, each with one planted anomaly: of every kind, at `COPIES` places."""
    found = [
        planted(values, kind, AMPLITUDE, SPAN, seed + COPIES * number + copy)
        for values in series
        for number, kind in enumerate(ANOMALIES)
        for copy in range(COPIES)
    ]
    return Part([values for values, _ in found], [labels for _, labels in found])


def packaged(folder: str, file: str) -> tuple[np.ndarray, np.ndarray]:
    """Values (T, C) and labels (T,) of a file that comes with aeon: a time, channels and a label in each row.

    Raises:
        DataError: this release of aeon lacks it.
    """
    try:
        place = files("aeon").joinpath("datasets", "data", folder, file)
        with place.open("r") as lines:
            rows = np.genfromtxt(lines, delimiter=",", skip_header=1, dtype=np.float64)
    except (OSError, ModuleNotFoundError) as error:
        raise DataError(
            f"this aeon has no {file} ({error}); install one that has: pip install 'aeon>=1.6,<1.7'"
        ) from None
    return rows[:, 1:-1], rows[:, -1].astype(np.int64)
