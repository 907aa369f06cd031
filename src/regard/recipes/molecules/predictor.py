"""`MoleculePredictor`: a property of molecules from their SMILES, by attention over bonds."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch

from regard import Score
from regard.recipes.estimator import Recipe, RecipeError, building, checked_validation
from regard.recipes.metrics import RMSE, Metric
from regard.recipes.molecules.features import (
    canonical,
    check_smiles,
    descriptors,
    featurised,
    parsed,
)
from regard.recipes.molecules.job import PREDICTED_AT_ONCE, MoleculeJob
from regard.recipes.molecules.net import (
    POOLINGS,
    Ensemble,
    MoleculeNet,
    NetSizes,
    Pooling,
    averaged,
)
from regard.recipes.molecules.packing import Packed
from regard.recipes.molecules.ranking import ROC_AUC
from regard.recipes.molecules.splits import grouped_split
from regard.recipes.molecules.targets import check_targets, scale_of
from regard.recipes.training import TrainingPlan, TrainingProgress, train

TASKS = ("regression", "classification")
HELD = 0.1  # share of the rows that decide when to stop, where no validation rows are given
WARMUP = 0.05  # share of all steps in which the rate rises
EXTREME = 4.0  # standardised descriptors are cut here: single large ones would decide a prediction


class AttendedMolecule(NamedTuple):
    """Where a prediction looked in one molecule.

    Attributes:
        smiles: as given.
        atoms: the elements, in RDKit's order of the atoms.
        bonds: (bonds, 2) numbers of the atoms that each bond joins.
        weights: (bonds,) the weight of each bond: the mean over layers, heads and both directions.
        lift: (bonds,) the same with each weight divided by that of equal weights: 1 is an average bond.
            Atoms with few neighbours give each of them a large weight, which `weights` shows and `lift` does not.
        atom_weights: (atoms,) weights in the readout, which sum to 1; equal ones where it has no attention.
        by_layer: (layers, directed bonds, heads) all weights; bond b is in columns 2 b (first to second atom)
            and 2 b + 1.
    """

    smiles: str
    atoms: list[str]
    bonds: np.ndarray
    weights: np.ndarray
    lift: np.ndarray
    atom_weights: np.ndarray
    by_layer: np.ndarray


class MoleculePredictor(Recipe):
    """Predicts a number or a class from SMILES with attention over bonds.

    Atoms attend over their bonds in `layers` residual blocks of `regard.nn.GraphAttention` with bond features;
    a readout attends over the atoms of each molecule. Targets are standardised inside.

    Args:
        task: "regression", or "classification" into two classes.
        score: a name such as "gatv2", a `Score`, None for scaled dot, or "mean" for equal weights, the control.
        width: of atoms in the blocks; a multiple of `heads`.
        heads: of each attention.
        layers: blocks; an atom sees that many bonds far.
        dropout: in blocks and head.
        pooling: from atoms to molecule: "attention", "sum", "mean", or "attention+sum" for both side by side.
        descriptors: give RDKit's descriptors of the whole molecule to the head, beside the graph.
        epochs: of training, at most.
        rate: the largest learning rate; it falls along a cosine.
        weight_decay: of AdamW.
        batch: molecules in a batch.
        average: decay of the moving average of the weights; None for none.
        patience: the most validations in a row without a better one: the next such ends training; None for never.
        ensemble: networks trained side by side, whose mean is the prediction.
        seed: of weights, batches and dropout.
        device: None for the GPU if there is one.
    """

    name = "molecules"

    def __init__(
        self,
        task: Literal["regression", "classification"] = "regression",
        score: str | Score | None = "gatv2",
        width: int = 32,
        heads: int = 4,
        layers: int = 3,
        dropout: float = 0.05,
        pooling: Pooling = "attention+sum",
        descriptors: bool = False,
        epochs: int = 60,
        rate: float = 3e-3,
        weight_decay: float = 0.01,
        batch: int = 64,
        average: float | None = 0.97,
        patience: int | None = None,
        ensemble: int = 1,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.score = score  # type: ignore[bad-override] - kept as `chosen_score`
        self.task, self.width, self.heads = task, width, heads
        self.layers, self.dropout, self.pooling, self.descriptors = (
            layers, dropout, pooling, descriptors,
        )  # fmt: skip
        self.epochs, self.rate, self.weight_decay, self.batch = epochs, rate, weight_decay, batch
        self.average, self.patience, self.ensemble = average, patience, ensemble
        self.seed, self.device = seed, device

    @property
    def metric(self) -> Metric:  # type: ignore[override] - follows from the task
        """RMSE, or ROC-AUC for classes."""
        return ROC_AUC if self.classifies else RMSE

    @property
    def classifies(self) -> bool:
        """Whether the task is classification."""
        return self.task == "classification"

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on SMILES and their values or classes; see `Recipe.fit`.

        Without `validation`, a tenth of the molecules is kept apart; a molecule that occurs twice, in whatever
        spelling, is on one side.
        """
        self.check_arguments()
        x = check_smiles(x)
        if validation is None:
            x, y, held_x, held_y = held_apart(x, self.checked(x, y), self.seed)
        else:
            held_x, held_y = checked_validation(validation)
            held_x = check_smiles(held_x, "validation")
        y, held_y = self.checked(x, y), self.checked(held_x, held_y)
        self.learn_scales(x, y)
        self.model_ = self.fresh_model()
        rows = (self.packed(x, y), self.packed(held_x, held_y))
        unit = None if self.classifies else self.scale_[1]
        job = MoleculeJob(self.model_, rows, self.batch, self.seed, unit)
        self.history_ = train(
            job,
            self.plan(job.steps_per_epoch()),
            seed=self.seed,
            device=self.chosen_device(),
            checkpoint=checkpoint,
            progress=progress,
            identity=lambda: self.identity(x, y, held_x, held_y),
        )
        self.model_.eval()
        return self

    def predict(self, x: Any) -> np.ndarray:
        """The values, or the more probable classes, of these SMILES; an empty list gives an empty array."""
        out = self.outputs(x)
        if not self.classifies:
            return out * self.scale_[1] + self.scale_[0]
        return np.asarray(self.classes_)[(out > 0.5).astype(int)]

    def predict_proba(self, x: Any) -> np.ndarray:
        """The probabilities (N, 2) of both classes, in the order of `classes_`."""
        if not self.classifies:
            raise RecipeError("predict_proba is for task='classification'; use predict")
        second = self.outputs(x)
        return np.stack([1 - second, second], 1)

    def statistics(self, x: Any, y: Any) -> np.ndarray:
        """Squared errors (N, 1), or class and probability (N, 2)."""
        y = self.checked(check_smiles(x), y)
        if self.classifies:
            return np.stack([self.encoded(y), self.outputs(x)], 1)
        return (self.predict(x) - y)[:, None] ** 2

    @torch.no_grad()
    def outputs(self, x: Any) -> np.ndarray:
        """Standardised values, or probabilities of the second class: the mean over the ensemble."""
        self.check_fitted()
        if hasattr(x, "__len__") and not isinstance(x, str) and len(x) == 0:
            return np.zeros(0)
        packed, classify = self.packed(check_smiles(x), None), self.classifies
        found = [averaged(self.model_(one), classify) for one in packed.pieces(PREDICTED_AT_ONCE)]
        return torch.cat(found).double().cpu().numpy()

    @torch.no_grad()
    def attend(self, smiles: str) -> AttendedMolecule:
        """Where the prediction for one molecule looks; of an ensemble, the mean over its members."""
        self.check_fitted()
        found = parsed(smiles)
        batch = self.packed([smiles], None).select(np.zeros(1, np.int64))
        assert isinstance(self.model_, Ensemble)
        each = [one.attend(batch) for one in self.model_.networks()]
        by_layer = torch.stack([weights for weights, _ in each]).mean(0).double().cpu().numpy()
        bonds = featurised(smiles).ends[:, ::2].T
        into = batch.edge_index[1].cpu().numpy()
        # Every atom also attends to itself.
        equal = 1 / (1 + np.bincount(into, minlength=found.GetNumAtoms())[into])
        directed = by_layer.mean((0, 2))
        pooled = [weights for _, weights in each if weights is not None]
        atom_weights = np.full(found.GetNumAtoms(), 1 / found.GetNumAtoms())
        if pooled:
            atom_weights = torch.stack(pooled).mean((0, 2)).double().cpu().numpy()
        return AttendedMolecule(
            smiles,
            [atom.GetSymbol() for atom in found.GetAtoms()],
            bonds,
            directed.reshape(-1, 2).mean(1),
            (directed / equal).reshape(-1, 2).mean(1),
            atom_weights,
            by_layer,
        )

    def estimator_kind(self) -> str:
        """By the task."""
        return "classifier" if self.classifies else "regressor"

    def learned(self) -> dict[str, Any]:
        """Scales of targets and descriptors, and the classes."""
        return {
            "scale": self.scale_,
            "classes": self.classes_,
            "extra": None if self.extra_ is None else [list(map(float, x)) for x in self.extra_],
        }

    def restore(self, learned: dict[str, Any]) -> None:
        """Set what `learned` returned, and build the networks."""
        self.check_arguments()
        mean, spread = map(float, learned["scale"])
        self.scale_, self.classes_ = [mean, spread], learned["classes"]
        extra = learned["extra"]
        self.extra_ = None if extra is None else (np.array(extra[0]), np.array(extra[1]))
        self.model_ = self.fresh_model()

    def learn_scales(self, x: list[str], y: np.ndarray) -> None:
        """Mean and deviation of targets and descriptors; the two classes."""
        self.scale_: list[float] = [0.0, 1.0]
        self.classes_: list[Any] = []
        self.extra_: tuple[np.ndarray, np.ndarray] | None = None
        if self.classifies:
            self.classes_ = np.unique(y).tolist()
            if len(self.classes_) != 2:
                raise RecipeError(
                    f"classification needs two classes in y, got {len(self.classes_)}: "
                    f"{self.classes_[:5]}"
                )
        else:
            self.scale_ = scale_of(y)
        if self.descriptors:
            found = descriptors(x).astype(np.float64)
            spread = found.std(0)
            self.extra_ = found.mean(0), np.where(spread > 0, spread, 1.0)

    def checked(self, x: list[str], y: Any) -> np.ndarray:
        """The targets of these molecules as an array; see `check_targets`."""
        return check_targets(x, y, self.classifies)

    def encoded(self, y: np.ndarray) -> np.ndarray:
        """Targets as the network sees them: standardised, or 0 and 1."""
        if not self.classifies:
            return (y - self.scale_[0]) / self.scale_[1]
        if unknown := sorted(set(np.unique(y).tolist()) - set(self.classes_)):
            raise RecipeError(f"y has the class {unknown[0]!r}, trained were {self.classes_}")
        return (y == self.classes_[1]).astype(np.float64)

    def packed(self, x: list[str], y: np.ndarray | None) -> Packed:
        """The molecules on the device; without targets these are 0."""
        target = np.zeros(len(x)) if y is None else self.encoded(y)
        extra = None
        if self.extra_ is not None:
            mean, spread = self.extra_
            extra = np.clip((descriptors(x) - mean) / spread, -EXTREME, EXTREME)
        return Packed([featurised(one) for one in x], target, extra, self.chosen_device())

    def fresh_model(self) -> Ensemble:
        """The networks with weights drawn from the seed."""
        extra = 0 if self.extra_ is None else len(self.extra_[0])
        sizes = NetSizes(self.width, self.heads, self.layers, self.dropout, self.pooling, extra)
        torch.manual_seed(self.seed)
        with building():
            members = [MoleculeNet(self.chosen_score, sizes) for _ in range(self.ensemble)]
        return Ensemble(members).to(self.chosen_device())

    def plan(self, steps: int) -> TrainingPlan:
        """How it is trained, with so many steps in an epoch."""
        return TrainingPlan(
            epochs=self.epochs,
            rate=self.rate,
            warmup=int(WARMUP * self.epochs * steps),
            weight_decay=self.weight_decay,
            # Members are clipped together: the norm of their joint gradient grows with the root of their number.
            clip=float(np.sqrt(self.ensemble)),
            average=self.average,
            patience=self.patience,
        )

    def check_arguments(self) -> None:
        """Refuse arguments that cannot work, by name."""
        self.check_training()
        for name, choices in (("task", TASKS), ("pooling", POOLINGS)):
            if getattr(self, name) not in choices:
                raise RecipeError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        for name in ("width", "heads", "layers", "batch", "ensemble"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise RecipeError(f"{name} must be an integer of 1 or more, got {value!r}")
        if self.width % self.heads:
            raise RecipeError(
                f"width must be a multiple of heads, got width={self.width}, heads={self.heads}"
            )


def held_apart(
    x: list[str], y: np.ndarray, seed: int
) -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    """Training rows and a tenth for validation, split by molecule.

    Raises:
        RecipeError: there are fewer than two different molecules.
    """
    share = max(HELD, 1 / len(x))  # of few rows still one
    kept, held = grouped_split([canonical(one) for one in x], (1 - share, share), seed)
    if not len(kept) or not len(held):
        raise RecipeError("x needs two different molecules or more, or give validation=")
    return [x[n] for n in kept], y[kept], [x[n] for n in held], y[held]
