"""A set from three tables of the user: queries, documents, and judgements that say which document answers which query.

The folder has `queries`, `documents` and `judgements`, each as `.csv` or `.tsv` with a line of names. Queries and
documents have a column `id` and a column `text`, or columns of numbers in its place; judgements have `query`,
`document` and, if not all of them are relevant, `grade`, where 0 is not relevant.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from regard.recipes.retrieve.documents import Documents, Queries
from regard.recipes.retrieve.ids import Ids
from regard.recipes.sources import DataError

ENDINGS = {".csv": ",", ".tsv": "\t"}


def read_tables(folder: Path) -> tuple[Queries, list[list[str]]]:
    """The judged queries of a folder, and for each the ids of its relevant documents.

    Raises:
        DataError: a table or column is missing, or an id is unknown or there twice.
    """
    asked, documents = table(folder, "queries"), table(folder, "documents")
    names = column(documents, "id", "documents")
    found = Documents(names, content(documents, "documents"))
    every = Queries(content(asked, "queries"), found)
    queries = Ids(np.array(column(asked, "id", "queries")), "query")
    relevant: dict[str, list[str]] = defaultdict(list)
    known = set(names)
    for number, row in enumerate(table(folder, "judgements"), 2):
        query, document = (cell(row, one, "judgements", number) for one in ("query", "document"))
        if query not in set(queries.names.tolist()):
            raise DataError(f"judgements, line {number}: there is no query {query!r}")
        if document not in known:
            raise DataError(f"judgements, line {number}: there is no document {document!r}")
        if grade(row.get("grade"), number) > 0:
            relevant[query].append(document)
    judged = [n for n, name in enumerate(queries.names.tolist()) if relevant[str(name)]]
    if len(judged) < 3:
        raise DataError(
            f"{folder} has {len(judged)} queries with a relevant document: 3 are needed"
        )
    return every.take(judged), [relevant[str(queries.names[n])] for n in judged]


def grade(given: str | None, number: int) -> float:
    """How relevant a document is: 1 where nothing is said.

    Raises:
        DataError: it is no number.
    """
    try:
        return float(given or 1)
    except ValueError:
        raise DataError(
            f"judgements, line {number}: grade must be a number, got {given!r}"
        ) from None


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table.

    Raises:
        DataError: there is no such table, or it is empty.
    """
    for ending, delimiter in ENDINGS.items():
        path = folder / (name + ending)
        if path.is_file():
            try:
                with path.open(encoding="utf-8-sig", newline="") as file:
                    rows = list(csv.DictReader(file, delimiter=delimiter))
            except (UnicodeDecodeError, csv.Error) as error:
                raise DataError(f"{path} cannot be read: {error}") from None
            if not rows:
                raise DataError(f"{path} has no rows")
            return rows
    raise DataError(
        f"{folder} has no {name}.csv or {name}.tsv: name the folder of the three tables by --data"
    )


def column(rows: list[dict[str, str]], name: str, where: str) -> list[str]:
    """A column, without empty cells."""
    return [cell(row, name, where, number) for number, row in enumerate(rows, 2)]


def cell(row: dict[str, str], name: str, where: str, number: int) -> str:
    """One cell.

    Raises:
        DataError: there is no such column, or the cell is empty.
    """
    if name not in row:
        raise DataError(f"{where} has no column {name!r}: it has {', '.join(map(str, row))}")
    if not (row[name] or "").strip():
        raise DataError(f"{where}, line {number}: {name} is empty")
    return row[name].strip()


def content(rows: list[dict[str, str]], where: str) -> list[str] | np.ndarray:
    """Texts, or the numbers of all columns but the id.

    Raises:
        DataError: a cell is no number.
    """
    if "text" in rows[0]:
        return [row["text"] or "" for row in rows]
    names = [one for one in rows[0] if one != "id"]
    if not names:
        raise DataError(f"{where} has neither a column 'text' nor columns of numbers")
    try:
        return np.array([[float(row[one]) for one in names] for row in rows], np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} has no column 'text', and a cell is no number: {error}") from None
