"""Reads arrays from .npz, .safetensors and .parquet as tensors of finite numbers.

Files are untrusted: no pickled object is loaded, and sizes are checked before memory is allocated.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.header import NAMES, check_file, check_names, shown
from regard.choosing.training.errors import ChooseError
from regard.measuring import memory
from regard.measuring.graphs import first_line

# Arrays may take this fraction of the free memory, because they are copied a few times.
SHARE = 0.2
WIDEST = 8  # bytes of the widest number


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors query, key, target and perhaps value; only the target may stay integer.

    Raises:
        ChooseError: the file cannot be read, or an array does not hold finite numbers.
    """
    found = {name: as_tensor(x, name, path) for name, x in read_arrays(path).items()}
    return {name: x if name == "target" else x.float() for name, x in found.items()}


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays by name, as they are in the file.

    Raises:
        ChooseError: the file cannot be read, or lacks an array.
    """
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet,
    }  # fmt: skip
    check_file(path)
    try:
        found = readers[path.suffix](path)
    except ChooseError:
        raise
    except OSError as error:
        raise ChooseError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    except ImportError as error:
        raise ChooseError(f"{shown(path)}: to read it, pip install {error.name}") from None
    except Exception as error:  # each format raises its own errors
        raise ChooseError(
            f"{shown(path)}: is not a valid {path.suffix} file: {first_line(error)}"
        ) from None
    check_names(found, path)
    return {name: found[name] for name in NAMES if name in found}


def check_size(size: int, path: Path, what: str = "") -> None:
    """Raise ChooseError if arrays would take too much memory.

    Args:
        size: bytes when unpacked.
        path: the file.
        what: the part of the file that takes these bytes, if not all of it.
    """
    free = memory.available(torch.device("cpu"))
    if size > SHARE * free:
        raise ChooseError(
            f"{shown(path)}: too large: {memory.show(size)}{what}, of {memory.show(free)} free memory a file "
            f"may take {SHARE:.0%}. Give fewer rows"
        )


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of a .npz archive. NumPy refuses arrays of objects, which could run code."""
    if not zipfile.is_zipfile(path):  # NumPy would treat it as a pickle
        raise ValueError("it is not an .npz archive")
    with zipfile.ZipFile(path) as archive:
        wanted = [x for x in archive.infolist() if x.filename.removesuffix(".npy") in NAMES]
        check_size(sum(x.file_size for x in wanted), path)
    with np.load(path, allow_pickle=False) as archive:
        for name in NAMES:
            if archive.files.count(name) > 1:
                raise ChooseError(f"{shown(path)}: is not a valid .npz file: {name} appears twice")
        found = {name: archive[name] if name in NAMES else None for name in archive.files}
    for name, x in found.items():
        # For a member that is not a .npy file NumPy returns its bytes.
        if name in NAMES and not isinstance(x, np.ndarray):
            raise ChooseError(f"{shown(path)}: is not a valid .npz file: {name} is not an array")
    return found


def read_safetensors(path: Path) -> dict[str, Any]:
    """The tensors of a .safetensors file."""
    from safetensors.torch import load_file

    check_size(path.stat().st_size, path)
    return dict(load_file(path))


def read_parquet(path: Path) -> dict[str, Any]:
    """The columns of a .parquet file: numbers, lists, or lists of lists. Needs pyarrow."""
    import pyarrow.parquet as parquet

    about = parquet.read_metadata(path)
    names = about.schema.to_arrow_schema().names
    check_names(names, path)
    check_size(WIDEST * numbers_in(about), path)
    table = parquet.read_table(path, columns=[name for name in NAMES if name in names])
    found: dict[str, Any] = dict.fromkeys(names)
    for name in table.column_names:
        chunks = [chunk for chunk in table.column(name).chunks if len(chunk)]
        try:
            parts = [rectangle(chunk, name, path) for chunk in chunks]
            found[name] = np.concatenate(parts) if parts else np.zeros(0)
        except ChooseError:
            raise
        except ValueError:
            raise ChooseError(
                f"{shown(path)}: column {name!r} has rows of different lengths, or rows that are "
                "missing; pad or drop them"
            ) from None
    return found


def numbers_in(about: Any) -> int:
    """Number of values in the arrays of a .parquet file; compression makes its size a poor estimate."""
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(x.num_values for x in columns if x.path_in_schema.partition(".")[0] in NAMES)


def rectangle(column: Any, name: str, path: Path) -> np.ndarray:
    """A column of numbers, lists or lists of lists as an array, without a Python object per number.

    Raises:
        ChooseError: it does not hold numbers, or some are missing.
        ValueError: rows have different lengths, or are missing.
    """
    import pyarrow as arrow

    is_a, shape = arrow.types, [len(column)]
    while True:
        kind = column.type
        if isinstance(column, arrow.ExtensionArray):
            column = column.storage
        elif is_a.is_dictionary(kind):
            column = column.dictionary_decode()
        elif is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
            lengths = column.value_lengths().unique()
            if column.null_count or len(lengths) > 1:
                raise ValueError("rows differ in length")
            shape.append(lengths[0].as_py() if len(lengths) else 0)
            column = column.flatten()
        else:
            break
    if not (is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind)):
        raise ChooseError(f"{shown(path)}: {name} must be numbers, got {shown(str(kind))}")
    if column.null_count:
        raise ChooseError(
            f"{shown(path)}: {name} must be numbers, but {column.null_count} of {len(column)} are missing"
        )
    return column.to_numpy(zero_copy_only=False).reshape(shape)


def as_tensor(given: Any, name: str, path: Path) -> Tensor:
    """The array as a tensor of fp32 or int64.

    Raises:
        ChooseError: it holds complex, NaN or infinite numbers, or no numbers.
    """
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(plain(given, name, path))
    if given.is_complex():
        raise ChooseError(f"{shown(path)}: {name} must be real numbers, got {given.dtype}")
    if not given.is_floating_point():
        return given.long()
    found = given.float()
    bad = int((~found.isfinite()).sum())
    if bad:
        raise ChooseError(
            f"{shown(path)}: {name} holds NaN or infinite numbers, {bad} of {found.numel()} (in fp32)"
        )
    return found


def plain(given: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The array as fp32 or int64, whatever its width and byte order, of which torch supports few."""
    kind = given.dtype.kind
    if kind not in "fiub":
        why = " (are values missing?)" if kind == "O" else ""
        raise ChooseError(f"{shown(path)}: {name} must be numbers, got {given.dtype}{why}")
    if kind == "u" and given.size and int(given.max()) > np.iinfo(np.int64).max:
        raise ChooseError(f"{shown(path)}: {name} holds whole numbers too large for int64")
    with np.errstate(over="ignore"):  # `as_tensor` reports numbers that become infinite
        return given.astype(np.float32 if kind == "f" else np.int64)
