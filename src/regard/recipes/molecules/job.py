"""What `MoleculePredictor` gives to the training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from regard.recipes.molecules.net import Ensemble, averaged, member_losses
from regard.recipes.molecules.packing import MoleculeBatch, Packed
from regard.recipes.molecules.ranking import ROC_AUC
from regard.recipes.training import Job

PREDICTED_AT_ONCE = 256  # molecules


class MoleculeJob(Job):
    """The training of a predictor: shuffled batches, the loss of the task and the quality on validation rows.

    Args:
        model: what is trained.
        rows: for training and for validation.
        size: molecules in a batch.
        seed: of the shuffling.
        unit: what 1 of a standardised target stands for; None for classes.
    """

    def __init__(
        self,
        model: Ensemble,
        rows: tuple[Packed, Packed],
        size: int,
        seed: int,
        unit: float | None,
    ) -> None:
        self.model = model
        self.packed, held = rows
        self.size, self.seed = size, seed
        self.unit, self.classify = unit, unit is None
        self.held = held.pieces(PREDICTED_AT_ONCE)
        self.wanted = held.target.cpu().numpy()

    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.packed) // self.size)

    def batches(self, epoch: int) -> Iterator[MoleculeBatch]:
        """All training molecules, shuffled by seed and epoch, in batches of almost equal size."""
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.packed))
        return map(self.packed.select, np.array_split(order, self.steps_per_epoch()))

    def loss(self, batch: MoleculeBatch) -> Tensor:
        """The loss of all members."""
        return member_losses(self.model(batch), batch.target, self.classify)

    def validate(self, model: nn.Module) -> float:
        """ROC-AUC of the mean prediction, or its RMSE in the unit of the targets with the sign turned."""
        out = torch.cat([averaged(model(one), self.classify) for one in self.held]).cpu().numpy()
        if self.unit is None:
            area = ROC_AUC.value(np.stack([self.wanted, out], 1))
            # Rows of one class say nothing. NaN would leave the last weights, as if training had diverged.
            return 0.5 if math.isnan(area) else area
        return -self.unit * float(np.sqrt(np.mean((out - self.wanted) ** 2)))
