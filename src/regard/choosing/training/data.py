"""The user's data: rows in tensors, or batches from a loader. B rows of a batch.

Every batch is (inputs ..., target). A part to learn from is drawn from in random batches; the part
that is held out is cut in two: one chooses the learning rate, the other is what results are of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.choosing.training.errors import ChooseError
from regard.describe import describe

Batch = tuple[Tensor, ...]
Data = Sequence[Any] | Callable[[int], Sequence[Any]]
LARGEST_BATCH = 1024  # of an evaluation


class RowData:
    """All rows in tensors."""

    def __init__(self, tensors: Sequence[Any], what: str) -> None:
        try:
            self.tensors = tuple(torch.as_tensor(x) for x in tensors)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ChooseError(f"{what}: not all of it is numbers: {error}") from None
        if len(self.tensors) < 2:
            raise ChooseError(f"{what} must be (inputs ..., target), got {len(self.tensors)} array")
        lengths = [len(x) if x.ndim else 0 for x in self.tensors]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise ChooseError(f"{what}: its arrays must have as many rows, and some, got {lengths}")
        for place, x in enumerate(self.tensors):
            if x.is_floating_point() and not bool(x.isfinite().all()):
                raise ChooseError(f"{what}[{place}] holds NaN or infinite numbers")
        floats = [x.float() if x.dtype == torch.double else x for x in self.tensors]
        self.tensors = tuple(floats)
        self.count = lengths[0]

    def draw(self, batch: int, seed: int) -> Iterator[Batch]:
        """Batches without end, every row once in each turn; the order is the seed's."""
        generator = torch.Generator().manual_seed(seed)
        batch = min(batch, self.count)
        while True:
            order = torch.randperm(self.count, generator=generator)
            for start in range(0, self.count - batch + 1, batch):
                rows = order[start : start + batch]
                yield tuple(x[rows] for x in self.tensors)

    def batches(self) -> list[Batch]:
        """All rows in order."""
        return list(zip(*(x.split(LARGEST_BATCH) for x in self.tensors), strict=True))


class Batches:
    """What a loader gives; its own order, which follows torch's seed where it is shuffled."""

    def __init__(self, loader: Iterable[Any], what: str) -> None:
        self.loader, self.what = loader, what

    def draw(self, batch: int, seed: int) -> Iterator[Batch]:
        """Batches without end, as the loader cuts them."""
        while True:
            empty = True
            for found in self.loader:
                empty = False
                yield self.checked(found)
            if empty:
                raise ChooseError(f"{self.what}: the loader gave no batch (the second time round?)")

    def batches(self) -> list[Batch]:
        """One turn."""
        return [self.checked(found) for found in self.loader]

    def checked(self, found: Any) -> Batch:
        """A batch as a tuple of tensors."""
        tensors = isinstance(found, (tuple, list)) and all(isinstance(x, Tensor) for x in found)
        if not tensors or len(found) < 2:
            raise ChooseError(
                f"{self.what}: a batch must be a tuple (inputs ..., target) of tensors, "
                f"got {describe(found)}"
            )
        return tuple(found)


Part = RowData | Batches


def as_part(given: Any, what: str) -> Part:
    """Rows or batches, whichever it is."""
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
    """Data of one seed: to train on, to choose by, to report."""

    def __init__(self, given: Sequence[Any]) -> None:
        if not isinstance(given, (tuple, list)) or len(given) not in (2, 3):
            raise ChooseError(
                "data must be (train, validation) or (train, validation, test), or a function from "
                f"seed to that, got {describe(given)}"
            )
        self.train = as_part(given[0], "train")
        validation = as_part(given[1], "validation").batches()
        if len(given) == 3:
            self.validation, self.test = validation, as_part(given[2], "test").batches()
        else:
            self.validation, self.test = halves(validation)


def halves(batches: list[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Every other row, from each batch: whatever the order of the rows, both look alike."""
    found = [[tuple(x[start::2] for x in batch) for batch in batches] for start in (0, 1)]
    first, second = ([b for b in part if len(b[0])] for part in found)
    if not first or not second:
        raise ChooseError("validation must have two rows at least: one to choose by, one to report")
    return first, second


def parts_of(data: Data, seed: int) -> DataParts:
    """The data of a seed: the same for all, or drawn for it."""
    return DataParts(data(seed) if callable(data) else data)
