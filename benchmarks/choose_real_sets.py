"""Real sets on which the chooser's answers are put to the test; none was used to build it.

Each set is examples (N, D) with classes or numbers (N,). A resplit sets 40% of the examples apart as fresh
ones, and cuts the rest into parts to train on, to choose by and to report. No example is in two parts.
A row of data is one example as the query, and others of the same part as keys:

- classes: one key is of the query's class, each of the others of another one; which is it?
- numbers: 16 keys carry their numbers; what is the query's?
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import Score
from regard.choosing.tasks.models import Match, ReadValue

FRESH, PARTS = 0.4, (0.6, 0.2, 0.2)
MOST_KEYS, NEIGHBOURS = 6, 16
MOST_EXAMPLES = 3000
DRAWS = 6  # rows of each example in the part to train on
WIDTH = 64  # of bags of words, projected at random

Rows = tuple[Tensor, ...]


class Examples(NamedTuple):
    """One set: examples (N, D) float, and classes (N,) long or numbers (N,) float."""

    x: Tensor
    y: Tensor

    @property
    def classes(self) -> bool:
        """Whether the answer is a class."""
        return not self.y.is_floating_point()

    def build(self, score: Score) -> nn.Module:
        """The model around a score."""
        if self.classes:
            return Match(score)
        return ReadValue(score, value_dim=1, outputs=1, width=8)


class Resplit(NamedTuple):
    """The data of one resplit: (train, validation, test) for `regard.choose`, and the fresh rows."""

    data: tuple[Rows, Rows, Rows]
    fresh: Rows


def resplit(examples: Examples, number: int) -> Resplit:
    """The resplit of that number; inputs and float targets are standardised by the training part."""
    generator = torch.Generator().manual_seed(10_000 + number)
    order = torch.randperm(len(examples.x), generator=generator)[:MOST_EXAMPLES]
    apart = int(FRESH * len(order))
    fresh, rest = order[:apart], order[apart:]
    first, second = int(PARTS[0] * len(rest)), int((PARTS[0] + PARTS[1]) * len(rest))
    x, y = standardized(examples, rest[:first])
    draw = rows_of_class if examples.classes else rows_of_numbers
    made = [
        draw(x[part], y[part], draws, generator)
        for part, draws in (
            (rest[:first], DRAWS), (rest[first:second], 1), (rest[second:], 1), (fresh, 1),
        )
    ]  # fmt: skip
    return Resplit((made[0], made[1], made[2]), made[3])


def standardized(examples: Examples, train: Tensor) -> tuple[Tensor, Tensor]:
    """Examples and numbers of mean 0 and variance 1 on the training part; classes as they are."""
    x, y = examples
    x = ((x - x[train].mean(0)) / x[train].std(0).clamp(min=1e-6)).clamp(-8, 8)
    if not examples.classes:
        y = (y - y[train].mean()) / y[train].std()
    return x, y


def rows_of_class(x: Tensor, y: Tensor, draws: int, generator: torch.Generator) -> Rows:
    """Query (B, D), keys (B, n, D), which key is of the query's class (B,)."""
    members = {int(c): torch.nonzero(y == c).flatten() for c in y.unique()}
    members = {
        c: rows for c, rows in members.items() if len(rows) >= 2
    }  # a class needs a second example
    count = min(len(members), MOST_KEYS)
    queries, keys, right = [], [], []
    for _ in range(draws):
        for query in torch.randperm(len(x), generator=generator).tolist():
            own = int(y[query])
            if own not in members:
                continue
            others = [c for c in members if c != own]
            picked = torch.randperm(len(others), generator=generator)[: count - 1].tolist()
            shown = [another(members[own], query, generator)]
            shown += [pick(members[others[i]], generator) for i in picked]
            place = int(torch.randint(count, (), generator=generator))
            shown[0], shown[place] = shown[place], shown[0]
            queries.append(query)
            keys.append(shown)
            right.append(place)
    return x[torch.tensor(queries)], x[torch.tensor(keys)], torch.tensor(right)


def rows_of_numbers(x: Tensor, y: Tensor, draws: int, generator: torch.Generator) -> Rows:
    """Query (B, D), keys (B, n, D), their numbers (B, n, 1), the query's own (B, 1)."""
    queries = torch.arange(len(x)).repeat(draws)
    drawn = torch.rand(len(queries), len(x), generator=generator)
    drawn[torch.arange(len(queries)), queries] = 2.0  # never the query itself
    keys = drawn.argsort(-1)[:, :NEIGHBOURS]
    return x[queries], x[keys], y[keys].unsqueeze(-1), y[queries].unsqueeze(-1)


def pick(rows: Tensor, generator: torch.Generator) -> int:
    """One of the rows, at random."""
    return int(rows[torch.randint(len(rows), (), generator=generator)])


def another(rows: Tensor, query: int, generator: torch.Generator) -> int:
    """One of the rows other than the query, at random."""
    return pick(rows[rows != query], generator)


def scikit(name: str, folder: Path) -> Examples:
    """A set that comes with scikit-learn."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    y = torch.as_tensor(y)
    return Examples(torch.as_tensor(x).float(), y.float() if name == "diabetes" else y.long())


def series(name: str, folder: Path) -> Examples:
    """A set of the UCR archive: the series are the examples, both parts together."""
    rows, labels = [], []
    for part in ("TRAIN", "TEST"):
        path = next((folder / "ucr").glob(f"{name}_{part}.*.gz"))
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            if not line.strip() or line.startswith(("#", "@")):
                continue
            if ":" in line:
                *channels, label = line.split(":")
                numbers = [list(map(float, one.split(","))) for one in channels]
            else:
                label, *cells = line.split()
                numbers = [list(map(float, cells))]
            rows.append(numbers)
            labels.append(label.strip())
    names = sorted(set(labels))
    return Examples(as_examples(rows), torch.tensor([names.index(label) for label in labels]))


def as_examples(rows: list[list[list[float]]]) -> Tensor:
    """Series of one channel as they are; of several channels and lengths, mean and spread of each."""
    if len(rows[0]) == 1:
        return torch.tensor([channels[0] for channels in rows])
    kept = [torch.tensor(channels) for channels in rows]
    return torch.stack([torch.cat([one.mean(-1), one.std(-1)]) for one in kept])


def usps(folder: Path) -> Examples:
    """Handwritten digits of 16 x 16 points, made 8 x 8 by averaging."""
    import h5py

    with h5py.File(folder / "usps" / "usps.h5") as file:
        pixels = torch.cat([torch.as_tensor(file[part]["data"][:]) for part in ("train", "test")])
        shown = torch.cat([torch.as_tensor(file[part]["target"][:]) for part in ("train", "test")])
    x = nn.functional.avg_pool2d(pixels.float().view(-1, 1, 16, 16), 2).flatten(1)
    return Examples(x, shown.long())


def papers(name: str, folder: Path) -> Examples:
    """Papers as bags of words, projected at random to 64 dims; the classes are their fields."""
    import numpy as np

    with np.load(folder / "planetoid" / f"{name}_clean.npz", allow_pickle=False) as file:
        found = {key: torch.as_tensor(file[key]) for key in file.files}
    shape = tuple(found["x_shape"].tolist())
    words = torch.sparse_csr_tensor(
        found["x_indptr"].long(), found["x_indices"].long(), found["x_data"].float(), shape
    ).to_dense()
    generator = torch.Generator().manual_seed(0)
    return Examples(words @ torch.randn(shape[1], WIDTH, generator=generator), found["y"].long())


SETS: dict[str, Callable[[Path], Examples]] = {
    "breast cancer": partial(scikit, "breast_cancer"),
    "diabetes": partial(scikit, "diabetes"),
    "SyntheticControl": partial(series, "SyntheticControl"),
    "ItalyPowerDemand": partial(series, "ItalyPowerDemand"),
    "OSULeaf": partial(series, "OSULeaf"),
    "JapaneseVowels": partial(series, "JapaneseVowels"),
    "USPS": usps,
    "Cora": partial(papers, "cora"),
    "Citeseer": partial(papers, "citeseer"),
}
