"""The task in a user's data: a file (`--data FILE`), a frame, or arrays by name.

N rows, n keys per row, D_q, D_k and D_v dims of a query, a key and a value, m numbers of an answer.

    query (N, D_q)
    key (N, n, D_k), or (n, D_k) if all rows share the keys
    value (N, n, D_v) or (n, D_v); optional, if the answer is computed from what keys carry
    mask (N, n) or lengths (N,), if rows have different numbers of keys
    target with a value: (N,) classes or numbers, or (N, m) numbers
    target without a value: (N,) index of the right key, or (N, n) relevance of each key

Without a query the keys attend to one another: `sequences.py`. In a table the columns of these are named by the
user: `roles.py`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.columns import DataSource
from regard.choosing.tasks.inputs import check_present, feature_columns, keys_tensor, stacked
from regard.choosing.tasks.labels import as_amounts, as_classes, natural_kind, target_column
from regard.choosing.tasks.masks import real_keys
from regard.choosing.tasks.models import Match, ReadValue
from regard.choosing.tasks.reading import read_source
from regard.choosing.tasks.roles import ColumnsByRole, DataRoles, layout, listed, printable, shown
from regard.choosing.tasks.sequences import (
    WIDTH,
    check_seen,
    sequence_answers,
    sequence_inputs,
    sequence_model,
)
from regard.choosing.tasks.sizes import check_size
from regard.choosing.tasks.task import Task
from regard.choosing.training.splits import split_rows
from regard.text import Text

KINDS_OF_DATA = {
    "classification": Text("your data, classification", "你的数据，分类"),
    "regression": Text("your data, regression", "你的数据，回归"),
    "ranking": Text("your data, ranking", "你的数据，排序"),
}
METRICS = {"classification": "accuracy", "regression": "r2", "ranking": "ndcg"}
FEWEST_ROWS = 40


def read_task(path: Path, kind: str = "auto", roles: DataRoles | None = None) -> Task:
    """The task in a file; `kind` is "auto" or a key of `KINDS_OF_DATA`.

    Raises:
        ChooseError: the file cannot be read, or its columns do not form a task.
    """
    roles = roles or DataRoles(where=shown(path))
    return task_of(read_source(path, roles), kind, printable(path.name))


def task_of(source: DataSource, kind: str, name: str) -> Task:
    """The task in columns.

    Raises:
        ChooseError: they do not form a task.
    """
    plan = layout(source.names or source.columns, source.roles, source.table)
    notes: list[Text] = []
    if plan.unused:
        notes.append(
            Text(
                f"Columns that are not used: {listed(plan.unused)}.",
                f"未使用的列：{listed(plan.unused)}。",
            )
        )
    make = paired_task if "query" in plan.columns else self_task
    return make(plan, source, kind, name, notes)


def self_task(
    plan: ColumnsByRole, source: DataSource, kind: str, name: str, notes: list[Text]
) -> Task:
    """The task of sequences or of a plain table."""
    inputs, arguments, positional = sequence_inputs(plan, source, notes)
    check_rows(len(inputs[0]), source)
    column = target_column(plan.columns["target"], source)
    answers, kind, tags = sequence_answers(column, inputs, kind, source, notes)
    target = answers.values
    outputs = answers.classes or (1 if tags or target.ndim == 1 else target.shape[1])
    if not answers.classes and (tags or target.ndim == 1):
        target = target.unsqueeze(-1)
    build = sequence_model(arguments, outputs, tags)
    return finished_task(
        name, kind, build, (*inputs, target), (WIDTH, WIDTH), plan, source, notes, positional
    )


def paired_task(
    plan: ColumnsByRole, source: DataSource, kind: str, name: str, notes: list[Text]
) -> Task:
    """The task of a query and its keys in each row."""
    query = query_tensor(plan, source, notes)
    check_rows(len(query), source)
    found: dict[str, Tensor] = {"query": query}
    mask = None
    for role in ("key", "value"):
        if role in plan.columns:
            found[role], seen = keys_tensor(plan.columns[role], role, source)
            if seen is not None:
                mask = seen if mask is None else agreed(mask, seen, source)
    found = check_shapes(found, source)
    key, value = found["key"], found.get("value")
    given = real_keys(plan, source, tuple(key.shape[:2]))
    mask = given if mask is None else mask if given is None else mask & given
    if mask is not None and bool(mask.all()):
        mask = None
    column = target_column(plan.columns["target"], source)
    if len(column.values) != len(query) or column.values.ndim > 2:
        raise source.error(f"target must have {len(query)} rows, got {column.shape}")
    inputs: tuple[Tensor, ...] = (query, key) if value is None else (query, key, value)
    if mask is not None:
        check_seen(mask, source)
        inputs = (*inputs, mask)
    dims = (query.shape[-1], key.shape[-1])
    if value is None:
        kind, target = picked_key(column, kind, key.shape[1], mask, source)
        build: Any = Match
    else:
        kind = natural_value_kind(column, kind, source, notes)
        amounts = kind == "regression"
        answers = as_amounts(column, source) if amounts else as_classes(column, source, notes)
        target = answers.values.reshape(len(query), -1) if amounts else answers.values
        outputs = answers.classes or target.shape[1]
        build = partial(ReadValue, value_dim=value.shape[-1], outputs=outputs, width=32)
    return finished_task(name, kind, build, (*inputs, target), dims, plan, source, notes)


def query_tensor(plan: ColumnsByRole, source: DataSource, notes: list[Text]) -> Tensor:
    """The queries (N, D_q)."""
    names = plan.columns["query"]
    first = source.columns[names[0]]
    if len(names) == 1 and (first.values.ndim > 2 or (first.shared and first.values.ndim != 2)):
        raise source.error(f"query must be (rows, dim), got {first.shape}")
    columns = feature_columns(names, source, notes)
    query = stacked(columns, source)
    check_present(query, "query", source, list(columns))
    if query.shape[1] == 0:
        raise source.error(f"query is empty: its shape is {tuple(query.shape)}")
    return query


def agreed(mask: Tensor, seen: Tensor, source: DataSource) -> Tensor:
    """The keys that are real by both key and value.

    Raises:
        ChooseError: they have different shapes.
    """
    if mask.shape != seen.shape:
        raise source.error(f"{mask.shape[1]} keys but {seen.shape[1]} values in a row")
    return mask & seen


def check_rows(rows: int, source: DataSource) -> None:
    """Raise ChooseError if there are too few rows."""
    if rows < FEWEST_ROWS:
        raise source.error(
            f"{rows} rows are too few to train and test on; give at least {FEWEST_ROWS}"
        )


def check_shapes(arrays: dict[str, Tensor], source: DataSource) -> dict[str, Tensor]:
    """The arrays with consistent shapes; keys and values that all rows share are expanded to each row.

    Raises:
        ChooseError: the shapes do not fit together.
    """
    rows = len(arrays["query"])
    for name in ("key", "value"):
        x = arrays.get(name)
        if x is None:
            continue
        if x.ndim == 2 and not source.table:
            # A view, but the parts of the data are copies: count the memory before they are made.
            x = arrays[name] = x.expand(rows, *x.shape)
            what = f" for {name}, {' x '.join(map(str, x.shape))} numbers when every row has it"
            check_size(x.numel() * x.element_size(), source.roles.where, what)
        if x.ndim != 3 or len(x) != rows:
            raise source.error(
                f"{name} must be ({rows}, keys, dim), or (keys, dim) for all rows, got {tuple(x.shape)}"
            )
    keys = arrays["key"].shape[1]
    if keys < 2:
        raise source.error(
            f"{keys} key in a row leaves nothing to attend to. Several keys have numbered columns, k0_x, k1_x; "
            "keys in a table of their own need --queries, --documents and --judgements"
        )
    if "value" in arrays and arrays["value"].shape[1] != keys:
        raise source.error(f"{keys} keys but {arrays['value'].shape[1]} values in a row")
    for name, x in arrays.items():
        if 0 in x.shape:
            raise source.error(f"{name} is empty: its shape is {tuple(x.shape)}")
    return arrays


def picked_key(
    column: Any, kind: str, keys: int, mask: Tensor | None, source: DataSource
) -> tuple[str, Tensor]:
    """The kind and target of a task without a value: which key is right, or how relevant each is.

    Raises:
        ChooseError: the target does not suit.
    """
    values = column.values
    natural = "ranking" if values.ndim == 2 else "classification"
    if kind not in ("auto", natural):
        raise source.error(
            f"{kind} does not go with its target of shape {values.shape} without a value; that is a "
            f"task of {natural}"
        )
    if column.is_words or values.dtype.kind not in "iubf":
        raise source.error(
            f"without a value, target says which of the {keys} keys is right, 0 to {keys - 1}, but it holds words "
            f"such as {shown(str(values.ravel()[0]))!r}. If it is what keys carry, name their columns: "
            f"{source.roles.option('value', 'v')}; if each row has one label, give "
            f"{source.roles.option('target')} alone"
        )
    if natural == "ranking":
        return natural, relevances(values, keys, mask, source)
    if values.dtype.kind == "f" and not np.all(values == np.floor(values)):
        raise source.error(
            f"classes are whole numbers, the right key of {keys}, but target holds "
            f"{values[values != np.floor(values)][0]:g}"
        )
    low, high = int(values.min()), int(values.max())
    if low == high:
        raise source.error(f"target has one class only, {low}: nothing to learn")
    if low < 0 or high >= keys:
        raise source.error(
            f"without a value, target says which of the {keys} keys is right: 0 to {keys - 1}, but it holds {low} to "
            f"{high}"
        )
    target = torch.from_numpy(values.astype(np.int64))
    if mask is not None:
        hidden = int((~mask.gather(1, target.unsqueeze(1))).sum())
        if hidden:
            raise source.error(
                f"in {hidden} rows the right key is one that is hidden; drop these rows"
            )
    return natural, target


def relevances(values: np.ndarray, keys: int, mask: Tensor | None, source: DataSource) -> Tensor:
    """Relevances (N, n) of 0 or more; those of hidden keys are 0."""
    low = float(values.min()) if values.size else 0.0
    if values.shape[1] != keys or low < 0:
        raise source.error(
            f"a target for ranking must be ({len(values)}, {keys}) relevances of 0 or more, got {values.shape} with "
            f"a smallest value of {low:g}"
        )
    found = torch.from_numpy(values.astype(np.float32))
    found = found if mask is None else found.masked_fill(~mask, 0.0)
    if float(found.std()) == 0:
        raise source.error(f"every target is the same, {float(found.flatten()[0]):g}")
    return found


def natural_value_kind(column: Any, kind: str, source: DataSource, notes: list[Text]) -> str:
    """The kind of a task with a value.

    Raises:
        ChooseError: the target does not suit the kind that was asked for.
    """
    if kind == "auto":
        several = column.values.ndim == 2
        kind = "regression" if several else natural_kind(column, source, notes)
    if kind == "ranking" or (kind == "classification" and column.values.ndim == 2):
        natural = "regression" if column.values.ndim == 2 else "classification or regression"
        raise source.error(
            f"{kind} does not go with its target of shape {column.shape} and a value; that is a task of {natural}"
        )
    return kind


def finished_task(
    name: str,
    kind: str,
    build: Any,
    arrays: tuple[Tensor, ...],
    dims: tuple[int, int],
    plan: ColumnsByRole,
    source: DataSource,
    notes: list[Text],
    positional: tuple[int, ...] = (),
) -> Task:
    """The task from its arrays (inputs ..., target), split as the user says."""
    columns = [plan.one(role) for role in ("group", "split")]
    group, split = (None if one is None else named_rows(one, source) for one in columns)
    # Projections as wide as the narrower side, but at most 64, to keep trainings short.
    wide = max(min(*dims, 64), 4)
    return Task(
        name, KINDS_OF_DATA[kind], build, split_rows(arrays, group, split, positional), dims,
        options={"metric": METRICS[kind], "width": wide, "hidden": (wide,)}, notes=tuple(notes),
    )  # fmt: skip


def named_rows(name: str, source: DataSource) -> np.ndarray:
    """A column of names, one for each row."""
    values = source.columns[name].values
    if values.dtype.kind == "O" and any(x is None for x in values.ravel()):
        gone = sum(x is None for x in values.ravel())
        raise source.error(
            f"{shown(name)}: {gone} of {len(values)} rows have no entry; name them: frame[{shown(name)!r}] = "
            f'frame[{shown(name)!r}].fillna("none")'
        )
    return values.astype(str) if values.dtype.kind == "O" else values
