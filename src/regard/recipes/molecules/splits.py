"""Splits of molecules in which no molecule is on two sides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np


def grouped_split(
    groups: Sequence[str], shares: Sequence[float], seed: int
) -> tuple[np.ndarray, ...]:
    """Random parts of about these shares of the rows, with all rows of a group in one part.

    Groups are sorted before they are shuffled, so that the parts do not depend on the order of the rows.

    Returns:
        for each share the numbers of its rows.
    """
    names = sorted(set(groups))
    np.random.default_rng(seed).shuffle(names)
    found = gathered(groups)
    return dealt([found[name] for name in names], shares)


def scaffold_split(scaffolds: Sequence[str], shares: Sequence[float]) -> tuple[np.ndarray, ...]:
    """Parts by scaffold: the largest groups first, so that the last part has the rare scaffolds.

    This is MoleculeNet's split, which has no seed: of groups of one size, those that begin later come first. The
    order matters: BBBP's file is sorted so that the other one leaves only positive rows for validation and test.
    """
    groups = gathered(scaffolds).values()
    return dealt(sorted(groups, key=lambda rows: (-len(rows), -rows[0])), shares)


def gathered(groups: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each group."""
    found: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(groups):
        found[name].append(row)
    return found


def dealt(groups: Sequence[list[int]], shares: Sequence[float]) -> tuple[np.ndarray, ...]:
    """Whole groups dealt to parts in order: each to the first part that has room for it, else to the last."""
    rows = sum(map(len, groups))
    # Rounded, since 0.8 + 0.1 of a thousand rows must not be 899.99.
    room = [round(share * rows) for share in shares]
    parts: list[list[int]] = [[] for _ in shares]
    for group in groups:
        fitting = (n for n, part in enumerate(parts) if len(part) + len(group) <= room[n])
        parts[next(fitting, len(parts) - 1)] += group
    return tuple(np.array(part, np.int64) for part in parts)
