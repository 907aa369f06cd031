"""Rows as tables of features, for models without attention.

N rows, n keys of a row, D columns, L tokens or positions, P positions that have a tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from regard.choosing.training.metrics import IGNORED
from regard.choosing.training.scaling import mask_of

# Most training rows, most columns, and most pairs of a query and a key that a model without attention gets.
MOST_ROWS, MOST_COLUMNS, MOST_PAIRS = 5000, 1000, 40_000
TOKENS = 1000  # columns of token counts; further ids share columns
HIDDEN = -1e9  # the score of a key that is padding
# Most training positions that a model of tags gets, and how far to either side of a position it sees.
MOST_POSITIONS, AROUND = 10_000, 2
OUTSIDE = -1  # the token before the first position and after the last


@dataclass(frozen=True, eq=False)
class TabularPart:
    """One part of the data as features and answers.

    Attributes:
        features: (N, F); for pairs (N * n, F), all keys of a row together; for tags (P, F).
        answers: (N,) classes or numbers, (N, m) numbers; for pairs (N * n,); for tags (P,).
        kind: "classes", "numbers", or for pairs "right" (is this the right key?) and "relevance".
        classes: number of classes of the output.
        pairs: a row of features is a pair of a query and a key.
        alike: query and key have the same width.
        query, key, mask: for pairs, the data themselves.
        tagged: for tags (N, L), True at the positions that have one.
        tokens: features are numbers of tokens, which have no order.
    """

    features: np.ndarray
    answers: np.ndarray
    kind: str
    classes: int = 0
    pairs: bool = False
    alike: bool = False
    query: Tensor = field(default_factory=lambda: torch.empty(0))
    key: Tensor = field(default_factory=lambda: torch.empty(0))
    mask: Tensor | None = None
    tagged: Tensor | None = None
    tokens: bool = False

    def by_key(self, told: np.ndarray) -> Tensor:
        """Scores (N, n) from those of all pairs; hidden keys come last."""
        found = torch.as_tensor(np.asarray(told)).float().reshape(self.key.shape[:2])
        return found if self.mask is None else found.masked_fill(~self.mask, HIDDEN)

    def by_position(self, told: np.ndarray) -> Tensor:
        """Outputs (N, L, C) from those of all tagged positions (P, C), 0 elsewhere; (N, C) if there are no tags."""
        found = torch.as_tensor(told).float()
        if self.tagged is None:
            return found
        whole = torch.zeros(*self.tagged.shape, found.shape[-1])
        whole[self.tagged] = found
        return whole


def tabular(
    parts: Sequence[tuple[Tensor, ...]], match: bool
) -> tuple[TabularPart, TabularPart, TabularPart] | None:
    """The train, validation and test parts as tables; None for data that no table can hold.

    Args:
        parts: arrays (inputs ..., target) of each part.
        match: the inputs are a query, keys and perhaps a mask, and the target is about keys.
    """
    *inputs, target = parts[0]
    if match:
        limit = min(MOST_ROWS, max(MOST_PAIRS // inputs[1].shape[1], 100))
        first = fewer(parts[0], limit)
        found = [as_pairs(part) for part in (first, *parts[1:])]
        return found[0], found[1], found[2]
    classes = 0
    if not target.is_floating_point():
        classes = max(int(part[-1].max()) for part in parts) + 1
    if target.ndim == 2 and classes and inputs[0].shape[:2] == target.shape:
        limit = max(MOST_POSITIONS // target.shape[1], 100)
        found = [as_positions(part, classes) for part in (fewer(parts[0], limit), *parts[1:])]
        return found[0], found[1], found[2]
    if target.ndim > 2 or (target.ndim == 2 and classes):
        return None
    rows = [as_rows(part, classes) for part in (fewer(parts[0], MOST_ROWS), *parts[1:])]
    if rows[0].features.shape[1] == 0:
        return None
    return rows[0], rows[1], rows[2]


def fewer(arrays: tuple[Tensor, ...], most: int) -> tuple[Tensor, ...]:
    """At most so many rows, drawn at random."""
    if len(arrays[-1]) <= most:
        return arrays
    order = torch.randperm(len(arrays[-1]), generator=torch.Generator().manual_seed(0))[:most]
    return tuple(x[order] for x in arrays)


def as_pairs(arrays: tuple[Tensor, ...]) -> TabularPart:
    """Pairs of a query and each of its keys: [q, k], and [q * k, |q - k|] if widths agree."""
    query, key, *more, target = (x.cpu() for x in arrays)
    query, key = query.float(), key.float()
    mask = mask_of(key, more)
    wide = query.unsqueeze(1).expand(-1, key.shape[1], -1)
    alike = query.shape[-1] == key.shape[-1]
    columns = [wide, key]
    if alike:
        columns += [wide * key, (wide - key).abs()]
    features = torch.cat(columns, -1).flatten(0, 1).numpy()
    relevance = target.ndim == 2
    if relevance:
        answers = target.float().flatten().numpy()
    else:
        answers = torch.nn.functional.one_hot(target.long(), key.shape[1]).flatten().numpy()
    kind = "relevance" if relevance else "right"
    return TabularPart(features, answers, kind, 2, True, alike, query, key, mask)


def as_rows(arrays: tuple[Tensor, ...], classes: int) -> TabularPart:
    """All inputs of a row side by side."""
    *inputs, target = (x.cpu() for x in arrays)
    columns = [side_by_side(x, mask_for(x, inputs)) for x in inputs if x.dtype != torch.bool]
    features = np.concatenate(columns, 1) if columns else np.empty((len(target), 0))
    kind = "numbers" if target.is_floating_point() else "classes"
    return TabularPart(features, target.numpy(), kind, classes)


def as_positions(arrays: tuple[Tensor, ...], classes: int) -> TabularPart:
    """Each tagged position as a row: what stands there and up to `AROUND` positions beside it."""
    x, *more, target = (one.cpu() for one in arrays)
    tokens = not x.is_floating_point()
    frames = x.long().unsqueeze(-1) if tokens else x.float().flatten(2)
    nothing = OUTSIDE if tokens else 0
    mask = mask_for(x, more)
    if mask is not None:
        frames = frames.masked_fill(~mask.unsqueeze(-1), nothing)
    around = min(AROUND, max(MOST_COLUMNS // frames.shape[-1] - 1, 0) // 2)
    edge = frames.new_full((len(x), around, frames.shape[-1]), nothing)
    padded = torch.cat([edge, frames, edge], 1)
    beside = [padded[:, n : n + frames.shape[1]] for n in range(2 * around + 1)]
    tagged = target != IGNORED
    features = torch.cat(beside, -1)[tagged][:, :MOST_COLUMNS]
    return TabularPart(
        features.numpy(), target[tagged].numpy(), "classes", classes, tagged=tagged, tokens=tokens
    )


def mask_for(x: Tensor, inputs: Sequence[Tensor]) -> Tensor | None:
    """The input that says which positions of x (N, n, *) are real; None if there is none."""
    if x.ndim == 2 and not x.is_floating_point():  # tokens (N, L)
        return next((m for m in inputs if m.dtype == torch.bool and m.shape == x.shape), None)
    return mask_of(x, inputs)


def side_by_side(x: Tensor, mask: Tensor | None) -> np.ndarray:
    """An input as columns (N, F).

    Integers (N, L) are tokens and are counted. Floats with more than `MOST_COLUMNS` numbers in a row, or
    with hidden positions, are the mean, the largest and the smallest of each column.
    """
    if x.ndim == 1:
        return x.float().unsqueeze(1).numpy()
    if not x.is_floating_point():
        ids = x.flatten(1).long() % TOKENS
        weight = torch.ones(ids.shape) if mask is None else mask.flatten(1).float()
        return torch.zeros(len(x), TOKENS).scatter_add_(1, ids, weight).numpy()
    flat = x.float().flatten(1)
    # Numbers (N, F, 1) are columns of a table: hidden ones are 0, the mean, after standardising.
    if x.ndim == 2 or ((mask is None or x.shape[-1] == 1) and flat.shape[1] <= MOST_COLUMNS):
        return flat[:, :MOST_COLUMNS].numpy()
    rows = x.float().flatten(1, -2)
    seen = torch.ones(rows.shape[:2], dtype=torch.bool) if mask is None else mask
    hidden = ~seen.unsqueeze(-1)
    mean = rows.masked_fill(hidden, 0).sum(1) / seen.sum(1, keepdim=True).clamp(min=1)
    low = rows.masked_fill(hidden, torch.inf).amin(1).nan_to_num(posinf=0.0)
    high = rows.masked_fill(hidden, -torch.inf).amax(1).nan_to_num(neginf=0.0)
    return torch.cat([mean, low, high], 1)[:, :MOST_COLUMNS].numpy()
