"""Arrays from .npz, .safetensors and .parquet as tensors of finite numbers. Files come from anybody."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.header import NAMES, check_file, check_names
from regard.choosing.training.errors import ChooseError
from regard.measuring import memory
from regard.measuring.graphs import first_line

# Arrays may take this part of the free memory: they are copied a few times.
SHARE = 0.2


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Query, key, target and perhaps value; whole numbers stay whole in the target alone.

    Raises:
        ChooseError: they cannot be read, or are no numbers; one sentence says why.
    """
    found = {name: as_tensor(x, name, path) for name, x in read_arrays(path).items()}
    return {name: x if name == "target" else x.float() for name, x in found.items()}


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays by name, as the file has them."""
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet,
    }  # fmt: skip
    check_file(path)
    try:
        found = readers[path.suffix](path)
    except ChooseError:
        raise
    except OSError as error:
        raise ChooseError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ImportError as error:
        raise ChooseError(f"{path}: to read it, pip install {error.name}") from None
    except Exception as error:  # each format has errors of its own
        raise ChooseError(f"{path}: is no good {path.suffix} file: {first_line(error)}") from None
    check_names(found, path)
    return {name: found[name] for name in NAMES if name in found}


def check_size(size: int, path: Path) -> None:
    """Refuse what would fill the memory; `size` in bytes when unpacked."""
    free = memory.available(torch.device("cpu"))
    if size > SHARE * free:
        raise ChooseError(
            f"{path}: too large: {memory.show(size)}, of {memory.show(free)} free memory a file "
            f"may take {SHARE:.0%}. Give fewer rows"
        )


def read_npz(path: Path) -> dict[str, Any]:
    """NumPy's archive; objects, which could hold code, are refused by NumPy."""
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle
        raise ValueError("it is no .npz archive")
    with zipfile.ZipFile(path) as archive:
        wanted = [x for x in archive.infolist() if x.filename.removesuffix(".npy") in NAMES]
        check_size(sum(x.file_size for x in wanted), path)
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] if name in NAMES else None for name in archive.files}


def read_safetensors(path: Path) -> dict[str, Any]:
    """By safetensors."""
    from safetensors.torch import load_file

    check_size(path.stat().st_size, path)
    return dict(load_file(path))


def read_parquet(path: Path) -> dict[str, Any]:
    """Columns of numbers, lists, or lists of lists, by pyarrow."""
    import pyarrow.parquet as parquet

    about = parquet.read_metadata(path)
    names = about.schema.to_arrow_schema().names
    check_names(names, path)
    check_size(sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups)), path)
    table = parquet.read_table(path, columns=[name for name in NAMES if name in names])
    found: dict[str, Any] = dict.fromkeys(names)
    for name in table.column_names:
        try:
            found[name] = np.array(table.column(name).to_pylist())
        except ValueError:
            raise ChooseError(
                f"{path}: column {name!r} has rows of different lengths, or rows that are missing; "
                "pad or drop them"
            ) from None
    return found


def as_tensor(given: Any, name: str, path: Path) -> Tensor:
    """Finite numbers: fp32 or int64."""
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(plain(given, name, path))
    if given.is_complex():
        raise ChooseError(f"{path}: {name} must be real numbers, got {given.dtype}")
    if not given.is_floating_point():
        return given.long()
    found = given.float()
    bad = int((~found.isfinite()).sum())
    if bad:
        raise ChooseError(
            f"{path}: {name} holds NaN or infinite numbers, {bad} of {found.numel()} (in fp32)"
        )
    return found


def plain(given: np.ndarray, name: str, path: Path) -> np.ndarray:
    """In a dtype that torch knows, whatever its width and the order of its bytes."""
    kind = given.dtype.kind
    if kind not in "fiub":
        why = " (are values missing?)" if kind == "O" else ""
        raise ChooseError(f"{path}: {name} must be numbers, got {given.dtype}{why}")
    if kind == "u" and given.size and int(given.max()) > np.iinfo(np.int64).max:
        raise ChooseError(f"{path}: {name} holds whole numbers beyond 64 bits with a sign")
    with np.errstate(over="ignore"):  # what becomes infinite is told of
        return given.astype(np.float32 if kind == "f" else np.int64)
