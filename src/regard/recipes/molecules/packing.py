"""All molecules of a set in one graph on the device, and batches as selections of it.

Shape legend: A atoms, E directed bonds, N molecules, K descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.recipes.molecules.features import Molecule


class MoleculeBatch(NamedTuple):
    """Molecules as one graph without edges between them.

    Attributes:
        atoms: (A, F).
        edge_index: (2, E), sources and targets among the atoms.
        bonds: (E, G).
        owner: (A,) the molecule of each atom.
        sizes: (N, 1) atoms of each molecule.
        extra: (N, K) descriptors, standardised; None without them.
        target: (N,) standardised values or classes 0 and 1.
    """

    atoms: Tensor
    edge_index: Tensor
    bonds: Tensor
    owner: Tensor
    sizes: Tensor
    extra: Tensor | None
    target: Tensor


class Packed:
    """Many molecules, collated once; `select` gathers some of them without a loop over molecules.

    Positions are computed on the CPU, where their number is known without waiting for a GPU.
    """

    def __init__(
        self,
        molecules: Sequence[Molecule],
        target: np.ndarray,
        extra: np.ndarray | None,
        device: torch.device,
    ) -> None:
        self.device = device
        self.atom_count = np.array([len(one.atoms) for one in molecules])
        self.edge_count = np.array([one.ends.shape[1] for one in molecules])
        self.first_atom = np.cumsum(self.atom_count) - self.atom_count
        self.first_edge = np.cumsum(self.edge_count) - self.edge_count
        # Counted from the first atom of their molecule, so that a selection only adds its own offsets.
        self.ends = np.concatenate([one.ends for one in molecules], 1)
        self.atoms = self.put(np.concatenate([one.atoms for one in molecules]))
        self.bonds = self.put(np.concatenate([one.bonds for one in molecules]))
        self.target = self.put(target.astype(np.float32))
        self.extra = None if extra is None else self.put(extra.astype(np.float32))

    def __len__(self) -> int:
        return len(self.atom_count)

    def put(self, x: np.ndarray) -> Tensor:
        """The array as a tensor on the device."""
        return torch.as_tensor(x).to(self.device, non_blocking=True)

    def select(self, rows: np.ndarray) -> MoleculeBatch:
        """The molecules of these rows, in their order."""
        count = self.atom_count[rows]
        atoms = ranges(self.first_atom[rows], count)
        edges = ranges(self.first_edge[rows], self.edge_count[rows])
        offset = np.repeat(np.cumsum(count) - count, self.edge_count[rows])
        chosen = self.put(rows)
        return MoleculeBatch(
            atoms=self.atoms[self.put(atoms)],
            edge_index=self.put(self.ends[:, edges] + offset),
            bonds=self.bonds[self.put(edges)],
            owner=self.put(np.repeat(np.arange(len(rows)), count)),
            sizes=self.put(count[:, None].astype(np.float32)),
            extra=None if self.extra is None else self.extra[chosen],
            target=self.target[chosen],
        )

    def pieces(self, size: int) -> list[MoleculeBatch]:
        """All molecules in order, `size` in a batch."""
        rows = np.arange(len(self))
        return [self.select(rows[at : at + size]) for at in range(0, len(rows), size)]


def ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The numbers first[i], ..., first[i] + count[i] - 1 for all i, joined."""
    steps = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(first, count) + steps
