"""Which keys of a row are real: `mask` (N, n) or `lengths` (N,) beside padded keys. N rows, n keys."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.choosing.tasks.columns import DataSource
from regard.choosing.tasks.roles import ColumnsByRole, shown


def real_keys(
    plan: ColumnsByRole, source: DataSource, shape: tuple[int, ...], own: np.ndarray | None = None
) -> Tensor | None:
    """The keys that are real (N, n); None if all are.

    Args:
        plan: names of the columns.
        source: the data.
        shape: (N, n).
        own: lengths of the rows as they came, for lists that differ in length.

    Raises:
        ChooseError: the mask or the lengths do not fit the keys.
    """
    rows, keys = shape
    found = None
    if own is not None:
        found = torch.arange(keys) < torch.from_numpy(np.asarray(own)).unsqueeze(1)
    if (name := plan.one("lengths")) is not None:
        given = source.columns[name].values
        fits = (
            given.shape == (rows,)
            and given.dtype.kind in "iuf"
            and bool((given == np.floor(given)).all())
        )
        if not fits or given.min() < 0 or given.max() > keys:
            raise source.error(
                f"{shown(name)} must be {rows} whole numbers from 0 to {keys}, the keys of each row that are real; got "
                f"{described(given)}"
            )
        within = torch.arange(keys) < torch.from_numpy(given.astype(np.int64)).unsqueeze(1)
        found = within if found is None else found & within
    if plan.columns.get("mask"):
        given = mask_values(plan.columns["mask"], source)
        if (
            given.shape != (rows, keys)
            or given.dtype.kind not in "iubf"
            or not np.isin(given, (0, 1)).all()
        ):
            raise source.error(
                f"mask must be ({rows}, {keys}) of true and false, true for the keys that are real; got "
                f"{described(given)}"
            )
        shown_keys = torch.from_numpy(given.astype(bool))
        found = shown_keys if found is None else found & shown_keys
    return found


def mask_values(names: list[str], source: DataSource) -> np.ndarray:
    """The mask, from one column of lists or one column for each key; ragged rows end in 0."""
    columns = [source.columns[name].values for name in names]
    return columns[0] if len(columns) == 1 else np.stack(columns, 1)


def described(given: np.ndarray) -> str:
    """Shape, type and range of an array, for a message."""
    if given.dtype.kind not in "iubf" or not given.size:
        return f"{given.shape} of {given.dtype}"
    return f"{given.shape} of {given.dtype}, {given.min():g} to {given.max():g}"
