"""What the user should know about the data before reading any result, as sentences."""

from __future__ import annotations

import torch

from regard.choosing.training.asking import named
from regard.choosing.training.chance import which_key
from regard.choosing.training.data import RowData, parts_of
from regard.choosing.training.order import ChooseOrder
from regard.choosing.training.scaling import notes_on_classes, notes_on_scales
from regard.choosing.training.splits import SplitRows, leaks
from regard.choosing.training.stages import ENOUGH_STEPS, SEARCH_SEED, Settings
from regard.text import Text


def notes_on(order: ChooseOrder, settings: Settings) -> list[Text]:
    """Notes on leaks between the parts, scales, constant columns and classes, and on short trainings."""
    return notes_on_data(order) + notes_on_time(order, settings)


def notes_on_time(order: ChooseOrder, settings: Settings) -> list[Text]:
    """A note if the time allowed short trainings only, and candidates were left out for it."""
    if order.steps is not None or settings.steps >= ENOUGH_STEPS:
        return []
    missing = order.optional and order.optional.isdisjoint(settings.candidates)
    left = Text(", and several heads were left out", "，未比较多头") if missing else Text("", "")
    more = named("minutes", f"{max(2 * order.minutes, 5):.0f}")
    return [
        Text(
            f"Trainings had {settings.steps} steps, as many as the time allowed{left.en}: longer trainings "
            f"may give another answer ({more}).",
            f"训练只有 {settings.steps} 步，这是时间所允许的{left.zh}：更长的训练可能得出别的结论（{more}）。",
        )
    ]


def notes_on_data(order: ChooseOrder) -> list[Text]:
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
