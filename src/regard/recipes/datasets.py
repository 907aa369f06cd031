"""`Dataset`: the rows of a recipe in three parts, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from regard.text import Text

Origin = Literal["public", "package", "generated"]


@dataclass(frozen=True)
class Part:
    """Inputs and targets, row by row, in the form that the recipe's `fit` and `score` take."""

    x: Any
    y: Any

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """Data of a recipe. Settings are chosen on `validation`; `test` is only for the final result.

    Attributes:
        name: short and unique, for files and options.
        title: one line that says what it is.
        origin: "public" for a benchmark in a folder or from the network, "package" for data that come inside
            a package, "generated" for data made by a stated law.
        train, validation, test: the three parts.
        licence: the licence, or what the source says in place of one.
        show_rows: whether the licence lets rows be printed in published pages.
    """

    name: str
    title: Text
    origin: Origin
    train: Part
    validation: Part
    test: Part
    licence: str = ""
    show_rows: bool = True
