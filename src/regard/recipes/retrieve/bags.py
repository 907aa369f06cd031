"""`Bags`: documents or queries as sets of vectors, many of which share the rows of one table.

A text is a set of tokens, a picture a set of one vector. Shape legend: T rows of the table, D width, N items, E entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Bags:
    """Items, each with entries: rows of a table, how often, and how much each says.

    Attributes:
        table: (T, D) vectors.
        types: (E,) rows of the table, item after item.
        first: (N + 1,) where the entries of each item begin.
        counts: (E,) how often the item has that row.
        salience: (E,) how much an entry says: 0 or more.
        single: whether every item is one vector, with a count and a salience of 1.
    """

    table: Tensor
    types: Tensor
    first: Tensor
    counts: Tensor
    salience: Tensor
    single: bool = False

    def __len__(self) -> int:
        return len(self.first) - 1

    @classmethod
    def of_vectors(cls, x: Tensor) -> Self:
        """Items that are one vector each."""
        one = torch.ones(len(x), device=x.device)
        rows = torch.arange(len(x) + 1, device=x.device)
        return cls(x, rows[:-1], rows, one, one.clone(), single=True)

    @property
    def sizes(self) -> Tensor:
        """Entries of each item (N,)."""
        return self.first.diff()

    @property
    def owners(self) -> Tensor:
        """The item of each entry (E,)."""
        return torch.arange(len(self), device=self.first.device).repeat_interleave(self.sizes)

    def take(self, rows: Tensor) -> Bags:
        """Some of the items, with the same table."""
        rows = rows.to(self.first.device)
        sizes = self.sizes[rows]
        first = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        within = torch.arange(int(first[-1]), device=first.device) - first[:-1].repeat_interleave(
            sizes
        )
        place = self.first[rows].repeat_interleave(sizes) + within
        return replace(
            self, types=self.types[place], first=first, counts=self.counts[place],
            salience=self.salience[place],
        )  # fmt: skip

    def compact(self) -> Bags:
        """The same items, with a table that has only the rows in use."""
        used, types = self.types.unique(return_inverse=True)
        return replace(self, table=self.table[used], types=types)

    def summed(self, x: Tensor, weights: Tensor) -> Tensor:
        """For each item the sum (N, *) of rows of x (T, *), with these weights (E,) of its entries."""
        return functional.embedding_bag(
            self.types, x, self.first[:-1], mode="sum", per_sample_weights=weights.to(x)
        )

    @cached_property
    def means(self) -> Tensor:
        """For each item the sum of its vectors by salience, of norm 1 (N, D); of an item without entries 0."""
        return functional.normalize(self.summed(self.table, self.salience), dim=-1)

    def lengths(self) -> Tensor:
        """The sum of counts of each item (N,)."""
        return self.summed(torch.ones_like(self.table[:, :1]), self.counts)[:, 0]

    def to(self, device: torch.device) -> Bags:
        """The same on another device."""
        return Bags(
            *(
                x.to(device)
                for x in (self.table, self.types, self.first, self.counts, self.salience)
            ),
            single=self.single,
        )


def gathered(table: Tensor, rows: list[dict[int, float]], salience: np.ndarray) -> Bags:
    """Items from counts of rows of the table.

    Args:
        table: (T, D).
        rows: of each item, how often it has which rows.
        salience: (T,) how much one occurrence of each row says; the second one says less, by 1 + log(count).
    """
    sizes = [len(one) for one in rows]
    types = np.array([t for one in rows for t in sorted(one)], np.int64)
    counts = np.array([one[t] for one in rows for t in sorted(one)], np.float32)
    weight = (salience[types] * (1 + np.log(np.maximum(counts, 1)))).astype(np.float32)
    first = torch.tensor([0, *np.cumsum(sizes, dtype=np.int64).tolist()])
    parts = (torch.from_numpy(types), first, torch.from_numpy(counts), torch.from_numpy(weight))
    return Bags(table, *parts)
