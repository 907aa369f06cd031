"""Standardised inputs and targets: mean 0 and variance 1 of every column on the training part.

Scores differ in how they bear inputs of very different scale: scaled dot may learn nothing from raw columns that
it learns well when they are standardised. Without this, advice on a score would be advice to standardise.

N rows, n keys of a row, D columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.choosing.training.metrics import IGNORED
from regard.text import Text

FAR = 100.0  # scales whose ratio is above this are told
NAMES = (Text("query", "查询"), Text("key", "键"), Text("value", "值"))


class ColumnScale(NamedTuple):
    """Mean and standard deviation of each column; constant columns have a deviation of 1."""

    mean: Tensor
    std: Tensor

    def into(self, x: Tensor) -> Tensor:
        """Standardised numbers."""
        return (x - self.mean.to(x)) / self.std.to(x)

    def back(self, x: Tensor) -> Tensor:
        """The numbers as they were."""
        return x * self.std.to(x) + self.mean.to(x)


def column_scale(
    x: Tensor, visible: Tensor | None = None, by_position: bool = False
) -> ColumnScale:
    """The scale of the columns (the last dim) of x (N, *, D).

    Args:
        x: floats; of a tensor (N,) all numbers are one column.
        visible: True where x holds data, (N, n); hidden keys are padding and count for nothing.
        by_position: every position of the dims between has a scale of its own.
    """
    rows = x.double().unsqueeze(-1) if x.ndim == 1 else x.double()
    over = (0,) if by_position else tuple(range(rows.ndim - 1))
    weight = torch.ones((), dtype=rows.dtype) if visible is None else visible.double().unsqueeze(-1)
    count = (torch.ones_like(rows) * weight).sum(over).clamp(min=1)
    mean = (rows * weight).sum(over) / count
    std = (((rows - mean).square() * weight).sum(over) / count).sqrt()
    # Rounding leaves a constant column a deviation near 1e-8 of its value, which would blow up noise.
    flat = std <= 1e-6 * mean.abs().clamp(min=1e-30)
    std = torch.where(flat, torch.ones_like(std), std)
    if x.ndim == 1:
        mean, std = mean.squeeze(-1), std.squeeze(-1)
    return ColumnScale(mean, std)


def mask_of(x: Tensor, inputs: Sequence[Tensor]) -> Tensor | None:
    """The input that says which keys of x (N, n, D) are real: bools (N, n); None if there is none."""
    for other in inputs:
        if other.dtype == torch.bool and x.ndim > 2 and other.shape == x.shape[:2]:
            return other
    return None


def input_scales(
    inputs: Sequence[Tensor], positional: Sequence[int] = ()
) -> list[ColumnScale | None]:
    """The scale of each input of the training part; None for what is not floats."""
    return [
        column_scale(x, mask_of(x, inputs), place in positional) if x.is_floating_point() else None
        for place, x in enumerate(inputs)
    ]


def standardized(
    arrays: Sequence[Tensor], scales: Sequence[ColumnScale | None]
) -> tuple[Tensor, ...]:
    """A part (inputs ..., target) with standardised inputs; hidden keys become 0."""
    *inputs, target = arrays
    found = []
    for x, scale in zip(inputs, scales, strict=True):
        new = x if scale is None else scale.into(x)
        mask = mask_of(x, inputs) if scale is not None else None
        found.append(new if mask is None else new.masked_fill(~mask.unsqueeze(-1), 0.0))
    return (*found, target)


def notes_on_scales(
    inputs: Sequence[Tensor], positional: Sequence[int], scaled: bool
) -> list[Text]:
    """Notes on constant columns and on scales that differ by more than 100 times."""
    notes, sizes = [], []
    for place, x in enumerate(inputs):
        if not x.is_floating_point():
            continue
        mask, by_position = mask_of(x, inputs), place in positional
        scale = column_scale(x, mask, by_position)
        varies = ~constant(x, mask, by_position)
        name = NAMES[place] if place < len(NAMES) else Text(f"input {place}", f"输入 {place}")
        lost = int((~varies).sum())
        if lost and bool(varies.any()):
            notes.append(
                Text(
                    f"{lost} of the {varies.numel()} columns of {name.en} are constant and say nothing.",
                    f"{name.zh}的 {varies.numel()} 列中有 {lost} 列是常数，不含信息。",
                )
            )
        reach = (scale.mean.square() + scale.std.square()).sqrt()[varies]
        sizes += reach[reach > 0].tolist()
    if sizes and max(sizes) > FAR * min(sizes):
        notes.append(told_scales(max(sizes) / min(sizes), scaled))
    return notes


def constant(x: Tensor, mask: Tensor | None, by_position: bool) -> Tensor:
    """Which columns of the training part are the same everywhere."""
    seen = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    seen = seen.unsqueeze(-1) if seen.ndim == 1 else seen
    flat = seen.flatten(1) if by_position else seen.reshape(-1, seen.shape[-1])
    low, high = flat.nan_to_num(torch.inf).amin(0), flat.nan_to_num(-torch.inf).amax(0)
    found = low >= high
    return found.view(seen.shape[1:]) if by_position else found


def told_scales(ratio: float, scaled: bool) -> Text:
    """The note on scales, with what was done or what to do about them."""
    times = f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.0e}"
    if scaled:
        return Text(
            f"Columns differ in scale by up to {times} times; all inputs were standardised for every "
            "candidate alike (mean 0, variance 1 on the training rows). Standardise yours too.",
            f"各列的尺度相差可达 {times} 倍；所有候选的输入都已同样标准化（训练行上均值 0、方差 1）。"
            "使用时也请标准化。",
        )
    return Text(
        f"Columns differ in scale by up to {times} times and were not standardised: standardize=True does "
        "it for every candidate alike.",
        f"各列的尺度相差可达 {times} 倍，且未标准化：standardize=True 会对所有候选同样标准化。",
    )


def notes_on_classes(target: Tensor) -> list[Text]:
    """Notes on a class with most of the rows, and on classes with hardly any; for integer targets."""
    classes, counts = target[target != IGNORED].unique(return_counts=True)
    notes, share = [], float(counts.max()) / max(int(counts.sum()), 1)
    if share > 0.8:
        most = int(classes[counts.argmax()])
        notes.append(
            Text(
                f"{share:.0%} of the training rows are of class {most}: always guessing it is right as "
                "often.",
                f"{share:.0%} 的训练行属于类别 {most}：总猜它就有这么高的准确率。",
            )
        )
    tiny = int((counts < 5).sum())
    if tiny:
        notes.append(
            Text(
                f"{tiny} of the {len(classes)} classes have fewer than 5 training rows: little can be "
                "learned about them.",
                f"{len(classes)} 个类别中有 {tiny} 个的训练行不足 5 行：几乎学不到什么。",
            )
        )
    return notes
