"""Columns of Parquet files and of Arrow tables, without a Python object for each number. Needs pyarrow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from regard.choosing.tasks.columns import Column, objects_column, padded
from regard.choosing.tasks.roles import DataRoles, checked_names, needed, shown
from regard.choosing.tasks.sizes import check_size

WIDEST = 8  # bytes of the widest number


def read_parquet(path: Path, roles: DataRoles) -> dict[str, Column]:
    """The columns of a .parquet file: numbers, words, lists of them, or lists of lists."""
    import pyarrow.parquet as parquet

    about = parquet.read_metadata(path)
    names = needed(parquet_names(path, roles), roles)  # others are not read
    check_size(WIDEST * numbers_in(about, names), shown(path))
    return arrow_columns(parquet.read_table(path, columns=names), roles)


def parquet_names(path: Path, roles: DataRoles) -> list[str]:
    """The names of all columns of a .parquet file."""
    import pyarrow.parquet as parquet

    return checked_names(parquet.read_schema(path).names, roles)


def numbers_in(about: Any, names: list[str]) -> int:
    """Number of values in these columns of a file; compression makes its size a poor estimate."""
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(x.num_values for x in columns if x.path_in_schema.partition(".")[0] in names)


def arrow_columns(table: Any, roles: DataRoles) -> dict[str, Column]:
    """The columns of an Arrow table."""
    found = {}
    for name in table.column_names:
        whole = table.column(name).combine_chunks()
        # An empty table has no chunk, and some versions of pyarrow give a chunked column with one.
        chunk = whole.chunk(0) if hasattr(whole, "num_chunks") and whole.num_chunks else whole
        found[name] = arrow_column(chunk, name, roles)
    return found


def arrow_column(column: Any, name: str, roles: DataRoles) -> Column:
    """A column of numbers, words, lists or lists of lists.

    Raises:
        ChooseError: it holds something else, or lists whose inner lists differ in length.
    """
    import pyarrow as arrow

    is_a, depths = arrow.types, []
    rows = len(column)
    while True:
        kind = column.type
        if isinstance(column, arrow.ExtensionArray):
            column = column.storage
        elif is_a.is_dictionary(kind):
            column = decoded(column)
        elif is_list(kind):
            if is_a.is_fixed_size_list(kind) and column.null_count:
                column = column.cast(arrow.list_(kind.value_type))
            depths.append(np.array(column.value_lengths().fill_null(0), np.int64))
            column = column.flatten()
        else:
            break
    if len(depths) > 2:
        raise roles.error(f"{shown(name)} holds lists in lists in lists; keys are lists of numbers")
    flat = plain_entries(column, name, roles, nested=bool(depths))
    if not depths:
        return flat if isinstance(flat, Column) else Column(flat)
    values = flat.values
    if len(depths) == 2:
        widths = np.unique(depths[1])
        if len(widths) > 1:
            raise roles.error(
                f"{shown(name)}: keys have rows of different lengths, {widths.min()} to {widths.max()} numbers; a "
                "row may have any number of keys, but all keys the same width: pad or cut them"
            )
        width = int(widths[0]) if len(widths) else 0
        values = values.reshape(len(depths[1]), width)
    assert len(depths[0]) == rows
    if not math.prod(values.shape):
        raise roles.error(f"{shown(name)} is empty: it holds empty lists only")
    return padded(values, depths[0], roles)


def decoded(column: Any) -> Any:
    """The entries of a column of categories."""
    import pyarrow as arrow

    words = column.dictionary
    if str(words.type) == "string_view":  # pyarrow cannot pick entries of such arrays
        column = arrow.DictionaryArray.from_arrays(column.indices, words.cast(arrow.large_string()))
    return column.dictionary_decode()


def is_list(kind: Any) -> bool:
    """Whether a type of Arrow is one of lists: by name, since older pyarrow lacks some of them."""
    return str(kind).startswith(("list", "large_list", "fixed_size_list"))


def plain_entries(column: Any, name: str, roles: DataRoles, nested: bool) -> Column:
    """The single entries of a column as numbers, words or dates; missing ones NaN or None.

    Raises:
        ChooseError: they are something else, or some inside a list are missing.
    """
    import pyarrow as arrow

    is_a, kind = arrow.types, column.type
    if nested and column.null_count:
        raise roles.error(
            f"{shown(name)} must be numbers, but {column.null_count} of {len(column)} are missing inside lists; "
            "leave a whole key out of its list, or fill in the number"
        )
    if is_a.is_null(kind):
        return Column(np.full(len(column), np.nan))
    if is_a.is_boolean(kind) and column.null_count:
        column = column.cast(arrow.int8())
    if is_a.is_decimal(kind):
        column = column.cast(arrow.float64())
    kind = column.type
    if is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind):
        # Integers with missing entries come as floats with NaN.
        found = column.to_numpy(zero_copy_only=False)
        return objects_column(list(found), name, roles) if found.dtype.kind == "O" else numbers_column(
            found, name, roles
        )  # fmt: skip
    if str(kind) in ("string", "large_string", "string_view"):  # polars has views
        return Column(np.array(column.to_pylist() or [], object))
    if is_a.is_temporal(kind):
        return Column(np.zeros(len(column), "datetime64[s]"))
    raise roles.error(f"{shown(name)} must be numbers, got {shown(str(kind))}")


def numbers_column(found: np.ndarray, name: str, roles: DataRoles) -> Column:
    """A column from an array of numbers."""
    from regard.choosing.tasks.columns import as_numbers

    return Column(as_numbers(found, name, roles))
