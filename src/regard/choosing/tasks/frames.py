"""Data of a Python session: frames of pandas and polars, Arrow tables, dicts of columns, paths of files.

Nothing is imported for a frame: it is asked for what it has, the Arrow or the dataframe interface, or columns.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.choosing.tasks.columns import Column, DataSource, column_of
from regard.choosing.tasks.reading import read_columns, read_source
from regard.choosing.tasks.roles import DataRoles, listed, shown
from regard.describe import describe


def is_data(given: Any) -> bool:
    """Whether something is data that this module reads, and not a function that builds a model."""
    if isinstance(given, (str, os.PathLike, Mapping)):
        return True
    if callable(given):
        return False
    return any(hasattr(given, name) for name in ("__arrow_c_stream__", "__dataframe__", "columns"))


def source_of(given: Any, roles: DataRoles) -> DataSource:
    """The columns of a frame, a table, a dict or a file.

    Raises:
        ChooseError: they cannot be read.
    """
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        return read_source(path, roles_at(path, roles))
    found = frame_columns(given, roles)
    # A dict of arrays may have keys (n, D) that all rows share; a table has one entry for each row.
    arrays = isinstance(given, Mapping) and any(x.values.ndim > 1 for x in found.values())
    return DataSource(found, roles, table=not arrays)


def roles_at(path: Path, roles: DataRoles) -> DataRoles:
    """The roles with the file's name in messages."""
    return replace(roles, where=shown(path))


def whole_table(given: Any, roles: DataRoles, suffix: str = "") -> dict[str, Column]:
    """Every column of a frame, a table, a dict or a file."""
    if isinstance(given, (str, os.PathLike)):
        return read_columns(Path(given), roles_at(Path(given), roles), suffix)
    return frame_columns(given, roles)


def frame_columns(given: Any, roles: DataRoles) -> dict[str, Column]:
    """The columns of a frame, a table or a dict.

    Raises:
        ChooseError: names are not words, columns differ in length, or one cannot be read.
    """
    if isinstance(given, Mapping):
        found = {name: column_of(x, str(name), roles) for name, x in given.items()}
        return checked_names(
            {n: Column(x.values, x.lengths, shared=x.values.ndim > 1) for n, x in found.items()},
            roles,
        )
    arrow = importlib.util.find_spec("pyarrow") is not None
    # pandas has the Arrow interface too, but only its own columns keep words, lists and missing values apart.
    pandas_like = hasattr(given, "columns") and hasattr(given, "iloc")
    if arrow and not pandas_like and hasattr(given, "__arrow_c_stream__"):
        import pyarrow

        from regard.choosing.tasks.arrow import arrow_columns

        return checked_names(arrow_columns(pyarrow.table(given), roles), roles)
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):
        names = list(given.columns)
        twice = [str(name) for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise roles.error(f"more than one column is named {listed(twice)}")
        return checked_names(
            {name: column_of(given[name], str(name), roles) for name in given.columns}, roles
        )
    if arrow and hasattr(given, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        from regard.choosing.tasks.arrow import arrow_columns

        return checked_names(arrow_columns(from_dataframe(given), roles), roles)
    raise roles.error(
        f"cannot read {describe(given)}; give a frame, an Arrow table, a dict of columns or the path of a file"
    )


def checked_names(found: dict[Any, Column], roles: DataRoles) -> dict[str, Column]:
    """The columns, if all names are words."""
    strange = [name for name in found if not isinstance(name, str)]
    if strange:
        raise roles.error(
            f"column names must be words, got {strange[0]!r}; name them: frame.columns = [f'x_{{i}}' for i in "
            "range(frame.shape[1])]"
        )
    if not found:
        raise roles.error("has no columns")
    return found
