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
from regard.choosing.tasks.roles import DataRoles, checked_names, columns_of, needed, shown
from regard.choosing.training.errors import ChooseError
from regard.describe import describe
from regard.measuring.failures import first_line

READABLE = "give a frame, an Arrow table, a dict of columns or the path of a file"


def is_data(given: Any) -> bool:
    """Whether something is data that this module reads, and not a function that builds a model."""
    if isinstance(given, (str, os.PathLike, Mapping)):
        return True
    if callable(given):
        return False
    if lazy(given):
        return True
    return any(hasattr(given, name) for name in ("__arrow_c_stream__", "__dataframe__", "columns"))


def source_of(given: Any, roles: DataRoles) -> DataSource:
    """The columns of a frame, a table, a dict or a file.

    Raises:
        ChooseError: they cannot be read.
    """
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        return read_source(path, roles_at(path, roles))
    names, found = frame_columns(given, roles)
    # A dict of arrays may have keys (n, D) that all rows share; a table has one entry for each row.
    arrays = isinstance(given, Mapping) and any(x.values.ndim > 1 for x in found.values())
    return DataSource(found, roles, table=not arrays, names=names)


def roles_at(path: Path, roles: DataRoles) -> DataRoles:
    """The roles with the file's name in messages."""
    return replace(roles, where=shown(path))


def whole_table(given: Any, roles: DataRoles) -> dict[str, Column]:
    """Every column of a frame, a table, a dict or a file."""
    if isinstance(given, (str, os.PathLike)):
        return read_columns(Path(given), roles_at(Path(given), roles))
    return frame_columns(given, roles)[1]


def frame_columns(given: Any, roles: DataRoles) -> tuple[list[str], dict[str, Column]]:
    """All names of a frame, a table or a dict, and the columns that the task needs.

    Raises:
        ChooseError: names are not words, columns differ in length, or one cannot be read.
    """
    if isinstance(given, Mapping):
        names = checked_names(given, roles)
        gone = columns_of("drop", roles.drop, names, roles) if roles.drop is not None else []
        found = {name: column_of(given[name], name, roles) for name in names if name not in gone}
        return names, {
            n: Column(x.values, x.lengths, shared=x.values.ndim > 1) for n, x in found.items()
        }
    if how := lazy(given):
        raise roles.error(f"a {type(given).__name__} holds no rows yet; give frame.{how}()")
    try:
        return columns_inside(given, roles)
    except ChooseError:
        raise
    except Exception as error:  # every kind of frame raises its own errors
        raise roles.error(
            f"cannot read {describe(given)}: {first_line(error)}; {READABLE}"
        ) from None


def lazy(given: Any) -> str:
    """The method that makes a frame of a lazy one, such as those of polars, dask and Spark; empty for others.

    Looked up in the class: to ask a lazy frame for its columns may start a computation.
    """
    if isinstance(given, Mapping) or hasattr(type(given), "__arrow_c_stream__"):
        return ""
    found = ("toPandas", "collect", "compute")
    return next((name for name in found if callable(getattr(type(given), name, None))), "")


def columns_inside(given: Any, roles: DataRoles) -> tuple[list[str], dict[str, Column]]:
    """Names and columns of a frame or a table, by the best of the interfaces that it has."""
    arrow = importlib.util.find_spec("pyarrow") is not None
    # pandas has the Arrow interface too, but only its own columns keep words, lists and missing values apart.
    pandas_like = hasattr(given, "columns") and hasattr(given, "iloc")
    if arrow and not pandas_like and hasattr(given, "__arrow_c_stream__"):
        import pyarrow

        return arrow_parts(pyarrow.table(given), roles)
    if hasattr(given, "columns") and hasattr(given, "__getitem__"):
        names = checked_names(given.columns, roles)
        return names, {n: column_of(given[n], n, roles) for n in needed(names, roles)}
    if arrow and hasattr(given, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return arrow_parts(from_dataframe(given), roles)
    needs = "" if arrow else " (to read other frames, pip install pyarrow)"
    raise roles.error(f"cannot read {describe(given)}; {READABLE}{needs}")


def arrow_parts(table: Any, roles: DataRoles) -> tuple[list[str], dict[str, Column]]:
    """Names of an Arrow table, and the columns that the task needs."""
    from regard.choosing.tasks.arrow import arrow_columns

    names = checked_names(table.column_names, roles)
    return names, arrow_columns(table.select(needed(names, roles)), roles)
