"""The target as a tensor: classes from words or numbers, amounts, relevances. N rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.columns import Column, DataSource, looks_like_dates
from regard.choosing.tasks.inputs import as_floats, check_numbers
from regard.choosing.tasks.roles import listed, shown
from regard.choosing.training.metrics import IGNORED
from regard.text import Text

MOST_CLASSES = 1000
# Whole numbers in a column of floats, from 0 or 1 to at most this, are taken for classes.
USUAL_CLASSES = 20


class Answers(NamedTuple):
    """The target.

    Attributes:
        values: (N,) or (N, L) classes as int64, or fp32 numbers.
        classes: number of classes; 0 for numbers.
    """

    values: Tensor
    classes: int = 0


def target_column(names: list[str], source: DataSource) -> Column:
    """The target, from one column or several side by side.

    Raises:
        ChooseError: values are missing, or are dates.
    """
    columns = [source.columns[name] for name in names]
    column = columns[0]
    if len(columns) > 1:
        if any(one.values.ndim != 1 for one in columns):
            raise source.error(f"{listed(names)}: several target columns must hold single values")
        column = Column(np.stack([one.values for one in columns], 1))
    gone = missing_entries(column)
    if gone:
        raise source.error(
            f"{listed(names)}: {gone} of {column.values.size} targets are missing. A row without an answer "
            f"teaches nothing, drop it: frame = frame.dropna(subset=[{shown(names[0])!r}]) or "
            "keep = ~np.isnan(target)"
        )
    if column.is_dates or (column.is_words and looks_like_dates(column.values.ravel().tolist())):
        check_numbers(column, names[0], source)
    return column


def missing_entries(column: Column) -> int:
    """Number of missing entries."""
    if column.is_words:
        return sum(x is None for x in column.values.ravel())
    return int(np.isnan(column.values).sum()) if column.values.dtype.kind == "f" else 0


def natural_kind(column: Column, source: DataSource, notes: list[Text]) -> str:
    """Classification for words, truth values and few whole numbers, else regression.

    Raises:
        ChooseError: whole numbers that may be either, too many for classes.
    """
    if column.is_words or column.values.dtype.kind == "b":
        return "classification"
    values = np.unique(column.values)
    if column.is_whole:
        if len(values) > MOST_CLASSES or len(values) > max(len(column.values) // 3, 20):
            raise source.error(
                f"target holds {len(values)} different whole numbers, {int(values[0])} to {int(values[-1])}. If "
                f"they are amounts: {source.roles.option('kind', 'regression')}; if ids, they are no answer to "
                "learn"
            )
        return "classification"
    whole = bool(np.all(values == np.floor(values)))
    if whole and 0 <= values[0] <= 1 and len(values) <= USUAL_CLASSES >= values[-1]:
        notes.append(
            Text(
                f"The target holds {len(values)} whole numbers, taken for classes; for amounts give "
                f"{source.roles.option('kind', 'regression')}.",
                f"目标是 {len(values)} 个整数，按类别处理；若是数量，请给出 "
                f"{source.roles.option('kind', 'regression')}。",
            )
        )
        return "classification"
    return "regression"


def as_classes(column: Column, source: DataSource, notes: list[Text]) -> Answers:
    """The target as classes from 0, in the order of their names.

    Raises:
        ChooseError: there is one class only, or too many.
    """
    kept = column.values
    if column.lengths is not None:
        kept = kept[np.arange(kept.shape[1]) < column.lengths[:, None]]
    if kept.dtype.kind == "f" and not np.all(kept == np.floor(kept)):
        raise source.error(
            "classes are words or whole numbers, but target holds fractions such as "
            f"{kept[kept != np.floor(kept)][0]:g}; for amounts give "
            f"{source.roles.option('kind', 'regression')}"
        )
    names = np.unique(kept.astype(str) if column.is_words else kept)
    if len(names) < 2:
        raise source.error(
            f"target has one class only, {shown(str(plain_name(names[0])))}: nothing to learn"
        )
    if len(names) > MOST_CLASSES:
        raise source.error(
            f"target has {len(names)} classes, {MOST_CLASSES} at most; for amounts give "
            f"{source.roles.option('kind', 'regression')}"
        )
    places = np.searchsorted(names, column.values.astype(str) if column.is_words else column.values)
    found = torch.from_numpy(places.astype(np.int64))
    if column.lengths is not None:
        real = torch.arange(found.shape[1]) < torch.from_numpy(column.lengths).unsqueeze(1)
        found = found.masked_fill(~real, IGNORED)
    if column.is_words or not np.array_equal(names, np.arange(len(names))):
        said = [f"{i} = {plain_name(name)}" for i, name in enumerate(names)]
        notes.append(
            Text(
                f"The {len(names)} classes are {listed(said)}.",
                f"共 {len(names)} 个类别：{listed(said)}。",
            )
        )
    return Answers(found, len(names))


def plain_name(name: object) -> object:
    """A class by its name: 3 in place of 3.0."""
    return int(name) if isinstance(name, (float, np.floating)) else name


def as_amounts(column: Column, source: DataSource) -> Answers:
    """The target as numbers.

    Raises:
        ChooseError: it holds words, or the same number everywhere.
    """
    found = as_floats(column, "target", source)
    if float(found.std()) == 0:
        raise source.error(f"every target is the same, {float(found.flatten()[0]):g}")
    return Answers(found)
