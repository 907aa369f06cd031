"""What the user should know about the data before reading any result, as sentences."""

from __future__ import annotations

import torch

from regard.choosing.training.chance import which_key
from regard.choosing.training.data import RowData, parts_of
from regard.choosing.training.order import ChooseOrder
from regard.choosing.training.scaling import notes_on_classes, notes_on_scales
from regard.choosing.training.splits import SplitRows, leaks
from regard.choosing.training.stages import SEARCH_SEED
from regard.text import Text


def notes_on(order: ChooseOrder) -> list[Text]:
    """Notes on leaks between the parts, scales, constant columns and classes.

    Data that a loader yields is not examined; data drawn anew for each seed is by its first draw.
    """
    data = order.data
    parts = parts_of(data, SEARCH_SEED)
    if not isinstance(parts.train, RowData):
        return []
    *inputs, target = parts.train.tensors
    notes: list[Text] = []
    grouped = isinstance(data, SplitRows) and data.groups is not None
    if not callable(data) and not grouped:
        test = [torch.cat(column) for column in zip(*parts.test, strict=True)]
        notes += leaks(parts.train.tensors, test)
    if not target.is_floating_point() and not which_key(order.build):
        notes += notes_on_classes(target)
    positional = data.positional if isinstance(data, SplitRows) else ()
    return notes + notes_on_scales(inputs, positional, order.standardize)
