"""Rows that we split into parts: at random, by groups that stay together, or as a column says. N rows.

Rows that share an item (a speaker, a document, a series) are alike. If some of them are trained on and others
tested on, the test rewards remembering the item. Groups stay in one part, so the test is on new items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.choosing.training.asking import named
from regard.choosing.training.errors import ChooseError
from regard.text import Text

PARTS = ("train", "validation", "test")
SHARES = (0.6, 0.2, 0.2)
# Words that a split column may use for the parts.
WORDS = {
    "train": 0, "training": 0, "fit": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1,
    "development": 1, "test": 2, "testing": 2, "eval": 2, "holdout": 2,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The train, validation and test parts of one set of rows.

    Attributes:
        parts: for each part its arrays (inputs ..., target).
        groups: for each part the group of each row, as integers; None if no groups were given.
        positional: places of inputs (N, n, D) whose n positions each have a meaning of their own, such as
            the columns of a table; they are standardised by position.
    """

    parts: tuple[tuple[Tensor, ...], ...]
    groups: tuple[Tensor, ...] | None = None
    positional: tuple[int, ...] = ()

    def __getitem__(self, part: int) -> tuple[Tensor, ...]:
        """The arrays of a part: 0 to train on, 1 to choose rates by, 2 to test on."""
        return self.parts[part]

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.parts)


def split_rows(
    arrays: Sequence[Any],
    group: Any = None,
    split: Any = None,
    positional: Sequence[int] = (),
) -> SplitRows:
    """The parts of rows given as arrays (inputs ..., target).

    Args:
        arrays: arrays with one entry for each row, the target last.
        group: for each row a name or number; rows of one group stay in one part.
        split: for each row the part that it belongs to: train, validation or test.
        positional: see `SplitRows`.

    Raises:
        ChooseError: there are too few rows or groups, or a column does not fit.
    """
    tensors = [torch.as_tensor(x) for x in arrays]
    rows = len(tensors[-1])
    ids = None if group is None else group_ids(group, rows)
    if split is None:
        own = torch.arange(rows) if ids is None else ids
        place = drawn_parts(own, SHARES, "rows" if ids is None else "groups")
    else:
        place = obeyed(split, rows, ids)
    taken = [torch.nonzero(place == part).flatten() for part in range(3)]
    # Random order: without it the parts of a sorted file would be sorted too.
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    taken = [order[torch.isin(order, rows_of)] for rows_of in taken]
    return SplitRows(
        tuple(tuple(x[rows_of] for x in tensors) for rows_of in taken),
        None if ids is None else tuple(ids[rows_of] for rows_of in taken),
        tuple(positional),
    )


def group_ids(group: Any, rows: int) -> Tensor:
    """Groups as integers from 0, whatever names they have."""
    found = column(group, "group", rows)
    try:
        _, ids = np.unique(found, return_inverse=True)
    except TypeError:
        raise ChooseError(
            f"{named('group')} must hold names of one kind, all strings or all numbers; some are missing or differ. "
            'Name the missing ones: frame["group"] = frame["group"].fillna("none").astype(str)'
        ) from None
    return torch.as_tensor(ids.reshape(-1).astype(np.int64))


def column(given: Any, name: str, rows: int) -> np.ndarray:
    """A column of names as an array (N,)."""
    found = given.numpy() if isinstance(given, Tensor) else np.asarray(given)
    if found.shape != (rows,):
        raise ChooseError(
            f"{named(name)} must have one entry for each of the {rows} rows, got shape {found.shape}"
        )
    return found


def drawn_parts(ids: Tensor, shares: Sequence[float], what: str) -> Tensor:
    """The part of each row, drawn at random: rows with one id go together.

    Each group goes to the part that lacks most of its share.

    Raises:
        ChooseError: there are fewer groups than parts.
    """
    sizes = torch.bincount(ids).tolist()
    if len(sizes) < len(shares):
        raise ChooseError(
            f"{len(sizes)} {what} cannot be split into {len(shares)} parts; give at least {len(shares)}, "
            f"or a {named('split')} column that says train, validation or test for each row"
        )
    lacking = [share * len(ids) for share in shares]
    empty, found = set(range(len(shares))), []
    # A fixed seed: a resumed run must see the same parts.
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0)).tolist()
    for done, one in enumerate(order):
        # The last groups go to parts that would otherwise stay empty.
        open_to = empty if len(order) - done <= len(empty) else range(len(shares))
        part = max(open_to, key=lambda i: lacking[i])
        lacking[part] -= sizes[one]
        empty.discard(part)
        found.append(part)
    parts = torch.empty(len(sizes), dtype=torch.long)
    parts[torch.tensor(order)] = torch.tensor(found)
    return parts[ids]


def obeyed(split: Any, rows: int, ids: Tensor | None) -> Tensor:
    """The part of each row as a column says.

    A missing validation part is taken from the training rows, and a missing test part from the
    validation rows.

    Raises:
        ChooseError: a word is unknown, there is nothing to train on or to test on, or a group stands in
            two parts.
    """
    said = [str(x).strip().lower() for x in column(split, "split", rows)]
    unknown = sorted({word for word in said if word not in WORDS})
    if unknown:
        raise ChooseError(
            f"{named('split')} holds {', '.join(map(repr, unknown[:3]))}; it must say train, validation or test for "
            'each row, for example frame["split"] = frame["fold"].map({0: "train", 1: "test"})'
        )
    place = torch.tensor([WORDS[word] for word in said])
    counts = torch.bincount(place, minlength=3).tolist()
    if not counts[0] or not (counts[1] or counts[2]):
        held = ", ".join(f"{n} {part}" for part, n in zip(PARTS, counts, strict=True))
        raise ChooseError(
            f"{named('split')} needs rows to train on and rows to test on, but has {held}"
        )
    if not counts[1] or not counts[2]:
        source, shares = (0, (0.75, 0.25)) if not counts[1] else (1, (0.5, 0.5))
        inside = torch.nonzero(place == source).flatten()
        own = (
            torch.arange(len(inside)) if ids is None else ids[inside].unique(return_inverse=True)[1]
        )
        what = f"{'rows' if ids is None else 'groups'} of the {PARTS[source]} part"
        place[inside] = source + drawn_parts(own, shares, what)
    if ids is not None:
        check_apart(ids, place)
    return place


def check_apart(ids: Tensor, place: Tensor) -> None:
    """Raise ChooseError if a group stands in two parts."""
    pairs = torch.stack([ids, place], 1).unique(dim=0)
    torn = int(len(pairs) - len(pairs[:, 0].unique()))
    if torn:
        raise ChooseError(
            f"{named('split')} puts rows of one group into different parts, for {torn} of the groups; drop "
            f"{named('group')}, or drop {named('split')} and whole groups are split at random"
        )


def leaks(train: Sequence[Tensor], test: Sequence[Tensor]) -> list[Text]:
    """Notes on test rows whose query, or whose set of keys, is in the training part too.

    Args:
        train: arrays (query, keys ..., target) of the training part, or (sequences ..., target).
        test: those of the test part.
    """
    names = [Text("query", "查询"), Text("set of keys", "键集")]
    if train[0].ndim != 2 or len(train) < 3 or train[1].ndim != 3:
        names = [Text("first input", "第一个输入")]
    notes = []
    for name, known, asked in zip(names, train[:-1], test[:-1], strict=False):
        if known.shape[1:] != asked.shape[1:]:  # rows of other sizes are other rows
            continue
        seen, new = row_keys(known), row_keys(asked)
        # What all rows share tells no row from another, so it cannot leak.
        if len(np.unique(seen)) < 2:
            continue
        share = float(np.isin(new, seen).mean())
        if share > 0.01:
            notes.append(
                Text(
                    f"{share:.0%} of the test rows have a {name.en} that is in the training rows too: the "
                    f"result says little about new items. If rows share an item, give {named('group')}.",
                    f"{share:.0%} 的测试行的{name.zh}也在训练行里：结果很难说明对新对象的表现。"
                    f"若多行属于同一对象，请给出 {named('group')}。",
                )
            )
    return notes


def row_keys(x: Tensor) -> np.ndarray:
    """Each row as one value that can be compared; the order of keys (N, n, D) does not matter."""
    flat = x.detach().cpu().contiguous().numpy() + 0  # -0.0 and 0.0 are one number
    if flat.ndim > 2 and x.is_floating_point() and flat.shape[1] <= 64:
        # Sorting keys by a fixed random projection puts equal sets into one order.
        mixed = flat.reshape(*flat.shape[:2], -1)
        draw = np.random.default_rng(0).normal(size=mixed.shape[-1]).astype(np.float32)
        order = np.argsort(mixed @ draw, axis=1, kind="stable")
        flat = np.take_along_axis(mixed, order[..., None], 1)
    rows = np.ascontiguousarray(flat.reshape(len(flat), -1))
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).reshape(-1)
