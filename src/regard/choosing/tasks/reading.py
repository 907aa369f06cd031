"""Reads .npz, .safetensors, .parquet, .csv and .tsv as columns of numbers and words.

Files are untrusted: no pickled object is loaded, and sizes are checked before memory is allocated.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from regard.choosing.tasks.columns import Column, DataSource, column_of
from regard.choosing.tasks.header import TABLES, TEXTS, check_beginning, names_in
from regard.choosing.tasks.roles import DataRoles, layout, shown
from regard.choosing.tasks.sizes import check_size
from regard.choosing.training.errors import ChooseError
from regard.measuring.failures import first_line

Columns = dict[str, Column]


def read_source(path: Path, roles: DataRoles) -> DataSource:
    """The columns of a file that the layout needs, and those it does not understand are an error.

    Raises:
        ChooseError: the file cannot be read, or lacks a column.
    """
    check_beginning(path)
    names = names_in(path)
    if names is not None:
        layout(names, roles, path.suffix in TEXTS)
    columns = read_columns(path, roles)
    if path.suffix == ".parquet":
        from regard.choosing.tasks.arrow import parquet_names

        names = parquet_names(path, roles)
    return DataSource(columns, roles, path.suffix in TABLES, names or ())


def read_columns(path: Path, roles: DataRoles) -> Columns:
    """The columns by name: of .parquet those that the layout needs, of others all.

    Raises:
        ChooseError: the file cannot be read.
    """
    suffix = path.suffix
    check_beginning(path)
    try:
        return readers()[suffix](path, roles)
    except ChooseError:
        raise
    except OSError as error:
        raise ChooseError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    except ImportError as error:
        raise ChooseError(f"{shown(path)}: to read it, pip install {error.name}") from None
    except Exception as error:  # each format raises its own errors
        raise ChooseError(
            f"{shown(path)}: is not a valid {suffix} file: {first_line(error)}"
        ) from None


def readers() -> dict[str, Callable[[Path, DataRoles], Columns]]:
    """The reader of each format."""
    from regard.choosing.tasks.arrow import read_parquet
    from regard.choosing.tasks.delimited import read_delimited

    return {
        ".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet,
        ".csv": read_delimited, ".tsv": read_delimited,
    }  # fmt: skip


def read_npz(path: Path, roles: DataRoles) -> Columns:
    """The arrays of a .npz archive. NumPy refuses arrays of objects, which could run code."""
    if not zipfile.is_zipfile(path):  # NumPy would treat it as a pickle
        raise ValueError("it is not an .npz archive")
    with zipfile.ZipFile(path) as archive:
        check_size(sum(x.file_size for x in archive.infolist()), shown(path))
        check_members(archive, path)
    found: Columns = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            if archive.files.count(name) > 1:
                raise ChooseError(
                    f"{shown(path)}: is not a valid .npz file: {shown(name)} appears twice"
                )
            x = archive[name]
            # For a member that is not a .npy file NumPy returns its bytes.
            if not isinstance(x, np.ndarray):
                raise ChooseError(
                    f"{shown(path)}: is not a valid .npz file: {shown(name)} is not an array"
                )
            found[name] = column_of(x, name, roles)
    return shared(found)


def check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise ChooseError for an array of objects, such as rows of different length: it is a pickle."""
    for member in archive.infolist():
        with archive.open(member) as file:
            try:
                version = np.lib.format.read_magic(file)
            except ValueError:
                continue  # no array: the reader says so
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            try:
                _, _, kind = read(file)
            except ValueError:
                continue
        if kind.hasobject:
            name = shown(member.filename.removesuffix(".npy"))
            raise ChooseError(
                f"{shown(path)}: {name} is an array of Python objects, which are not loaded because they could "
                f"run code. Rows of different length go into Parquet as lists: pyarrow.parquet.write_table("
                f'pyarrow.table({{"{name}": [x.tolist() for x in {name}], ...}}), "mine.parquet"); words are '
                f'saved by {name}.astype("U")'
            )


def read_safetensors(path: Path, roles: DataRoles) -> Columns:
    """The tensors of a .safetensors file."""
    from safetensors.torch import load_file

    check_size(path.stat().st_size, shown(path))
    found = {}
    for name, x in load_file(path).items():
        if x.is_complex():
            raise ChooseError(f"{shown(path)}: {shown(name)} must be real numbers, got {x.dtype}")
        found[name] = column_of(x, name, roles)
    return shared(found)


def shared(found: Columns) -> Columns:
    """Arrays of a file without rows of its own: keys (n, D) may be the same for all rows."""
    return {name: Column(x.values, x.lengths, shared=True) for name, x in found.items()}
