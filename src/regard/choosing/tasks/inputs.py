"""Columns as tensors of fp32 for query, key and value. N rows, n keys of a row, D numbers of one.

Missing numbers stay NaN here; whoever takes the tensor says what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.columns import Column, DataSource, looks_like_dates
from regard.choosing.tasks.roles import key_blocks, listed, shown
from regard.text import Text

FEW = 12  # words of a column that become one column of 0 and 1 each
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
EXACT = 2**24  # whole numbers up to this are exact in fp32


def feature_columns(
    names: Sequence[str], source: DataSource, notes: list[Text]
) -> dict[str, Column]:
    """Columns of numbers by name; a column with few different words becomes one for each word.

    Raises:
        ChooseError: a column holds dates, or too many different words.
    """
    found: dict[str, Column] = {}
    for name in names:
        column = source.columns[name]
        if not column.is_words:
            found[name] = column
            continue
        words = list(dict.fromkeys(column.values.ravel().tolist()))
        if column.values.ndim > 1 or not 2 <= len(words) <= FEW or looks_like_dates(words):
            check_numbers(column, name, source)
        kept = sorted(word for word in words if word is not None)
        for word in kept:
            found[f"{name}={word}"] = Column((column.values == word).astype(np.float64))
        notes.append(
            Text(
                f"{shown(name)} holds words: it became {len(kept)} columns of 0 and 1 "
                f"({listed(kept)}).",
                f"{shown(name)} 是文字，已变成 {len(kept)} 个 0/1 列（{listed(kept)}）。",
            )
        )
    return found


def check_numbers(column: Column, name: str, source: DataSource) -> None:
    """Raise ChooseError for dates and words, with the lines that turn them into numbers."""
    said = shown(name)
    if column.is_dates or (column.is_words and looks_like_dates(column.values.ravel().tolist())):
        raise source.error(
            f"{said} holds dates; attention needs numbers. Days since a date: frame[{said!r}] = "
            f'(pandas.to_datetime(frame[{said!r}]) - pandas.Timestamp("2020-01-01")).dt.days; or leave it '
            f"out: {source.roles.option('drop', said)}"
        )
    if column.is_words:
        said_so = almost_numbers(column.values.ravel().tolist(), said)
        if said_so:
            raise source.error(said_so)
        words = {word for word in column.values.ravel().tolist() if word is not None}
        example = shown(min(words)) if words else ""
        raise source.error(
            f"{said} must be numbers, but it holds words, {len(words)} different ones such as {example!r}. Few "
            f"kinds become columns by frame = pandas.get_dummies(frame, columns=[{said!r}]); text becomes numbers "
            "by an embedding model; or leave it out: "
            f"{source.roles.option('drop', said)}"
        )


def almost_numbers(words: Sequence[str | None], said: str) -> str:
    """What is wrong with a column of words most of which are numbers; empty if they are not."""
    present = [(row, word) for row, word in enumerate(words) if word is not None]
    bad = [(row, word) for row, word in present if not is_number(word)]
    if present and not bad:
        return f"{said} holds numbers that are stored as words: frame[{said!r}] = frame[{said!r}].astype(float)"
    commas = sum(DECIMAL_COMMA.fullmatch(word.strip()) is not None for _, word in bad)
    if commas and 2 * commas > len(present):
        return (
            f"{said} has decimal commas, such as {shown(bad[0][1])!r}: write points, or "
            'pandas.read_csv("mine.csv", sep=";", decimal=",").to_csv("mine.csv", index=False)'
        )
    if 2 * len(bad) >= len(present):
        return ""
    row, word = bad[0]
    return (
        f"{said} holds {shown(word)!r} among numbers, in row {row + 1} of the data, and "
        f"{len(bad)} such {'entry' if len(bad) == 1 else 'entries'} in all: correct them, or leave the cells empty"
    )


def is_number(word: str) -> bool:
    """Whether a word is a number as Python writes it."""
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


def as_floats(column: Column, name: str, source: DataSource) -> Tensor:
    """The column in fp32; missing numbers are NaN.

    Raises:
        ChooseError: it holds no numbers, infinite ones, or whole numbers that fp32 cannot tell apart.
    """
    check_numbers(column, name, source)
    values = column.values
    most = int(np.abs(values).max()) if column.is_whole and values.size else 0
    if most > EXACT and len(np.unique(values)) > len(np.unique(values.astype(np.float32))):
        raise source.error(
            f"{shown(name)} holds whole numbers up to {most}, which fp32 cannot tell apart. Ids are no numbers: "
            f"leave them out, {source.roles.option('drop', shown(name))}; of amounts subtract the mean first"
        )
    with np.errstate(over="ignore"):
        found = torch.from_numpy(np.ascontiguousarray(values.astype(np.float32)))
    infinite = int(found.isinf().sum())
    if infinite:
        raise source.error(
            f"{shown(name)} holds infinite numbers, {infinite} of {found.numel()} (in fp32). Divide by a unit that "
            f"suits: {shown(name)} / 1e30; or drop those rows"
        )
    return found


def check_present(x: Tensor, name: str, source: DataSource, columns: Sequence[str]) -> None:
    """Raise ChooseError if numbers are missing where nothing can be hidden."""
    gone = int(x.isnan().sum())
    if gone:
        which = listed([column for i, column in enumerate(columns) if x.ndim == 2 and i < x.shape[1]
                        and len(columns) == x.shape[1] and bool(x[:, i].isnan().any())])  # fmt: skip
        named = "" if which == "nothing" else f" (columns {which})"
        raise source.error(
            f"{name}: {gone} of {x.numel()} numbers are missing{named}. Fill them in: frame = "
            "frame.fillna(frame.mean(numeric_only=True)); or drop those rows: frame = frame.dropna()"
        )


def stacked(columns: dict[str, Column], source: DataSource) -> Tensor:
    """Columns (N,) and (N, d) side by side: (N, D)."""
    parts = [as_floats(column, name, source) for name, column in columns.items()]
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise source.error(f"{listed(columns)}: columns differ in rows, {sorted(lengths)}")
    for name, column in columns.items():
        if column.lengths is not None:
            raise source.error(
                f"{shown(name)} has rows of different lengths, {int(column.lengths.min())} to "
                f"{int(column.lengths.max())}; only keys may differ in number: pad or cut it"
            )
    return torch.cat(
        [part.unsqueeze(1) if part.ndim == 1 else part.flatten(1) for part in parts], 1
    )


def keys_tensor(
    names: Sequence[str], role: str, source: DataSource
) -> tuple[Tensor, Tensor | None]:
    """Keys or values (N, n, D), or (n, D) if all rows share them, and which are real (N, n).

    A key is hidden if all its numbers are missing.

    Raises:
        ChooseError: the columns do not form keys, or part of a key is missing.
    """
    column = source.columns[names[0]]
    if len(names) == 1 and column.values.ndim >= 2:
        found = as_floats(column, names[0], source)
        if source.table and found.ndim == 2:
            found = found.unsqueeze(-1)  # a list of numbers in a cell: keys of one number
    elif len(names) == 1:
        found = as_floats(column, names[0], source)
        if not source.table:
            return found, None  # `check_shapes` says what is wrong
        key_blocks(names, role, source.roles)
        found = found.reshape(len(found), 1, 1)
    else:
        blocks = key_blocks(names, role, source.roles)
        keys = [stacked({name: source.columns[name] for name in block}, source) for block in blocks]
        found = torch.stack(keys, 1)
    mask = None
    if column.lengths is not None and len(names) == 1:
        mask = torch.arange(found.shape[1]) < torch.from_numpy(column.lengths).unsqueeze(1)
    return hidden_keys(found, mask, role, source)


def hidden_keys(
    found: Tensor, mask: Tensor | None, role: str, source: DataSource
) -> tuple[Tensor, Tensor | None]:
    """Keys with all numbers missing are hidden; NaN becomes 0."""
    gone = found.isnan()
    if not bool(gone.any()):
        return found, mask
    whole = gone.all(-1)
    torn = int((gone.any(-1) & ~whole).sum())
    if torn:
        raise source.error(
            f"{role}: {torn} have some numbers missing and others not. A {role} with all its numbers missing is "
            "hidden; fill in the rest: frame = frame.fillna(frame.mean(numeric_only=True)), or "
            "np.nan_to_num(key)"
        )
    if found.ndim != 3:
        raise source.error(
            f"{role}: {int(gone.sum())} of {found.numel()} numbers are missing (NaN)"
        )
    seen = ~whole if mask is None else mask & ~whole
    return found.nan_to_num(0.0), seen
