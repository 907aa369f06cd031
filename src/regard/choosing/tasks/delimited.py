"""Tables of text: .csv and .tsv, and judgements as TREC writes them."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from regard.choosing.tasks.columns import Column, rows_column
from regard.choosing.tasks.header import delimiter_of, header_names
from regard.choosing.tasks.roles import DataRoles, listed, shown
from regard.choosing.tasks.sizes import check_size
from regard.choosing.training.errors import ChooseError

# Cells that say that a value is missing, in lower case.
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "<na>", "nat", "-"}
TRUTHS = {"true": True, "false": False}
UNPACKED = 12  # bytes in memory for each byte of a text: every cell is an object for a while
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_delimited(path: Path, roles: DataRoles) -> dict[str, Column]:
    """The columns of a .csv or .tsv file with a line of names.

    Raises:
        ChooseError: there is no line of names, or a line has another number of cells.
    """
    check_size(UNPACKED * path.stat().st_size, shown(path))
    lines = cells_of(path)
    names = header_names(next(lines, (0, []))[1])
    check_header(names, path)
    rows = []
    for number, row in lines:
        if len(row) != len(names):
            raise ChooseError(
                f"{shown(path)}: line {number} has {len(row)} cells, but there are {len(names)} columns"
            )
        rows.append(row)
    columns = zip(*rows, strict=True) if rows else [() for _ in names]
    return {
        name: typed(list(cells), name, roles) for name, cells in zip(names, columns, strict=True)
    }


def cells_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file with their numbers, each a list of cells; blank lines are left out."""
    last = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Strict, or a quote that is never closed would take the rest of the file as one cell.
            reader = csv.reader(file, delimiter=delimiter_of(first, path.suffix), strict=True)
            for row in reader:
                last = reader.line_num
                if any(cell.strip() for cell in row):
                    yield reader.line_num, row
    except UnicodeDecodeError as error:
        wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins
        raise ChooseError(
            f"{shown(path)}: is no text in UTF-8 (byte {error.start}); save it as UTF-8, or: "
            f'pandas.read_csv("mine.csv", encoding="{"utf-16" if wide else "latin-1"}").to_csv("mine.csv", index=False)'
        ) from None
    except csv.Error as error:
        if "end of data" in str(error):
            raise ChooseError(
                f"{shown(path)}: a quote that opens on line {last + 1} is never closed"
            ) from None
        raise ChooseError(
            f"{shown(path)}: is not a valid {path.suffix} file: line {last + 1}: {error}"
        ) from None


def check_header(names: list[str], path: Path) -> None:
    """Raise ChooseError unless the first line names every column once."""
    if not names:
        raise ChooseError(f"{shown(path)}: is empty")
    if sum(bool(NUMBER.fullmatch(name)) for name in names) > len(names) / 2:
        raise ChooseError(
            f"{shown(path)}: its first line is {listed(names[:4])}; it must name the columns, for example "
            f"{','.join(f'x_{i}' for i in range(min(len(names) - 1, 3)))},...,label"
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ChooseError(f"{shown(path)}: more than one column is named {listed(twice)}")


def typed(cells: list[str], name: str, roles: DataRoles) -> Column:
    """A column of cells: whole numbers, numbers, truth values, lists or words."""
    # Python reads 1_0 as ten; in a table it is a name.
    names = any("_" in cell for cell in cells)
    if cells and not names and NUMBER.fullmatch(cells[0].strip()):
        for kind in (np.int64, np.float64):  # most columns: no need to look at every cell
            with contextlib.suppress(ValueError, OverflowError):
                return Column(np.array(cells).astype(kind))
    bare = [cell.strip() for cell in cells]
    gone = [cell.lower() in MISSING for cell in bare]
    present = [cell for cell, no in zip(bare, gone, strict=True) if not no]
    if present and all(cell.startswith("[") for cell in present):
        return rows_column([[] if no else numbers_of(cell, name, roles) for cell, no in
                            zip(bare, gone, strict=True)], name, roles)  # fmt: skip
    if present and {cell.lower() for cell in present} <= TRUTHS.keys():
        if len(present) == len(bare):
            return Column(np.array([TRUTHS[cell.lower()] for cell in bare]))
        return Column(np.array([np.nan if no else float(TRUTHS[cell.lower()]) for cell, no in
                                zip(bare, gone, strict=True)]))  # fmt: skip
    if names:
        return words_column(bare, gone)
    if present and len(present) == len(bare):
        with contextlib.suppress(ValueError, OverflowError):
            return Column(np.array(bare).astype(np.int64))
    try:
        filled = ["nan" if no else cell for cell, no in zip(bare, gone, strict=True)]
        return Column(np.array(filled).astype(np.float64))
    except ValueError:
        return words_column(bare, gone)


def words_column(cells: list[str], gone: list[bool]) -> Column:
    """A column of words; None where one is missing."""
    words = np.empty(len(cells), object)
    words[:] = [None if no else cell for cell, no in zip(cells, gone, strict=True)]
    return Column(words)


def numbers_of(cell: str, name: str, roles: DataRoles) -> list:
    """The list in a cell, such as [0.1, 0.2] or NumPy's [0.1 0.2]."""
    try:
        return json.loads(cell)
    except json.JSONDecodeError:
        try:
            return [float(x) for x in cell.strip("[]").replace(",", " ").split()]
        except ValueError:
            raise roles.error(
                f"{shown(name)}: {shown(cell)} is no list of numbers such as [0.1, 0.2]"
            ) from None


def read_judgements(path: Path) -> list[tuple[str, str, str]]:
    """Lines "query 0 document relevance", as TREC writes judgements, as (query, document, relevance)."""
    check_size(UNPACKED * path.stat().st_size, shown(path))
    found = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            cells = line.split()
            if cells and len(cells) != 4:
                raise ChooseError(
                    f"{shown(path)}: line {number} has {len(cells)} words; judgements are lines "
                    '"query 0 document relevance"'
                )
            if cells:
                found.append((cells[0], cells[2], cells[3]))
    return found
