"""The task in a user's file (`--data FILE`): .npz, .safetensors or .parquet with these arrays.

N rows, n keys per row, D_q, D_k and D_v dims of a query, a key and a value.

    query (N, D_q)
    key (N, n, D_k), or (n, D_k) if all rows share the keys
    value (N, n, D_v) or (n, D_v); optional, if the answer is computed from what keys carry
    target with a value: (N,) classes or numbers, or (N, m) numbers
    target without a value: (N,) index of the right key, or (N, n) relevance of each key
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.choosing.tasks.header import NAMES, printable, shown
from regard.choosing.tasks.models import Match, ReadValue
from regard.choosing.tasks.reading import check_size, read_tensors
from regard.choosing.tasks.task import Task
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.splits import SplitRows, split_rows
from regard.text import Text

KINDS_OF_DATA = {
    "classification": Text("your data, classification", "你的数据，分类"),
    "regression": Text("your data, regression", "你的数据，回归"),
    "ranking": Text("your data, ranking", "你的数据，排序"),
}
FEWEST_ROWS = 40
MOST_CLASSES = 1000


def read_task(path: Path, kind: str = "auto") -> Task:
    """The task in a file; `kind` is "auto" or a key of `KINDS_OF_DATA`.

    Raises:
        ChooseError: the file cannot be read, or its arrays do not form a task.
    """
    arrays = check_shapes(read_tensors(path), path)
    kind = check_kind(arrays, kind, path)
    query, key, value, target = (arrays.get(name) for name in NAMES)
    assert query is not None and key is not None and target is not None
    inputs = (query, key) if value is None else (query, key, value)
    dims = (query.shape[-1], key.shape[-1])
    metric = {"classification": "accuracy", "regression": "r2", "ranking": "ndcg"}[kind]
    build: Any = Match
    if value is not None:
        target, outputs = answers(target, kind)
        build = partial(ReadValue, value_dim=value.shape[-1], outputs=outputs, width=32)
    # Projections as wide as the narrower side, but at most 64, to keep trainings short.
    wide = max(min(*dims, 64), 4)
    return Task(
        printable(path.name), KINDS_OF_DATA[kind], build, cut(inputs, target), dims,
        options={"metric": metric, "width": wide, "hidden": (wide,)},
    )  # fmt: skip


def check_shapes(arrays: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The arrays with consistent shapes; keys and values that all rows share are expanded to each row.

    Raises:
        ChooseError: the shapes do not fit together.
    """
    query, target = arrays["query"], arrays["target"]
    rows = len(query) if query.ndim else 0
    if query.ndim != 2:
        raise ChooseError(f"{shown(path)}: query must be (rows, dim), got {tuple(query.shape)}")
    if rows < FEWEST_ROWS:
        raise ChooseError(
            f"{shown(path)}: {rows} rows are too few to train and test on; give at least {FEWEST_ROWS}"
        )
    for name in ("key", "value"):
        x = arrays.get(name)
        if x is None:
            continue
        if x.ndim == 2:
            # A view, but the parts of the data are copies: count the memory before they are made.
            x = arrays[name] = x.expand(rows, *x.shape)
            what = f" for {name}, {' x '.join(map(str, x.shape))} numbers when every row has it"
            check_size(x.numel() * x.element_size(), path, what)
        if x.ndim != 3 or len(x) != rows:
            raise ChooseError(
                f"{shown(path)}: {name} must be ({rows}, keys, dim), or (keys, dim) for all rows, got "
                f"{tuple(x.shape)}"
            )
    keys = arrays["key"].shape[1]
    if keys < 2:
        raise ChooseError(f"{shown(path)}: {keys} key in a row leaves nothing to attend to")
    if "value" in arrays and arrays["value"].shape[1] != keys:
        raise ChooseError(
            f"{shown(path)}: {keys} keys but {arrays['value'].shape[1]} values in a row"
        )
    if target.ndim not in (1, 2) or len(target) != rows:
        raise ChooseError(f"{shown(path)}: target must have {rows} rows, got {tuple(target.shape)}")
    for name, x in arrays.items():
        if 0 in x.shape:
            raise ChooseError(f"{shown(path)}: {name} is empty: its shape is {tuple(x.shape)}")
    return arrays


def check_kind(arrays: dict[str, Tensor], kind: str, path: Path) -> str:
    """The kind of task, after checking that the target suits it.

    Raises:
        ChooseError: the target does not suit the requested kind, or holds nothing to learn.
    """
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
            f"{shown(path)}: {kind} does not go with its target of shape {tuple(target.shape)} "
            f"{'and' if 'value' in arrays else 'without'} a value; that is a task of {natural}"
        )
    if kind == "classification":
        check_classes(target, None if "value" in arrays else keys, path)
    elif kind == "ranking" and (target.shape[1] != keys or bool((target < 0).any())):
        raise ChooseError(
            f"{shown(path)}: a target for ranking must be ({len(target)}, {keys}) relevances of 0 or more, "
            f"got {tuple(target.shape)} with a smallest value of {float(target.min()):g}"
        )
    if float(target.float().std()) == 0:
        raise ChooseError(
            f"{shown(path)}: every target is the same, {float(target.flatten()[0]):g}"
        )
    return kind


def check_classes(target: Tensor, keys: int | None, path: Path) -> None:
    """Raise ChooseError unless the target holds at least two classes, whole numbers from 0."""
    if target.is_floating_point():
        raise ChooseError(
            f"{shown(path)}: classes are whole numbers, but target holds {target.dtype}"
        )
    classes = target.unique()
    if len(classes) < 2:
        raise ChooseError(
            f"{shown(path)}: target has one class only, {int(classes[0])}: nothing to learn"
        )
    low, high = int(classes[0]), int(classes[-1])
    if keys is not None and (low < 0 or high >= keys):
        raise ChooseError(
            f"{shown(path)}: without a value, target says which of the {keys} keys is right: 0 to "
            f"{keys - 1}, but it holds {low} to {high}"
        )
    if keys is None and (low < 0 or high >= MOST_CLASSES):
        raise ChooseError(
            f"{shown(path)}: classes are 0 to {MOST_CLASSES - 1} at most, but target holds {low} to {high}"
        )


def answers(target: Tensor, kind: str) -> tuple[Tensor, int]:
    """The target in the shape of the model's output, and the number of outputs of one answer."""
    if kind == "classification":
        return target.long(), int(target.max()) + 1
    target = target.float().reshape(len(target), -1)
    return target, target.shape[1]


def cut(inputs: tuple[Tensor, ...], target: Tensor) -> SplitRows:
    """Random parts of the rows: 60% to train on, 20% to choose the rate by, 20% to test on."""
    return split_rows((*inputs, target if target.is_floating_point() else target.long()))
