"""The network: blocks of attention over bonds, a readout by attention over atoms, and a small head.

Shape legend: A atoms, E directed bonds, N molecules, D width, H heads.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import Score
from regard.nn import GraphAttention
from regard.recipes.equal import MEAN, EqualWeights
from regard.recipes.estimator import own_score
from regard.recipes.molecules.features import ATOM_WIDTH, BOND_WIDTH
from regard.recipes.molecules.packing import MoleculeBatch

Pooling = Literal["attention", "sum", "mean", "attention+sum"]
POOLINGS: tuple[Pooling, ...] = ("attention", "sum", "mean", "attention+sum")
# Sums over atoms are divided by this, near the mean size of a molecule, to keep the variance near 1.
USUAL_SIZE = 15.0


class NetSizes(NamedTuple):
    """What decides the shapes of a `MoleculeNet`."""

    width: int
    heads: int
    layers: int
    dropout: float
    pooling: Pooling
    extra: int  # descriptors beside the graph, 0 for none


def over_edges(
    score: str | Score | None, sizes: NetSizes, bond_width: int | None
) -> GraphAttention:
    """Attention over edges with any score; values and edge features have projections of their own.

    The control shares one projection for all, since keys and queries would have no effect on it.
    """
    control = score == MEAN
    return GraphAttention(
        sizes.width,
        sizes.width // sizes.heads,
        sizes.heads,
        EqualWeights() if control else own_score(score),
        edge_dim=bond_width,
        edge_in_value=bond_width is not None,
        self_loops=bond_width is not None,
        fill=0.0,
        share_weights=control,
        share_value=control,
    )


class BondBlock(nn.Module):
    """Attention over bonds and a feed-forward part, each with a norm in front and a residual around it."""

    def __init__(self, score: str | Score | None, sizes: NetSizes) -> None:
        super().__init__()
        wide = sizes.width
        self.before_attention, self.before_change = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.attention = over_edges(score, sizes, BOND_WIDTH)
        self.change = nn.Sequential(nn.Linear(wide, 2 * wide), nn.SiLU(), nn.Linear(2 * wide, wide))
        self.drop = nn.Dropout(sizes.dropout)

    def forward(self, x_AD: Tensor, batch: MoleculeBatch) -> Tensor:
        """The atoms after the block."""
        seen = self.attention(self.before_attention(x_AD), batch.edge_index, batch.bonds)
        return self.rest(x_AD, seen)

    def rest(self, x_AD: Tensor, seen_AD: Tensor) -> Tensor:
        """The block after what the atoms have seen of their neighbours."""
        x_AD = x_AD + self.drop(seen_AD)
        return x_AD + self.drop(self.change(self.before_change(x_AD)))


class Readout(nn.Module):
    """From atoms to molecules: sum, mean, or attention of a query made from the sum over the atoms."""

    def __init__(self, score: str | Score | None, sizes: NetSizes) -> None:
        super().__init__()
        self.pooling = sizes.pooling
        self.attention = over_edges(score, sizes, None) if "attention" in sizes.pooling else None
        self.width = sizes.width * (2 if sizes.pooling == "attention+sum" else 1)

    def forward(self, x_AD: Tensor, batch: MoleculeBatch) -> Tensor:
        """The molecules (N, width)."""
        total = summed(x_AD, batch)
        parts = []
        if self.attention is not None:
            parts.append(self.attention((x_AD, total / batch.sizes), belonging(batch)))
        if self.pooling == "mean":
            parts.append(total / batch.sizes)
        if self.pooling in ("sum", "attention+sum"):
            parts.append(total / USUAL_SIZE)
        return torch.cat(parts, -1)


class MoleculeNet(nn.Module):
    """One number for each molecule from its atoms and bonds.

    Args:
        score: of all attention; a `Score` object is copied for each layer. "mean" for equal weights.
        sizes: widths, depth and the rest.
    """

    def __init__(self, score: str | Score | None, sizes: NetSizes) -> None:
        super().__init__()
        wide, drop = sizes.width, sizes.dropout
        self.embed = nn.Linear(ATOM_WIDTH, wide)
        self.blocks = nn.ModuleList(BondBlock(score, sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(wide)
        self.readout = Readout(score, sizes)
        self.beside = None
        if sizes.extra:
            self.beside = nn.Sequential(
                nn.Dropout(drop), nn.Linear(sizes.extra, wide), nn.SiLU(), nn.Dropout(drop)
            )
        inner = self.readout.width + (wide if sizes.extra else 0)
        self.head = nn.Sequential(
            nn.Linear(inner, wide), nn.SiLU(), nn.Dropout(drop), nn.Linear(wide, 1)
        )

    def forward(self, batch: MoleculeBatch) -> Tensor:
        """The outputs (N,): standardised values, or logits of the second class."""
        x_AD = self.embed(batch.atoms)
        for block in self.blocks:
            x_AD = block(x_AD, batch)
        return self.judge(self.norm(x_AD), batch)

    def judge(self, x_AD: Tensor, batch: MoleculeBatch) -> Tensor:
        """The outputs (N,) from the atoms after all blocks."""
        found = self.readout(x_AD, batch)
        if self.beside is not None:
            found = torch.cat([found, self.beside(batch.extra)], -1)
        return self.head(found).squeeze(-1)

    def attend(self, batch: MoleculeBatch) -> tuple[Tensor, Tensor | None]:
        """Weights of the directed bonds (layers, E, H), and of the atoms in the readout (A, H) or None."""
        x_AD, weights = self.embed(batch.atoms), []
        for block in self.blocks:
            assert isinstance(block, BondBlock)
            normed = block.before_attention(x_AD)
            found = block.attention.attend(normed, batch.edge_index, batch.bonds)
            weights.append(found.weights[found.edge >= 0])
            x_AD = block.rest(x_AD, found.output)
        x_AD = self.norm(x_AD)
        pooled = None
        if self.readout.attention is not None:
            query = summed(x_AD, batch) / batch.sizes
            pooled = self.readout.attention.attend((x_AD, query), belonging(batch)).weights
        return torch.stack(weights), pooled


class Ensemble(nn.Module):
    """Networks that are trained side by side from different starting weights; their mean is the prediction."""

    def __init__(self, members: list[MoleculeNet]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def networks(self) -> list[MoleculeNet]:
        """The members."""
        return [one for one in self.members if isinstance(one, MoleculeNet)]

    def forward(self, batch: MoleculeBatch) -> Tensor:
        """The outputs of all members (members, N)."""
        return torch.stack([one(batch) for one in self.members])


def summed(x_AD: Tensor, batch: MoleculeBatch) -> Tensor:
    """The sum over the atoms of each molecule, (N, D)."""
    return x_AD.new_zeros(len(batch.sizes), x_AD.shape[1]).index_add(0, batch.owner, x_AD)


def belonging(batch: MoleculeBatch) -> Tensor:
    """Edges (2, A) from each atom to its molecule."""
    return torch.stack([torch.arange(len(batch.owner), device=batch.owner.device), batch.owner])


def member_losses(out: Tensor, target: Tensor, classify: bool) -> Tensor:
    """The sum over members of the mean loss: squared error, or cross-entropy of the logits."""
    wanted = target.expand_as(out)
    if classify:
        return len(out) * F.binary_cross_entropy_with_logits(out, wanted)
    return len(out) * F.mse_loss(out, wanted)


def averaged(out: Tensor, classify: bool) -> Tensor:
    """The mean over members (members, N): of values, or of probabilities from logits."""
    return (out.sigmoid() if classify else out).mean(0)
