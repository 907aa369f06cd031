"""The sets: series that come with aeon and tslearn, seven sets of the UCR archive, and twelve of them as one.

Training and test part are those of the archive. It has no validation part, and training parts are as small as 24
series: what is chosen is chosen by leaving one training series out (`LeftOut`), as the archive's own DTW with a chosen
window does.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.recipes.datasets import Dataset, Origin, Part
from regard.recipes.estimator import RecipeError
from regard.recipes.sources import DataError, PublicSet, RemoteFile, obtained, read_file
from regard.text import Text

TSLEARN = (
    "https://raw.githubusercontent.com/tslearn-team/tslearn/"
    "46586963d332c908ca4a4dc9457e231bb275e703/docs/datasets/"
)
LICENCE = "UCR and UEA archive: free for research, cite Dau et al. (2018)"
EMBEDDED = "gunpoint"
ARCHIVE = "ucr"  # the sets of `ARCHIVED` as one comparison
MARK = "/"  # between the name of a set and a class, in the archive


class SeriesSet(NamedTuple):
    """One set: its name in the archive, its title, and where it comes from ("aeon", "tslearn" or "public")."""

    file: str
    title: Text
    source: str


SERIES_SETS: dict[str, SeriesSet] = {
    EMBEDDED: SeriesSet("GunPoint", Text("GunPoint: drawing a gun or pointing", "GunPoint：拔枪还是指向"), "aeon"),
    "arrowhead": SeriesSet("ArrowHead", Text("ArrowHead: outlines of arrowheads", "ArrowHead：箭头轮廓"), "aeon"),
    "basicmotions": SeriesSet("BasicMotions", Text("BasicMotions: 4 activities, 6 channels", "BasicMotions：4 种活动，6 个通道"), "aeon"),
    "italypower": SeriesSet("ItalyPowerDemand", Text("ItalyPowerDemand: days of summer and winter", "ItalyPowerDemand：夏日与冬日用电"), "aeon"),
    "japanesevowels": SeriesSet("JapaneseVowels", Text("JapaneseVowels: 9 speakers, 12 channels, unequal lengths", "JapaneseVowels：9 位说话人，12 个通道，长度不等"), "aeon"),
    "osuleaf": SeriesSet("OSULeaf", Text("OSULeaf: outlines of leaves", "OSULeaf：树叶轮廓"), "aeon"),
    "trace": SeriesSet("Trace", Text("Trace: failures of a plant (made up)", "Trace：仿真的设备故障"), "tslearn"),
    "car": SeriesSet("Car", Text("Car: outlines of cars", "Car：汽车轮廓"), "public"),
    "coffee": SeriesSet("Coffee", Text("Coffee: spectra of two kinds", "Coffee：两种咖啡的光谱"), "public"),
    "ecg200": SeriesSet("ECG200", Text("ECG200: single heartbeats", "ECG200：单次心跳"), "public"),
    "facefour": SeriesSet("FaceFour", Text("FaceFour: outlines of faces", "FaceFour：面部轮廓"), "public"),
    "oliveoil": SeriesSet("OliveOil", Text("OliveOil: spectra of olive oils", "OliveOil：橄榄油光谱"), "public"),
    "plane": SeriesSet("Plane", Text("Plane: outlines of planes", "Plane：飞机轮廓"), "public"),
    "syntheticcontrol": SeriesSet("SyntheticControl", Text("SyntheticControl: made-up control charts", "SyntheticControl：生成的控制图"), "public"),
}  # fmt: skip
ARCHIVED = (
    "gunpoint", "coffee", "ecg200", "italypower", "plane", "facefour", "oliveoil", "car", "arrowhead", "osuleaf",
    "syntheticcontrol", "japanesevowels",
)  # fmt: skip
ARCHIVE_TITLE = Text("UCR: twelve sets of the archive", "UCR：档案中的十二个数据集")
NAMES = (*SERIES_SETS, ARCHIVE)
CHECKSUMS = {
    "Car_TEST": "e8917ade918c71fa9fdbe398d6040ddd1489072af2e106d3fb451582c14782ab",
    "Car_TRAIN": "9cc55494553fd7d57f17579b606e299e679b97a681bdd204f6d6c5bafa7bd5c6",
    "Coffee_TEST": "88665e2d2399bd7727ef3b9b005b6af8209a170d0795998d3c68ab4c1d81924a",
    "Coffee_TRAIN": "8335048d4fbc86efef49574d2ad6a0d741456d119f93170d881772ccd3d4aa81",
    "ECG200_TEST": "907c243f6e92234fc3a249448240e95db292835217457a2bc4cbe3d73a02902d",
    "ECG200_TRAIN": "a81521c4fdcded0bbb47334136bc4a6bf7dd8cdf8c8d5877b36d207146f55151",
    "FaceFour_TEST": "dd1a5a6825b171114f9a6747d016ea9739560d132fd9f87463530131d68676aa",
    "FaceFour_TRAIN": "0bdb036c089a1b1581cf3b99e78ec8cac34282dfc2ad3f7c5a6c2e5563a9e705",
    "OliveOil_TEST": "bd07d1cf423e72d01602364c13195445a031900fc7be27ee34364dc6d0ef82b2",
    "OliveOil_TRAIN": "4b4dd8157d511a192a500b79051d6b69d7adf673fbc935245e1c46d4b922a60c",
    "Plane_TEST": "e15d7006025b4c810daf7462f26fb4b62fa0f582acc7dab0424572d597a82186",
    "Plane_TRAIN": "863ab0911781dd038652472b60e6cdfc28036ee0a9bb5152c00b411b0ec3d8ab",
    "SyntheticControl_TEST": "601257b188719da979a76a1e6d2a3256b3c87963696a17813b5e045683cca38c",
    "SyntheticControl_TRAIN": "c95e0e50db9488fc9eb175847274e1d8d4576b9750c081dc018e01fc54bf6d73",
}
PUBLIC = PublicSet(
    "ucr",
    tuple(
        RemoteFile(f"{name}.txt.gz", f"{TSLEARN}{name.partition('_')[0]}/{name}.txt", checksum)
        for name, checksum in CHECKSUMS.items()
    ),
    LICENCE,
)
Rows = tuple[list[np.ndarray], np.ndarray]


class LeftOut(Part):
    """The training series once more, each to be judged by the others: a set without validation rows has it."""


def load(
    name: str = EMBEDDED,
    data: str | os.PathLike[str] | None = None,
    download: bool = False,
    limit: int | None = None,
) -> Dataset:
    """The set of that name; `ucr` has those of `ARCHIVED`, each class with the name of its set before it.

    Args:
        name: one of `NAMES`.
        data: the folder with the public sets; None for `REGARD_DATA`.
        download: get a public set that is in no folder from its public address.
        limit: keep that many training series of each set, of all classes in turn.

    Raises:
        DataError: the set is not there, or damaged.
        RecipeError: there is no set of that name.
    """
    if name == ARCHIVE:
        return joined([load(one, data, download, limit) for one in ARCHIVED])
    if name not in SERIES_SETS:
        raise RecipeError(f"there is no set {name!r} of series; the sets are {', '.join(NAMES)}")
    known = SERIES_SETS[name]
    read = {"aeon": from_aeon, "tslearn": from_tslearn}.get(known.source)
    train, test = read(known.file) if read is not None else from_folder(known.file, data, download)
    if limit is not None:
        kept = in_turn(train[1], 0)[:limit]
        train = [train[0][n] for n in kept], train[1][kept]
    origin: Origin = "public" if known.source == "public" else "package"
    return Dataset(name, known.title, origin, Part(*train), LeftOut(*train), Part(*test), LICENCE)


def from_aeon(file: str) -> tuple[Rows, Rows]:
    """A set that comes with aeon.

    Raises:
        DataError: this release of aeon lacks it.
    """
    import aeon
    from aeon.datasets import load_from_ts_file

    folder = Path(aeon.__file__).parent / "datasets" / "data" / file
    found = []
    for part in ("TRAIN", "TEST"):
        path = folder / f"{file}_{part}.ts"
        if not path.is_file():
            raise DataError(
                f"aeon {aeon.__version__} has no {file}; install a release that has it: pip install 'aeon==1.6.*'"
            )
        rows: Any = load_from_ts_file(str(path))
        found.append((list(rows[0]), np.asarray(rows[1], dtype=str)))
    return found[0], found[1]


def from_tslearn(file: str) -> tuple[Rows, Rows]:
    """A set that comes with tslearn, whose arrays have steps first."""
    from tslearn.datasets import CachedDatasets

    x, y, test_x, test_y = CachedDatasets().load_dataset(file)
    train, test = ([one.T for one in part] for part in (x, test_x))
    return (train, y.astype(str)), (test, test_y.astype(str))


def from_folder(file: str, data: str | os.PathLike[str] | None, allowed: bool) -> tuple[Rows, Rows]:
    """A public set of one channel: a line for each series, its class first."""
    names = [f"{file}_{part}.txt.gz" for part in ("TRAIN", "TEST")]
    folder = obtained(PUBLIC, data, allowed, names)
    tables = [np.loadtxt(io.BytesIO(read_file(PUBLIC, folder, name))) for name in names]
    train, test = ((list(one[:, None, 1:]), one[:, 0].astype(int).astype(str)) for one in tables)
    return train, test


def in_turn(y: np.ndarray, seed: int | tuple[int, ...]) -> np.ndarray:
    """The rows in an order in which every stretch has classes in the shares that they have in all."""
    draw = np.random.default_rng(seed)
    place = np.empty(len(y))
    for one in np.unique(y):
        rows = draw.permutation(np.flatnonzero(y == one))
        place[rows] = (np.arange(len(rows)) + draw.random()) / len(rows)
    return np.argsort(place, kind="stable")


def joined(sets: list[Dataset]) -> Dataset:
    """Several sets as one, with the name of its set before each class."""

    def parts(which: str) -> tuple[list[np.ndarray], np.ndarray]:
        each = [(one.name, getattr(one, which)) for one in sets]
        x = [row for _, part in each for row in part.x]
        return x, np.array([f"{name}{MARK}{y}" for name, part in each for y in part.y])

    train = parts("train")
    return Dataset(
        ARCHIVE, ARCHIVE_TITLE, "public", Part(*train), LeftOut(*train), Part(*parts("test")), LICENCE
    )  # fmt: skip


def tasks(data: Dataset) -> dict[str, Dataset]:
    """The sets that a set consists of, by name; most are one."""
    if data.name != ARCHIVE:
        return {data.name: data}
    return {name: task(data, name) for name in ARCHIVED}


def task(data: Dataset, name: str) -> Dataset:
    """One set of the archive, with its own classes."""

    def own(part: Part) -> tuple[list[Any], np.ndarray]:
        rows = [n for n, y in enumerate(part.y) if y.startswith(name + MARK)]
        return [part.x[n] for n in rows], np.array([part.y[n].partition(MARK)[2] for n in rows])

    known, train = SERIES_SETS[name], own(data.train)
    origin: Origin = "public" if known.source == "public" else "package"
    return Dataset(
        name, known.title, origin, Part(*train), LeftOut(*train), Part(*own(data.test)), LICENCE
    )
