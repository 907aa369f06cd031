"""NAB, the Numenta Anomaly Benchmark 1.1: 58 series of one channel with windows around known anomalies.

Nothing is scored in the first 15% of a series, as in NAB. Six series have windows that begin there: the part of a
window that is inside is not judged either. One series is not in the order of its times, and is sorted by them; where
two points have one time, which eight series have, both stay, in the order of the file.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from importlib.resources import files
from pathlib import Path

import numpy as np

from regard.recipes.anomaly.series import UNJUDGED
from regard.recipes.datasets import Part
from regard.recipes.sources import (
    LARGEST,
    DataError,
    PublicSet,
    RemoteFile,
    check,
    find_folder,
    obtained,
    read_file,
    unpacked,
)

LICENCE = "MIT (Numenta)"
WINDOWS = "labels/combined_windows.json"
PROBATION = 0.15  # share of each series, at its start
KNOWN = json.loads(files("regard.recipes.anomaly").joinpath("nab_files.json").read_text())
ADDRESS = f"https://raw.githubusercontent.com/numenta/NAB/{KNOWN['commit']}/"
FILES = PublicSet(
    "nab",
    tuple(RemoteFile(name, ADDRESS + name, sha) for name, sha in KNOWN["sha256"].items()),
    LICENCE,
)
# The same files packed into one, as a folder of data may have them; each is checked after unpacking.
PACKED = PublicSet("nab", (RemoteFile("nab.tar.gz", "", ""),), LICENCE)
# The series by which settings are chosen: those of NAB in the tuning list of TSB-AD, found by their first anomaly.
# Three series fit the fourth, which all begin theirs at point 2,787; the first of them stands for it.
TUNING = (
    "data/artificialWithAnomaly/art_daily_jumpsup.csv",
    "data/realAWSCloudwatch/ec2_network_in_257a54.csv",
    "data/realAdExchange/exchange-2_cpm_results.csv",
    "data/realTraffic/occupancy_t4013.csv",
    "data/realTweets/Twitter_volume_CVS.csv",
)


def nab(data: str | os.PathLike[str] | None, download: bool) -> tuple[Part, Part, Part]:
    """Series of the tuning list and those without anomalies to train on, the tuning list to choose by, the rest.

    Labels are used to choose settings and to judge, and never to train.
    """
    content = contents(data, download)
    windows = json.loads(content[WINDOWS])
    every = {
        name: series_of(content[name], windows[name.removeprefix("data/")])
        for name in sorted(content)
        if name != WINDOWS
    }
    calm = [one for name, one in every.items() if not windows[name.removeprefix("data/")]]
    tuning = [every[name] for name in TUNING]
    rest = [one for name, one in every.items() if (one[1] == 1).any() and name not in TUNING]
    return part(calm + tuning), part(tuning), part(rest)


def part(rows: list[tuple[np.ndarray, np.ndarray]]) -> Part:
    """Series and their labels."""
    return Part([values for values, _ in rows], [labels for _, labels in rows])


def series_of(content: bytes, windows: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Values (T, 1) and labels (T,) of one file: 1 inside a window, -1 in the probation."""
    lines = content.decode().splitlines()[1:]
    stamps, numbers = zip(*(line.split(",") for line in lines if line), strict=True)
    times = np.array(stamps, dtype="datetime64[us]")
    order = np.argsort(times, kind="stable")
    times, values = times[order], np.array(numbers, dtype=np.float64)[order]
    labels = np.zeros(len(values), np.int64)
    for first, last in windows:
        labels[(times >= np.datetime64(first)) & (times <= np.datetime64(last))] = 1
    labels[: int(PROBATION * len(labels))] = UNJUDGED
    return values[:, None], labels


def contents(data: str | os.PathLike[str] | None, download: bool) -> dict[str, bytes]:
    """The checked content of every file, from a folder, from one that has them packed, or from a download.

    Raises:
        DataError: the set is nowhere, or damaged.
    """
    try:
        folder = find_folder(PACKED, data)
    except DataError:  # a folder is named that does not have it packed: it may have the files
        folder = None
    if folder is not None:
        return unpacked_files(folder / PACKED.files[0].name)
    place = obtained(FILES, data, download)
    return {one.name: read_file(FILES, place, one.name) for one in FILES.files}


def unpacked_files(path: Path) -> dict[str, bytes]:
    """The files of the packed set, each with its checksum checked.

    Raises:
        DataError: one is missing or changed, or the archive is damaged.
    """
    content = unpacked(path.read_bytes(), path.name)
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for one in FILES.files:
                file = archive.extractfile(one.name)
                if file is None:
                    raise KeyError(one.name)
                found[one.name] = file.read(LARGEST)
                check(found[one.name], one, f"{one.name} in {path}")
    except KeyError as error:
        raise DataError(
            f"{path} lacks {error.args[0]}: pack the folders data and labels of NAB"
        ) from None
    except tarfile.TarError as error:
        raise DataError(f"{path} is no whole archive: {error}") from None
    return found
