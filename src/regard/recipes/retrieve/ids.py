"""Ids of documents and keys: whole numbers, or texts, each once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from regard.describe import describe
from regard.recipes.columns import one_kind
from regard.recipes.estimator import RecipeError


def check_ids(ids: Any, count: int | None = None, name: str = "ids") -> np.ndarray:
    """The ids as an array of whole numbers or texts.

    Args:
        ids: anything with rows.
        count: how many there must be; None for any number.
        name: of the argument.

    Raises:
        RecipeError: they are no numbers or texts, too few or too many.
    """
    if isinstance(ids, str) or not hasattr(ids, "__len__"):
        raise RecipeError(f"{name} must be a list of ids, got {describe(ids)}")
    found = one_kind(ids, name)
    if found.size == 0:
        found = np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iuU":
        raise RecipeError(
            f"{name} must be whole numbers or texts in one column, got {describe(ids)}"
        )
    if count is not None and len(found) != count:
        raise RecipeError(f"{name} must have one entry for each of {count} rows, got {len(found)}")
    return found if found.dtype.kind == "U" else found.astype(np.int64)


class Ids:
    """Ids in the order of their rows, each of them once.

    Args:
        names: whole numbers or texts; `check_ids` makes them.
        what: what they are of, in messages.
    """

    def __init__(self, names: np.ndarray | None = None, what: str = "id") -> None:
        self.names = np.zeros(0, np.int64) if names is None else names
        self.what = what
        self.order = np.argsort(self.names, kind="stable")
        ranked = self.names[self.order]
        if len(twice := ranked[1:][ranked[1:] == ranked[:-1]]):
            raise RecipeError(f"the {what} {plain(twice[0])!r} is there twice: each must be unique")

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, ids: Any) -> np.ndarray:
        """The rows of these ids.

        Raises:
            RecipeError: one is not there.
        """
        asked = check_ids(ids)
        if not len(asked):
            return np.zeros(0, np.int64)
        if not len(self) or asked.dtype.kind != self.names.dtype.kind:
            raise RecipeError(f"there is no {self.what} {plain(asked[0])!r}")
        ranked = self.names[self.order]
        place = np.minimum(np.searchsorted(ranked, asked), len(ranked) - 1)
        if len(unknown := asked[ranked[place] != asked]):
            raise RecipeError(f"there is no {self.what} {plain(unknown[0])!r}")
        return self.order[place]

    def joined(self, names: np.ndarray) -> Ids:
        """These ids and more.

        Raises:
            RecipeError: one is there already, or of another kind.
        """
        if len(self) and len(names) and names.dtype.kind != self.names.dtype.kind:
            raise RecipeError(
                f"ids must be all numbers or all texts: {plain(self.names[0])!r} is there, "
                f"got {plain(names[0])!r}"
            )
        return Ids(np.concatenate([self.names, names]) if len(self) else names, self.what)

    def kept(self, rows: np.ndarray) -> Ids:
        """The ids of these rows."""
        return Ids(self.names[rows], self.what)

    def as_tensors(self) -> dict[str, Tensor]:
        """For a file."""
        if self.names.dtype.kind == "i":
            return {"ids": torch.from_numpy(self.names)}
        text = json.dumps(self.names.tolist()).encode()
        return {"names": torch.from_numpy(np.frombuffer(text, np.uint8).copy())}

    @classmethod
    def of_tensors(cls, found: Mapping[str, Tensor]) -> Self:
        """From what `as_tensors` gave."""
        if "ids" in found:
            return cls(found["ids"].numpy())
        return cls(check_ids(json.loads(bytes(found["names"].numpy()))))


def plain(one: Any) -> Any:
    """A number or text of Python, for messages."""
    return one.item() if hasattr(one, "item") else one
