"""`--data FILE`: arrays query, key, (value) and target from .npz, .safetensors or .parquet.

N rows, n keys of each row, D_q and D_k dims of a query and of a key, D_v of a value.

    query (N, D_q)
    key (N, n, D_k), or (n, D_k), the same keys for every row
    value (N, n, D_v) or (n, D_v), where the answer is made of what keys carry
    target with a value: (N,) classes or numbers, or (N, m) numbers
    target without one: (N,) which key is right, or (N, n) how relevant each key is
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.models import Match, Read
from regard.choosing.tasks.task import Task
from regard.choosing.training.errors import ChooseError
from regard.measuring import memory
from regard.measuring.graphs import first_line

NAMES = ("query", "key", "value", "target")
KINDS = ("auto", "classification", "regression", "ranking")
FEWEST_ROWS = 40
# A file may take this part of the free memory: its arrays are copied a few times.
SHARE = 0.2
MOST_CLASSES = 1000


def read_task(path: Path, kind: str = "auto") -> Task:
    """The task that a file holds.

    Raises:
        ChooseError: the file cannot be read, or what it holds is no task; one sentence says why.
    """
    arrays = check_numbers(read_arrays(path), path)
    arrays = check_shapes(arrays, path)
    kind = check_kind(arrays, kind, path)
    query, key, value, target = (arrays.get(name) for name in NAMES)
    assert query is not None and key is not None and target is not None
    inputs = (query, key) if value is None else (query, key, value)
    dims = (query.shape[-1], key.shape[-1])
    metric = {"classification": "accuracy", "regression": "r2", "ranking": "ndcg"}[kind]
    build: Any = Match
    if value is not None:
        target, outputs = answers(target, kind)
        build = partial(Read, value_dim=value.shape[-1], outputs=outputs, width=32)
    wide = max(min(*dims, 64), 4)
    return Task(
        path.name, f"your data, {kind}", build, cut(inputs, target), dims, ("B4", "E3", "E5", "G2"),
        {"metric": metric, "width": wide, "hidden": (wide,)},
    )  # fmt: skip


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays by name, as the file has them."""
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet,
    }  # fmt: skip
    if path.suffix not in readers:
        raise ChooseError(f"{path}: files are {', '.join(readers)}, this one is {path.suffix!r}")
    try:
        size = path.stat().st_size
        free = memory.available(torch.device("cpu"))
        if size > SHARE * free:
            raise ChooseError(
                f"{path}: too large: {memory.show(size)}, of {memory.show(free)} free memory a file "
                f"may take {SHARE:.0%}. Give fewer rows"
            )
        found = readers[path.suffix](path)
    except ChooseError:
        raise
    except OSError as error:
        raise ChooseError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # each format has errors of its own
        raise ChooseError(f"{path}: is no good {path.suffix} file: {first_line(error)}") from None
    lacking = [name for name in ("query", "key", "target") if name not in found]
    if lacking:
        there = ", ".join(sorted(found)) or "nothing"
        raise ChooseError(f"{path}: has no {' and no '.join(lacking)}; it has {there}")
    return {name: found[name] for name in NAMES if name in found}


def read_npz(path: Path) -> dict[str, Any]:
    """NumPy's archive; objects, which could hold code, are refused by NumPy."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name in NAMES} | {
            name: None for name in archive.files if name not in NAMES
        }


def read_safetensors(path: Path) -> dict[str, Any]:
    """By safetensors."""
    from safetensors.torch import load_file

    return dict(load_file(path))


def read_parquet(path: Path) -> dict[str, Any]:
    """Columns of numbers, lists, or lists of lists, by pyarrow."""
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    found: dict[str, Any] = dict.fromkeys(table.column_names)
    for name in set(NAMES) & set(table.column_names):
        rows = table.column(name).to_pylist()
        try:
            found[name] = np.array(rows)
        except ValueError:
            raise ChooseError(
                f"{path}: column {name!r} has rows of different lengths; pad them to one"
            ) from None
    return found


def check_numbers(arrays: dict[str, Any], path: Path) -> dict[str, Tensor]:
    """Tensors of finite numbers."""
    found = {}
    for name, given in arrays.items():
        if isinstance(given, np.ndarray) and given.dtype.kind not in "fiub":
            raise ChooseError(f"{path}: {name} must be numbers, got {given.dtype}")
        x = torch.as_tensor(given)
        x = x.float() if x.is_floating_point() else x
        bad = int((~x.isfinite()).sum()) if x.is_floating_point() else 0
        if bad:
            raise ChooseError(f"{path}: {name} holds NaN or infinite numbers, {bad} of {x.numel()}")
        found[name] = x if name == "target" else x.float()
    return found


def check_shapes(arrays: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Sizes that go together; keys and values that all rows share are given to each."""
    query, key, target = arrays["query"], arrays["key"], arrays["target"]
    rows = len(query) if query.ndim else 0
    if query.ndim != 2:
        raise ChooseError(f"{path}: query must be (rows, dim), got {tuple(query.shape)}")
    if rows < FEWEST_ROWS:
        raise ChooseError(f"{path}: {rows} rows are too few to learn and test on; {FEWEST_ROWS} do")
    for name in ("key", "value"):
        x = arrays.get(name)
        if x is None:
            continue
        if x.ndim == 2:
            x = arrays[name] = x.expand(rows, *x.shape)
        if x.ndim != 3 or len(x) != rows:
            raise ChooseError(
                f"{path}: {name} must be ({rows}, keys, dim), or (keys, dim) for all rows, got "
                f"{tuple(x.shape)}"
            )
    keys = arrays["key"].shape[1]
    if keys < 2:
        raise ChooseError(f"{path}: {keys} key in a row leaves nothing to attend to")
    if "value" in arrays and arrays["value"].shape[1] != keys:
        raise ChooseError(f"{path}: {keys} keys but {arrays['value'].shape[1]} values in a row")
    if target.ndim not in (1, 2) or len(target) != rows:
        raise ChooseError(f"{path}: target must have {rows} rows, got {tuple(target.shape)}")
    del key
    return arrays


def check_kind(arrays: dict[str, Tensor], kind: str, path: Path) -> str:
    """Which kind of task it is, and that the target suits it."""
    target, keys = arrays["target"], arrays["key"].shape[1]
    whole = not target.is_floating_point()
    if "value" not in arrays:
        natural = "ranking" if target.ndim == 2 else "classification"
    else:
        natural = "classification" if whole and target.ndim == 1 else "regression"
    kind = natural if kind == "auto" else kind
    allowed = ("classification", "regression") if "value" in arrays else (natural,)
    if kind not in allowed:
        raise ChooseError(
            f"{path}: {kind} does not go with its target of shape {tuple(target.shape)} "
            f"{'and' if 'value' in arrays else 'without'} a value; that is {natural}"
        )
    if kind == "classification":
        check_classes(target, None if "value" in arrays else keys, path)
    elif kind == "ranking" and (target.shape[1] != keys or bool((target < 0).any())):
        raise ChooseError(
            f"{path}: a target for ranking is ({len(target)}, {keys}) relevances of 0 and up, got "
            f"{tuple(target.shape)} from {float(target.min()):g}"
        )
    if float(target.float().std()) == 0:
        raise ChooseError(f"{path}: every target is the same, {float(target.flatten()[0]):g}")
    return kind


def check_classes(target: Tensor, keys: int | None, path: Path) -> None:
    """Whole numbers from 0, at least two of them."""
    if target.is_floating_point():
        raise ChooseError(f"{path}: classes are whole numbers, but target holds {target.dtype}")
    classes = target.unique()
    if len(classes) < 2:
        raise ChooseError(f"{path}: target has one class only, {int(classes[0])}: nothing to learn")
    low, high = int(classes[0]), int(classes[-1])
    if keys is not None and (low < 0 or high >= keys):
        raise ChooseError(
            f"{path}: without a value, target says which of the {keys} keys is right: 0 to "
            f"{keys - 1}, but it holds {low} to {high}"
        )
    if keys is None and (low < 0 or high >= MOST_CLASSES):
        raise ChooseError(
            f"{path}: classes are 0 to {MOST_CLASSES - 1} at most, but target holds {low} to {high}"
        )


def answers(target: Tensor, kind: str) -> tuple[Tensor, int]:
    """The target as the model gives it, and how many numbers one answer has."""
    if kind == "classification":
        return target.long(), int(target.max()) + 1
    target = target.float().reshape(len(target), -1)
    return target, target.shape[1]


def cut(inputs: tuple[Tensor, ...], target: Tensor) -> list[tuple[Tensor, ...]]:
    """Rows at random: 60 of a hundred to learn from, 20 to choose the rate by, 20 to report."""
    rows = len(target)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    ends = (order[: int(0.6 * rows)], order[int(0.6 * rows) : int(0.8 * rows)])
    parts = (*ends, order[int(0.8 * rows) :])
    target = target if target.is_floating_point() else target.long()
    return [tuple(x[part] for x in (*inputs, target)) for part in parts]
