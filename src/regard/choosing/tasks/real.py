"""Real data as set matching: which of these n examples is of the query's class?

scikit-learn's own digits; and from the folder that `REGARD_DATA` names, MNIST and the drifting gas
sensors. B rows, n keys.
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
    """Draws sets from examples (N, D) with classes (N,): one key is of the query's class.

    Attributes:
        parts: examples and classes to learn from, to choose by, to report: none is in two of them.
        keys: n, of as many classes.
        rows: how many sets of each part.
    """

    parts: list[tuple[Tensor, Tensor]]
    keys: int = KEYS
    rows: tuple[int, int, int] = (4096, 512, 1024)

    def __call__(self, seed: int) -> list[tuple[Tensor, ...]]:
        """Query (B, D), keys (B, n, D), which key (B,), for each part."""
        generator = torch.Generator().manual_seed(DATA_SEEDS + seed)
        return [
            draw(x, y, self.keys, rows, generator)
            for (x, y), rows in zip(self.parts, self.rows, strict=True)
        ]


def draw(
    x: Tensor, y: Tensor, keys: int, rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """`rows` sets: classes without repeats, an example of each, another of the right one."""
    classes = y.unique()
    members = [torch.nonzero(y == c).flatten() for c in classes]
    sizes = torch.tensor([len(m) for m in members])
    table = torch.nn.utils.rnn.pad_sequence(members, batch_first=True)

    def pick(which: Tensor) -> Tensor:
        place = (torch.rand(which.shape, generator=generator) * sizes[which]).long()
        return x[table[which, place]]

    order = torch.rand(rows, len(classes), generator=generator).argsort(-1)[:, :keys]
    right = torch.randint(order.shape[1], (rows,), generator=generator)
    query = pick(order[torch.arange(rows), right])
    return query, pick(order), right


def split(x: Tensor, y: Tensor, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Three parts, 60, 20 and 20 of a hundred."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(DATA_SEEDS + seed))
    first, second = int(0.6 * len(x)), int(0.8 * len(x))
    parts = (order[:first], order[first:second], order[second:])
    return [(x[rows], y[rows]) for rows in parts]


def standardized(parts: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Each feature of mean 0 and variance 1 on the part to learn from."""
    middle, spread = parts[0][0].mean(0), parts[0][0].std(0).clamp(min=1e-3)
    return [(((x - middle) / spread).clamp(-8, 8), y) for x, y in parts]


def digits() -> Task:
    """1,797 pictures of 8 x 8 points."""
    from sklearn.datasets import load_digits

    pixels, shown = load_digits(return_X_y=True)
    x, y = torch.as_tensor(pixels).float(), torch.as_tensor(shown).long()
    return Task(
        "digits", Text("real pictures: which one shows the same digit (scikit-learn's digits)",
                       "真实图片：哪一张是同一个数字（scikit-learn 的 digits）"),
        Match, Sets(standardized(split(x, y))), (64, 64), ("B4", "E5", "E6"), dict(OPTIONS), "手写数字",
    )  # fmt: skip


def folder_tasks() -> list[Task]:
    """Tasks of the data folder, as far as it has their files."""
    name = os.environ.get(FOLDER)
    if not name:
        return []
    makers = {"mnist": mnist, "gas_drift": gas_drift}
    return [
        make(Path(name) / part) for part, make in makers.items() if (Path(name) / part).is_dir()
    ]


def mnist(folder: Path) -> Task:
    """The 10,000 test pictures, made 14 x 14 points by averaging."""
    pixels = idx(folder / "t10k-images-idx3-ubyte.gz").float().unsqueeze(1) / 255
    x = torch.nn.functional.avg_pool2d(pixels, 2).flatten(1)
    y = idx(folder / "t10k-labels-idx1-ubyte.gz").long()
    return Task(
        "mnist", Text("real pictures: which one shows the same digit (MNIST)",
                      "真实图片：哪一张是同一个数字（MNIST）"),
        Match, Sets(standardized(split(x, y))), (196, 196), ("B4", "E5"), dict(OPTIONS),
    )  # fmt: skip


def idx(path: Path) -> Tensor:
    """An array in MNIST's own format."""
    data = gzip.decompress(path.read_bytes())
    dims = data[3]
    shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims])
    return torch.frombuffer(bytearray(data[4 + 4 * dims :]), dtype=torch.uint8).view(shape)


def gas_drift(folder: Path) -> Task:
    """Gas sensors of 128 features; learned from the first months, reported on the last there are."""
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
    """Features (N, 128) and gases (N,) of one batch: lines of "gas;concentration 1:x 2:x ..."."""
    rows, gases = [], []
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        head, *cells = line.split()
        gases.append(int(head.partition(";")[0]))
        rows.append([float(cell.partition(":")[2]) for cell in cells])
    return torch.tensor(rows), torch.tensor(gases)
