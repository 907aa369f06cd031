"""Tasks from real data, as set matching: which of n examples has the same class as the query?

The data are scikit-learn's digits and, if the folder that `REGARD_DATA` names has them, MNIST and the
gas sensor drift dataset. B rows, n keys.
"""

from __future__ import annotations

import gzip
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.choosing.tasks.models import Match
from regard.choosing.tasks.task import Task
from regard.synthetic.task import DATA_SEEDS
from regard.text import Text

FOLDER = "REGARD_DATA"
KEYS = 6
OPTIONS: dict[str, Any] = {
    "rates": (3e-3, 1e-2, 3e-2), "hidden": (32,), "width": 32, "steps": 250, "finalists": 3, "matters": 0.02,
    "scores": ("scaled_dot", "cosine", "bilinear", "additive"),
    "stabilizers": ("none", "layer_norm"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sets:
    """Draws sets from examples (N, D) with classes (N,); one key of a set has the query's class.

    Attributes:
        parts: examples and classes for training, validation and test, without overlap.
        keys: n, the number of keys in a set, each of another class.
        rows: number of sets in each part.
    """

    parts: list[tuple[Tensor, Tensor]]
    keys: int = KEYS
    rows: tuple[int, int, int] = (4096, 512, 1024)

    def __call__(self, seed: int) -> list[tuple[Tensor, ...]]:
        """Query (B, D), keys (B, n, D) and the index of the right key (B,), for each part."""
        generator = torch.Generator().manual_seed(DATA_SEEDS + seed)
        return [
            draw(x, y, self.keys, rows, generator)
            for (x, y), rows in zip(self.parts, self.rows, strict=True)
        ]


def draw(
    x: Tensor, y: Tensor, keys: int, rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """`rows` sets: one example each of different classes, and as query another of the right class."""
    classes = y.unique()
    members = [torch.nonzero(y == c).flatten() for c in classes]
    sizes = torch.tensor([len(m) for m in members])
    # Classes differ in size: pad the lists of members, and draw positions below each class's size.
    table = torch.nn.utils.rnn.pad_sequence(members, batch_first=True)

    def pick(which: Tensor) -> Tensor:
        place = (torch.rand(which.shape, generator=generator) * sizes[which]).long()
        return x[table[which, place]]

    order = torch.rand(rows, len(classes), generator=generator).argsort(-1)[:, :keys]
    right = torch.randint(order.shape[1], (rows,), generator=generator)
    query = pick(order[torch.arange(rows), right])
    return query, pick(order), right


def split(x: Tensor, y: Tensor, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Three random parts of the examples: 60%, 20% and 20%."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(DATA_SEEDS + seed))
    first, second = int(0.6 * len(x)), int(0.8 * len(x))
    parts = (order[:first], order[first:second], order[second:])
    return [(x[rows], y[rows]) for rows in parts]


def standardized(parts: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The parts with features scaled to mean 0 and variance 1 on the training part."""
    # Constant features (the corners of a picture) have no spread: 1e-3 keeps the quotient finite. The
    # clamp at 8 below bounds features that vary little in training and much in the test part.
    middle, spread = parts[0][0].mean(0), parts[0][0].std(0).clamp(min=1e-3)
    return [(((x - middle) / spread).clamp(-8, 8), y) for x, y in parts]


def digits() -> Task:
    """The task on scikit-learn's digits: 1,797 pictures of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    pixels, shown = load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(shown).long()
    return Task(
        "digits", Text("real pictures: which one shows the same digit (scikit-learn's digits)",
                       "真实图片：哪一张是同一个数字（scikit-learn 的 digits）"),
        Match, Sets(standardized(split(x, y))), (64, 64), ("B4", "E5", "E6"), dict(OPTIONS), "手写数字",
    )  # fmt: skip


def folder_tasks() -> list[Task]:
    """The tasks whose data are in the folder that `REGARD_DATA` names."""
    name = os.environ.get(FOLDER)
    if not name:
        return []
    makers = {"mnist": mnist, "gas_drift": gas_drift}
    return [
        make(Path(name) / part) for part, make in makers.items() if (Path(name) / part).is_dir()
    ]


def mnist(folder: Path) -> Task:
    """The task on MNIST's 10,000 test pictures, averaged down to 14 x 14 pixels."""
    pixels = idx(folder / "t10k-images-idx3-ubyte.gz").float().unsqueeze(1) / 255
    x = torch.nn.functional.avg_pool2d(pixels, 2).flatten(1)
    y = idx(folder / "t10k-labels-idx1-ubyte.gz").long()
    return Task(
        "mnist", Text("real pictures: which one shows the same digit (MNIST)",
                      "真实图片：哪一张是同一个数字（MNIST）"),
        Match, Sets(standardized(split(x, y))), (196, 196), ("B4", "E5"), dict(OPTIONS),
    )  # fmt: skip


def idx(path: Path) -> Tensor:
    """An array in IDX, the file format of MNIST."""
    data = gzip.decompress(path.read_bytes())
    dims = data[3]
    shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims])
    return torch.frombuffer(bytearray(data[4 + 4 * dims :]), dtype=torch.uint8).view(shape)


def gas_drift(folder: Path) -> Task:
    """The task on gas sensors with 128 features: trained on the first months, tested on the last."""
    files = sorted(folder.glob("batch*.dat.gz"))
    early, late = [readings(path) for path in files[:2]], readings(files[-1])
    x, y = (torch.cat(both) for both in zip(*early, strict=True))
    parts = split(x, y)[:2]
    parts = standardized([*parts, late])
    return Task(
        "gas drift", Text("real sensors that drift: which reading is of the same gas",
                          "真实的、会漂移的传感器：哪一个读数是同一种气体"),
        Match, Sets(parts, keys=4), (128, 128), ("G2", "C6"), dict(OPTIONS), "气体漂移",
    )  # fmt: skip


def readings(path: Path) -> tuple[Tensor, Tensor]:
    """Features (N, 128) and gases (N,) of a file with lines "gas;concentration 1:x 2:x ..."."""
    rows, gases = [], []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        head, *cells = line.split()
        gases.append(int(head.partition(";")[0]))
        rows.append([float(cell.partition(":")[2]) for cell in cells])
    return torch.tensor(rows), torch.tensor(gases)
