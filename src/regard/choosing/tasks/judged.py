"""The task in two tables, queries and documents, and judgements of which documents are relevant to a query.

Every query becomes a row; its keys are documents that were judged, and others drawn at random, which count as not
relevant. N queries, n documents for each, M documents in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.columns import Column, DataSource
from regard.choosing.tasks.delimited import read_judgements
from regard.choosing.tasks.files import check_rows, named_rows
from regard.choosing.tasks.frames import whole_table
from regard.choosing.tasks.header import BEGINNINGS
from regard.choosing.tasks.inputs import check_present, feature_columns, stacked
from regard.choosing.tasks.models import Match
from regard.choosing.tasks.roles import Asked, DataRoles, columns_of, listed, shown
from regard.choosing.tasks.sizes import check_size
from regard.choosing.tasks.task import Task
from regard.choosing.training.splits import split_rows
from regard.text import Text

KEYS = 16  # documents of a query
NAMED = ("group", "split")  # what columns of the queries may say beside their numbers
NOTHING: Mapping[str, Asked] = {}

IDS = (
    "id",
    "qid",
    "query_id",
    "queryid",
    "docid",
    "doc_id",
    "document_id",
    "pid",
    "item_id",
    "user_id",
    "_id",
)
JUDGED = {
    "query": ("query", "qid", "query_id", "queryid", "query-id", "user", "user_id", "q"),
    "document": (
        "document",
        "docid",
        "doc_id",
        "document_id",
        "corpus-id",
        "doc",
        "pid",
        "item",
        "item_id",
        "d",
    ),
    "relevance": ("relevance", "rel", "score", "label", "grade", "rating", "judgement", "judgment"),
}
RANKING = Text("your data, ranking documents for queries", "你的数据，为查询排序文档")


class RowsById(NamedTuple):
    """The rows of a table: their ids, their numbers (M, D), and columns of names that are no input."""

    ids: dict[str, int]
    numbers: Tensor
    named: dict[str, np.ndarray]


def judged_task(
    queries: Any,
    documents: Any,
    judgements: Any,
    by_flag: bool,
    name: str = "",
    *,
    group: Asked = None,
    split: Asked = None,
    drop: Asked = None,
) -> Task:
    """The task of ranking documents for queries.

    Args:
        queries: a frame, a dict of columns or a path: ids and numbers.
        documents: the same for documents.
        judgements: ids of a query and a document with a relevance; a table, or a path to TREC's qrels.
        by_flag: messages speak of flags.
        name: of the task.
        group: a column of `queries`; queries of a group stay in one part.
        split: a column of `queries` that says train, validation or test.
        drop: columns of `queries` and `documents` to leave out.

    Raises:
        ChooseError: a table cannot be read, or ids do not fit together.
    """
    notes: list[Text] = []
    tables = {}
    for what, given in (("queries", queries), ("documents", documents)):
        roles = roles_of(what, given, by_flag)
        tables[what] = DataSource(whole_table(given, roles), roles)
    leave_out(drop, tables["queries"], tables["documents"])
    asked = described(
        "queries", tables["queries"], notes, dict(zip(NAMED, (group, split), strict=True))
    )
    known = described("documents", tables["documents"], notes)
    found = judgements_of(judgements, by_flag)
    roles = roles_of("judgements", judgements, by_flag)
    if not found:
        raise roles.error("has no judgements")
    relevant = joined(found, asked, known, roles, notes)
    rows = sorted(q for q, docs in relevant.items() if any(rel > 0 for rel in docs.values()))
    if not rows:
        raise roles.error("no query has a document of relevance above 0: nothing to learn")
    check_rows(len(rows), DataSource({}, roles))
    keys = min(KEYS, len(known.ids))
    size = len(rows) * keys * known.numbers.shape[1] * 4
    check_size(size, roles.where, f" for {len(rows)} queries with {keys} documents each")
    chosen, mask, target = drawn(rows, relevant, len(known.ids), keys)
    arrays: tuple[Tensor, ...] = (asked.numbers[rows], known.numbers[chosen])
    if not bool(mask.all()):
        arrays = (*arrays, mask)
    told(notes, len(rows), keys)
    dims = (asked.numbers.shape[1], known.numbers.shape[1])
    wide = max(min(*dims, 64), 4)
    said = {role: names[rows] for role, names in asked.named.items()}
    parts = split_rows((*arrays, target), said.get("group"), said.get("split"))
    return Task(
        name or "ranking", RANKING, Match, parts, dims,
        options={"metric": "ndcg", "width": wide, "hidden": (wide,)}, notes=tuple(notes),
    )  # fmt: skip


def told(notes: list[Text], rows: int, keys: int) -> None:
    """Add what a row is, and what counts as not relevant."""
    notes.append(
        Text(
            f"{rows} queries with up to {keys} documents each: those judged, and others drawn at random, which "
            "count as not relevant.",
            f"{rows} 个查询，每个最多 {keys} 篇文档：有标注的，以及随机抽取、视为不相关的。",
        )
    )


def roles_of(what: str, given: Any, by_flag: bool) -> DataRoles:
    """How messages speak of a table."""
    where = shown(Path(given)) if isinstance(given, (str, Path)) else what
    return DataRoles(where=f"--{what} {where}" if by_flag else where, by_flag=by_flag, whole=True)


def leave_out(drop: Asked, *tables: DataSource) -> None:
    """Remove columns from the tables.

    Raises:
        ChooseError: a column is in none of them.
    """
    if drop is None:
        return
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    for name in columns_of("drop", drop, names, tables[0].roles):
        for table in tables:
            table.columns.pop(name, None)
    for table in tables:
        if not table.columns:
            raise table.error(f"{table.roles.option('drop')} leaves no column")


def described(
    what: str, source: DataSource, notes: list[Text], named: Mapping[str, Asked] = NOTHING
) -> RowsById:
    """The rows of a table: a column of ids, and numbers in all other columns but those of `named`.

    Raises:
        ChooseError: ids are missing or not unique, or another column holds no numbers.
    """
    columns, roles = source.columns, source.roles
    apart = {
        role: columns_of(role, asked, list(columns), roles)[0]
        for role, asked in named.items()
        if asked is not None
    }
    free = [x for x in columns if x not in apart.values()]
    if not free:
        raise roles.error(f"has no column beside {listed(apart.values())}")
    name = next((x for x in free if x.lower() in IDS), free[0])
    ids = words_of(columns[name], name, roles)
    if len(set(ids)) < len(ids):
        twice = next(x for x in ids if ids.count(x) > 1)
        raise roles.error(
            f"ids in {shown(name)} must be unique, but {shown(twice)!r} is there twice"
        )
    rest = [x for x in free if x != name]
    if not rest:
        raise roles.error(f"has ids in {shown(name)}, but no numbers beside them")
    numbers = stacked(feature_columns(rest, source, notes), source)
    check_present(numbers, what, source, rest)
    return RowsById(
        {x: i for i, x in enumerate(ids)},
        numbers,
        {role: named_rows(column, source) for role, column in apart.items()},
    )


def words_of(column: Column, name: str, roles: DataRoles) -> list[str]:
    """Ids as words: 7 and "7" are the same."""
    values = column.values
    if values.ndim != 1 or (values.dtype.kind == "f" and not np.all(values == np.floor(values))):
        raise roles.error(f"{shown(name)} must hold ids, words or whole numbers")
    if column.is_words and any(x is None for x in values):
        raise roles.error(f"{shown(name)} must hold ids, but some are missing")
    return [str(int(x)) if values.dtype.kind in "iuf" else str(x).strip() for x in values.tolist()]


def judgements_of(given: Any, by_flag: bool) -> list[tuple[str, str, float]]:
    """Judgements as (query, document, relevance).

    Raises:
        ChooseError: columns are missing, or a relevance is no number.
    """
    roles = roles_of("judgements", given, by_flag)
    if isinstance(given, (str, Path)) and (
        Path(given).suffix not in BEGINNINGS or is_qrels(Path(given))
    ):
        rows = qrels(Path(given), roles)
    else:
        columns = whole_table(given, roles)
        picked = judged_columns(columns, roles)
        query, document = (words_of(columns[x], x, roles) for x in picked[:2])
        relevance = ["1"] * len(query)
        if len(picked) == 3:
            values = columns[picked[2]].values
            relevance = [str(x) for x in values.tolist()]
        rows = list(zip(query, document, relevance, strict=True))
    found = []
    for query, document, relevance in rows:
        try:
            amount = float(relevance)
        except ValueError:
            amount = math.nan
        if not math.isfinite(amount):
            raise roles.error(
                f"relevance must be numbers, 0 for not relevant, but there is {shown(relevance)!r}"
            )
        found.append((query, document, max(amount, 0.0)))  # TREC marks spam by -2
    return found


def is_qrels(path: Path) -> bool:
    """Whether a text is four words in a line, the second and last numbers, as TREC's judgements."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            cells = file.readline(1000).split()
    except (OSError, UnicodeDecodeError):
        return False
    return len(cells) == 4 and cells[1] in ("0", "Q0") and cells[3].lstrip("-").isdigit()


def qrels(path: Path, roles: DataRoles) -> list[tuple[str, str, str]]:
    """TREC's judgements in a text of any suffix."""
    try:
        return read_judgements(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise roles.error(f"cannot be read: {why}") from None


def judged_columns(columns: dict[str, Column], roles: DataRoles) -> list[str]:
    """The columns of query, document and relevance: by usual names, else the first three.

    Without a column of relevances every judgement says that a document is relevant.
    """
    names = {x.lower(): x for x in columns}
    found = [next((names[x] for x in usual if x in names), None) for usual in JUDGED.values()]
    if found[0] is not None and found[1] is not None:
        return [x for x in found if x is not None]
    if len(columns) in (2, 3):
        return list(columns)
    raise roles.error(
        f"which columns are query, document and relevance? It has {listed(columns)}; name them query, document, "
        "relevance, or give lines as TREC does: 7 0 doc3 1"
    )


def joined(
    found: list[tuple[str, str, float]],
    asked: RowsById,
    known: RowsById,
    roles: DataRoles,
    notes: list[Text],
) -> dict[int, dict[int, float]]:
    """Relevances by row of the query and row of the document.

    Raises:
        ChooseError: no judgement is about a query and a document of the tables.
    """
    relevant: dict[int, dict[int, float]] = {}
    lost = unlike = 0
    for query, document, relevance in found:
        if query in asked.ids and document in known.ids:
            own, which = relevant.setdefault(asked.ids[query], {}), known.ids[document]
            unlike += own.get(which, relevance) != relevance
            own[which] = relevance
        else:
            lost += 1
    if not relevant:
        given = found[0]
        raise roles.error(
            f"no judgement is about a query and a document of the tables: it has query {shown(given[0])!r} and "
            f"document {shown(given[1])!r}, the tables {shown(next(iter(asked.ids)))!r} and "
            f"{shown(next(iter(known.ids)))!r}"
        )
    if unlike:
        notes.append(
            Text(
                f"{unlike} of the judgements contradict{'s' if unlike == 1 else ''} an earlier one of the same query and "
                "document; the last counts.",
                f"{unlike} 条标注与同一查询和文档的先前标注矛盾；以最后一条为准。",
            )
        )
    if lost:
        notes.append(
            Text(
                f"{lost} of {len(found)} judgements name a query or a document that is in no table.",
                f"{len(found)} 条标注中有 {lost} 条的查询或文档不在表中。",
            )
        )
    return relevant


def drawn(
    rows: list[int], relevant: dict[int, dict[int, float]], documents: int, keys: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Documents (N, n) of each query, which are real (N, n), and their relevances (N, n)."""
    draw = np.random.default_rng(0)  # a resumed run must see the same documents
    chosen, mask = np.zeros((len(rows), keys), np.int64), np.zeros((len(rows), keys), bool)
    target = np.zeros((len(rows), keys), np.float32)
    for place, query in enumerate(rows):
        judged = relevant[query]
        good = draw.permutation([d for d, rel in judged.items() if rel > 0])[: max(keys // 2, 1)]
        bad = draw.permutation([d for d, rel in judged.items() if rel <= 0])
        picked = [*good.tolist(), *bad.tolist()[: keys - len(good)]]
        # Unjudged documents; of a small table there may be fewer than are wanted.
        more = (
            draw.permutation(documents)
            if documents <= 4 * keys
            else draw.choice(documents, 3 * keys)
        )
        fresh = [d for d in dict.fromkeys(more.tolist()) if d not in judged]
        picked += fresh[: keys - len(picked)]
        # Random order: a model must not learn that relevant documents come first.
        order = draw.permutation(len(picked))
        count = len(picked)
        chosen[place, :count] = np.array(picked)[order]
        mask[place, :count] = True
        target[place, :count] = np.array([judged.get(d, 0.0) for d in picked], np.float32)[order]
    return torch.from_numpy(chosen), torch.from_numpy(mask), torch.from_numpy(target)
