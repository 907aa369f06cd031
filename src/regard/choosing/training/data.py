"""The user's data: rows in tensors, or batches from a loader. B rows of a batch.

Every batch is (inputs ..., target). Training draws random batches from the train part. Learning rates
are chosen on the validation part, and results are reported on the test part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from regard.choosing.training.errors import ChooseError
from regard.choosing.training.scaling import (
    ColumnScale,
    column_scale,
    input_scales,
    standardized,
)
from regard.choosing.training.splits import PARTS, SplitRows, split_rows
from regard.describe import describe

Batch = tuple[Tensor, ...]
Data = Sequence[Any] | SplitRows | Callable[[int], Sequence[Any]]
LARGEST_BATCH = 1024  # rows of a batch in an evaluation


class RowData:
    """A part whose rows are all in tensors."""

    def __init__(self, tensors: Sequence[Any], what: str) -> None:
        try:
            self.tensors = tuple(torch.as_tensor(x) for x in tensors)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ChooseError(f"{what} must hold arrays of numbers: {error}") from None
        if len(self.tensors) < 2:
            raise ChooseError(f"{what} must be (inputs ..., target), got {len(self.tensors)} array")
        lengths = [len(x) if x.ndim else 0 for x in self.tensors]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise ChooseError(
                f"{what}: its arrays must have the same number of rows, at least 1, got {lengths}"
            )
        for place, x in enumerate(self.tensors):
            if x.is_floating_point() and not bool(x.isfinite().all()):
                raise ChooseError(f"{what}[{place}] holds NaN or infinite numbers")
        floats = [x.float() if x.dtype == torch.double else x for x in self.tensors]
        self.tensors = tuple(floats)
        self.count = lengths[0]

    def draw(self, batch: int, seed: int) -> Iterator[Batch]:
        """An endless stream of batches, each row once per epoch, in an order set by the seed."""
        generator = torch.Generator().manual_seed(seed)
        batch = min(batch, self.count)
        while True:
            order = torch.randperm(self.count, generator=generator)
            for start in range(0, self.count - batch + 1, batch):
                rows = order[start : start + batch]
                yield tuple(x[rows] for x in self.tensors)

    def batches(self) -> list[Batch]:
        """All rows in order, as batches."""
        return list(zip(*(x.split(LARGEST_BATCH) for x in self.tensors), strict=True))

    def shuffled(self, seed: int) -> RowData:
        """The same rows with their targets in random order, so that there is nothing to learn."""
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed))
        return RowData((*self.tensors[:-1], self.tensors[-1][order]), "train")


class Batches:
    """A part that a loader yields in batches, in its own order; shuffling follows torch's seed."""

    def __init__(self, loader: Iterable[Any], what: str) -> None:
        self.loader, self.what = loader, what

    def draw(self, batch: int, seed: int) -> Iterator[Batch]:
        """An endless stream of the loader's batches, whatever `batch` and `seed` are."""
        while True:
            empty = True
            for found in self.loader:
                empty = False
                yield self.checked(found)
            if empty:
                # A generator, for example, is exhausted after its first epoch.
                raise ChooseError(
                    f"{self.what}: the loader gave no batch; it must be iterable more than once"
                )

    def batches(self) -> list[Batch]:
        """The batches of one epoch."""
        return [self.checked(found) for found in self.loader]

    def checked(self, found: Any) -> Batch:
        """A batch of the loader as a tuple of tensors; raises ChooseError for anything else."""
        tensors = isinstance(found, (tuple, list)) and all(isinstance(x, Tensor) for x in found)
        if not tensors or len(found) < 2:
            raise ChooseError(
                f"{self.what}: a batch must be a tuple (inputs ..., target) of tensors, "
                f"got {describe(found)}"
            )
        return tuple(found)

    def shuffled(self, seed: int) -> Batches:
        """The same batches with the targets of each in random order."""
        return Batches(ShuffledBatches(self, seed), self.what)


class ShuffledBatches:
    """Batches of a loader whose targets are put into random order, the same in every epoch."""

    def __init__(self, part: Batches, seed: int) -> None:
        self.part, self.seed = part, seed

    def __iter__(self) -> Iterator[Batch]:
        """One epoch."""
        generator = torch.Generator().manual_seed(self.seed)
        for *inputs, target in self.part.batches():
            yield (*inputs, target[torch.randperm(len(target), generator=generator)])


Part = RowData | Batches


def as_part(given: Any, what: str) -> Part:
    """A part of the data, from arrays, a TensorDataset or a loader; `what` names it in errors."""
    tensors = getattr(given, "tensors", None)  # a TensorDataset
    if tensors is not None:
        return RowData(tensors, what)
    if isinstance(given, (tuple, list)):
        return RowData(given, what)
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, dict, Tensor)):
        return Batches(given, what)
    raise ChooseError(
        f"{what} must be a tuple of arrays (inputs ..., target) or a loader of such batches, got "
        f"{describe(given)}"
    )


class DataParts:
    """The data of one seed: train, validation and test parts.

    Attributes:
        target_scale: the scale in which the model gives float targets; None for targets as they are.
        test_groups: the group of each test row; None if there are no groups.
    """

    def __init__(self, given: Any, standardize: bool = False) -> None:
        groups, positional = None, ()
        if isinstance(given, SplitRows):
            groups, positional, given = given.groups, given.positional, given.parts
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
            raise ChooseError(
                "data must be (train, validation) or (train, validation, test), or a function from "
                f"seed to that, got {describe(given)}"
            )
        found = [as_part(one, what) for one, what in zip(given, PARTS, strict=False)]
        self.target_scale: ColumnScale | None = None
        if standardize:
            found, self.target_scale = scaled_parts(found, positional)
        self.train = found[0]
        self.test_groups = None if groups is None else groups[-1]
        if len(found) == 3:
            self.validation, self.test = found[1].batches(), found[2].batches()
        else:
            self.validation, self.test = halves(found[1].batches())

    def shuffled(self, seed: int) -> DataParts:
        """The same parts, of which the training part has its targets in random order."""
        found = copy(self)
        found.train = self.train.shuffled(seed)
        return found


def scaled_parts(
    found: list[Part], positional: Sequence[int]
) -> tuple[list[Part], ColumnScale | None]:
    """The parts with standardised inputs, and the scale of float targets.

    Raises:
        ChooseError: a part comes from a loader, whose rows are not known beforehand.
    """
    rows = [part for part in found if isinstance(part, RowData)]
    if len(rows) < len(found):
        raise ChooseError(
            "standardize=True needs the parts as arrays (inputs ..., target); standardise what your loader "
            "yields, and give standardize=False"
        )
    *inputs, target = rows[0].tensors
    scales = input_scales(inputs, positional)
    parts = [RowData(standardized(part.tensors, scales), "data") for part in rows]
    return list(parts), column_scale(target) if target.is_floating_point() else None


def halves(batches: list[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Two halves of every batch, taken by alternating rows.

    Sorted data would make a first and a second half differ; alternating rows do not.
    """
    found = [[tuple(x[start::2] for x in batch) for batch in batches] for start in (0, 1)]
    first, second = ([b for b in part if len(b[0])] for part in found)
    if not first or not second:
        raise ChooseError(
            "validation must have at least two rows: one half chooses the rate, the other is the test "
            "part"
        )
    return first, second


def parts_of(data: Data, seed: int, standardize: bool = False) -> DataParts:
    """The data of a seed: drawn for it if `data` is a function, else the same for all seeds."""
    return DataParts(data(seed) if callable(data) else data, standardize)


def as_split(data: Any, group: Any = None, split: Any = None) -> Data:
    """The data as given, or split by us if it is one set of rows (inputs ..., target) in arrays.

    Raises:
        ChooseError: a column of groups or parts was given for data that is in parts already.
    """
    whole = isinstance(data, (tuple, list)) and len(data) > 1 and all(map(is_array, data))
    if not whole:
        if group is not None or split is not None:
            raise ChooseError(
                "group= and split= say how to split rows, so they need one set of arrays: "
                "data=(inputs ..., target); data in parts is split already"
            )
        return data
    lengths = [len(x) for x in data]
    if len(set(lengths)) != 1:
        raise ChooseError(f"data: its arrays must have the same number of rows, got {lengths}")
    return split_rows(data, group, split)


def is_array(x: Any) -> bool:
    """Whether x is a tensor or a NumPy array with rows."""
    return bool(getattr(x, "ndim", 0)) and hasattr(x, "dtype") and hasattr(x, "shape")
