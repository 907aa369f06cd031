"""Tasks whose keys attend to one another: sequences of tokens or frames, and plain tables.

N rows, L positions, D numbers of a frame, F columns of a table.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.columns import Column, DataSource
from regard.choosing.tasks.inputs import as_floats, feature_columns, stacked
from regard.choosing.tasks.labels import Answers, as_amounts, as_classes, natural_kind
from regard.choosing.tasks.masks import real_keys
from regard.choosing.tasks.roles import ColumnsByRole, listed, shown
from regard.choosing.tasks.sequence_model import SequenceModel
from regard.text import Text

MOST_TOKENS = 100_000
MOST_COLUMNS = 512
WIDTH = 32
UNKNOWN_ID = 0


def sequence_inputs(
    plan: ColumnsByRole, source: DataSource, notes: list[Text]
) -> tuple[tuple[Tensor, ...], dict[str, Any], tuple[int, ...]]:
    """The inputs (x) or (x, mask), the arguments of `SequenceModel`, and the inputs scaled by position."""
    names = plan.columns["key"]
    column = source.columns[names[0]]
    if len(names) == 1 and column.values.ndim == 1:
        raise one_column(names[0], source)
    if plan.flat or (column.values.ndim == 2 and column.values.dtype.kind == "f"
                     and column.lengths is None and not plan.columns.keys() & {"mask", "lengths"}):  # fmt: skip
        if real := sorted(plan.columns.keys() & {"mask", "lengths"}):
            raise source.error(
                f"{source.roles.option(real[0])} says which keys of a row are real, but here every column is a key of "
                "every row, and a missing number is hidden by itself: leave it out, or give keys as one column of "
                f"lists, {source.roles.option('key', 'frames')}"
            )
        return table_inputs(names, source, notes)
    if column.values.ndim == 2 and (column.is_words or column.is_whole):
        return token_inputs(column, plan, source, notes)
    x = as_floats(column, names[0], source)
    x = x.unsqueeze(-1) if x.ndim == 2 else x
    if x.ndim != 3:
        raise source.error(
            f"{shown(names[0])} must be tokens (rows, length), frames (rows, length, dim) or numbers (rows, "
            f"columns), got {tuple(x.shape)}"
        )
    mask = real_keys(plan, source, x.shape[:2], column.lengths)
    gone = x.isnan().any(-1)
    if bool(gone.any()):  # a frame with a missing number is hidden
        mask = ~gone if mask is None else mask & ~gone
        x = x.nan_to_num(0.0)
    return with_mask(x, mask, source), {"embed": "frames", "size": x.shape[-1]}, ()


def one_column(name: str, source: DataSource) -> Exception:
    """The error for keys that are a single value in each row."""
    column = source.columns[name]
    said = shown(name)
    if column.is_words:
        return source.error(
            f"{said} holds text. Split it into tokens first: frame[{said!r}] = frame[{said!r}].str.lower().str."
            'split(), then frame.to_parquet("mine.parquet")'
        )
    return source.error(
        f"one column, {said}, leaves nothing to attend to; name several columns, a list column of tokens, "
        f"or give {source.roles.option('target')} alone to use all other columns"
    )


def token_inputs(
    column: Column, plan: ColumnsByRole, source: DataSource, notes: list[Text]
) -> tuple[tuple[Tensor, ...], dict[str, Any], tuple[int, ...]]:
    """Ids or words (N, L) as ids from 0."""
    shape = (len(column.values), column.values.shape[1])
    mask = real_keys(plan, source, shape, column.lengths)
    values = column.values.astype(str) if column.is_words else column.values
    seen = values if mask is None else values[mask.numpy()]
    known = np.unique(seen)
    if len(known) > MOST_TOKENS:
        raise source.error(
            f"there are {len(known)} different tokens, {MOST_TOKENS} at most; cut words into pieces, or give "
            "floats (rows, length, dim) if these are measurements"
        )
    if not column.is_words and mask is None and len(known) and int(known[0]) < 0:
        raise source.error(
            f"tokens are 0 or more, but there is {int(known[0])}. If it is padding, say how long rows are: "
            "lengths = (x >= 0).sum(1), saved beside x"
        )
    places = np.searchsorted(known, values).clip(0, len(known) - 1)
    ids = torch.from_numpy(places.astype(np.int64))
    if mask is not None:
        ids = ids.masked_fill(~mask, UNKNOWN_ID)
    return with_mask(ids, mask, source), {"embed": "tokens", "size": len(known)}, ()


def table_inputs(
    names: list[str], source: DataSource, notes: list[Text]
) -> tuple[tuple[Tensor, ...], dict[str, Any], tuple[int, ...]]:
    """Columns of numbers as tokens (N, F, 1); a missing number hides its token."""
    columns = feature_columns(names, source, notes)
    check_ids(columns, source)
    x = stacked(columns, source)
    if x.shape[1] < 2:
        raise source.error(f"one column, {listed(columns)}, leaves nothing to attend to")
    if x.shape[1] > MOST_COLUMNS:
        raise source.error(
            f"{x.shape[1]} columns are too many, {MOST_COLUMNS} at most: every column attends to every other. Name "
            f"fewer: {source.roles.option('key', 'prefix_')}"
        )
    gone = x.isnan()
    mask = None
    if bool(gone.any()):
        mask = ~gone
        share = float(gone.double().mean())
        notes.append(
            Text(
                f"{share:.1%} of the numbers are missing: each is hidden from attention, not taken for 0.",
                f"{share:.1%} 的数值缺失：它们对注意力不可见，而不是当作 0。",
            )
        )
    arguments = {"embed": "columns", "size": x.shape[1]}
    return with_mask(x.nan_to_num(0.0).unsqueeze(-1), mask, source), arguments, (0,)


def check_ids(columns: dict[str, Column], source: DataSource) -> None:
    """Raise ChooseError for a column that counts the rows, which a model could only remember."""
    for name, column in columns.items():
        values = column.values
        if column.is_whole and values.ndim == 1 and len(values) > 2:
            steps = np.diff(np.sort(values.astype(np.int64)))
            if bool((steps == steps[0]).all()) and steps[0] != 0:
                raise source.error(
                    f"column {shown(name)} counts the rows ({int(values[0])}, {int(values[1])}, {int(values[2])}, "
                    f"...), which says nothing about new ones. Leave it out: "
                    f"{source.roles.option('drop', shown(name))}"
                )


def with_mask(x: Tensor, mask: Tensor | None, source: DataSource) -> tuple[Tensor, ...]:
    """The inputs of the model; rows in which nothing is real are an error."""
    if mask is None or bool(mask.all()):
        return (x,)
    check_seen(mask, source)
    return (x, mask)


def check_seen(mask: Tensor, source: DataSource) -> None:
    """Raise ChooseError if a row has nothing to attend to."""
    empty = int((~mask.any(1)).sum())
    if empty:
        raise source.error(
            f"{empty} rows have no key that is real: nothing to attend to. Drop them, for example keep = "
            "lengths > 0"
        )


def sequence_answers(
    column: Column, inputs: tuple[Tensor, ...], kind: str, source: DataSource, notes: list[Text]
) -> tuple[Answers, str, bool]:
    """The target of sequences, its kind, and whether there is one for each position.

    Raises:
        ChooseError: the target does not fit the sequences.
    """
    x, *masks = inputs
    if column.values.ndim > 2 or len(column.values) != len(x):
        raise source.error(
            f"target must be ({len(x)},), one for each row, or ({len(x)}, {x.shape[1]}), one for each position; got "
            f"{column.shape}"
        )
    kind = natural_kind(column, source, notes) if kind == "auto" else kind
    if kind == "ranking":
        raise source.error(
            "ranking needs queries and keys; sequences have classification or regression"
        )
    tags = column.values.ndim == 2 and (
        kind == "classification" or column.values.shape[1] == x.shape[1]
    )
    if tags and column.values.shape[1] != x.shape[1]:
        raise source.error(
            f"tags must be as many as positions, {x.shape[1]}, but rows have {column.values.shape[1]}"
        )
    if tags and masks:
        if kind != "classification":
            raise source.error(
                "numbers for each position need rows of one length: cut the rows to one, or give one number for each row; "
                "classes for each position may differ in length"
            )
        lengths = column.lengths
        if lengths is not None and not np.array_equal(lengths, masks[0].sum(1).numpy()):
            row = int(np.nonzero(lengths != masks[0].sum(1).numpy())[0][0])
            raise source.error(
                f"row {row} has {int(masks[0][row].sum())} positions but {int(lengths[row])} tags"
            )
        column = Column(column.values, masks[0].sum(1).numpy())
    if kind == "classification":
        return as_classes(column, source, notes), kind, tags
    return as_amounts(column, source), kind, tags


def sequence_model(arguments: dict[str, Any], outputs: int, tags: bool) -> Any:
    """The function from a score to the model."""
    return partial(SequenceModel, **arguments, outputs=outputs, width=WIDTH, tags=tags)
