"""A fingerprint of data: the same rows give the same text in every process."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from regard.recipes.datasets import Dataset

LENGTH = 16  # characters


def fingerprint(data: Dataset) -> str:
    """The fingerprint of all rows of a set, in the order of its parts."""
    state = hashlib.sha256(data.name.encode())
    for part in (data.train, data.validation, data.test):
        add(state, part.x)
        add(state, part.y)
    return state.hexdigest()[:LENGTH]


def fingerprint_of(*values: Any) -> str:
    """The fingerprint of any rows: arrays, tensors, texts, graphs, and lists of these."""
    state = hashlib.sha256()
    add(state, values)
    return state.hexdigest()[:LENGTH]


def add(state: Any, value: Any) -> None:
    """Add a value to a hash: its kind, its size, then its content."""
    if isinstance(value, torch.Tensor):
        dense = value if value.layout == torch.strided else value.to_dense()
        dense = dense.float() if dense.dtype == torch.bfloat16 else dense  # numpy has no bfloat16
        value = dense.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        state.update(f"array {value.dtype} {value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | bytes):
        content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        state.update(f"text {len(content)} ".encode() + content)
    elif isinstance(value, list | tuple | np.ndarray):
        state.update(f"list {len(value)} ".encode())
        for one in value:
            add(state, one)
    elif isinstance(value, Mapping):
        add(state, [[str(k), v] for k, v in value.items()])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        add(state, {one.name: getattr(value, one.name) for one in dataclasses.fields(value)})
    elif hasattr(value, "to_dict"):  # graphs of PyTorch Geometric, frames
        add(state, value.to_dict())
    elif value is None or isinstance(value, int | float | complex | np.generic):
        state.update(f"number {value!r} ".encode())
    elif hasattr(value, "__dict__"):
        add(state, vars(value))
    else:
        # The default repr holds an address, which differs from process to process.
        state.update(type(value).__qualname__.encode())
