"""A tiny recipe for tests: a linear classifier of points, in milliseconds. Also loaded by other processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from regard.recipes.datasets import Dataset, Part
from regard.recipes.estimator import Recipe, RecipeError
from regard.recipes.kit import Comparison, Contender, Evaluated, Kit
from regard.recipes.metrics import ACCURACY
from regard.recipes.sources import DataError
from regard.recipes.training import Job, TrainingPlan, train
from regard.text import Text


def points(count: int, seed: int) -> Part:
    """Points in the plane; the target is the side of a line that they are on."""
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return Part(x, (x @ np.array([1.0, -2.0]) > 0).astype(np.int64))


def load(name: str, data: Any = None, download: bool = False, limit: int | None = None) -> Dataset:
    if name == "public":
        raise DataError("public is missing: get https://example.org/x (sha256 0) or --data DIR")
    train = points(limit or 200, 0)
    return Dataset(
        name, Text("points", "点"), "generated", train, points(60, 1), points(80, 2), "none"
    )


class PointsJob(Job):
    """Batches of points in an order that follows from seed and epoch."""

    def __init__(self, x: np.ndarray, y: np.ndarray, held: tuple[Any, Any], seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 2))
        self.x, self.y = torch.as_tensor(x), torch.as_tensor(y)
        self.held = tuple(torch.as_tensor(one) for one in held)
        self.seed = seed

    def batches(self, epoch: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
        return list(torch.randperm(len(self.x), generator=generator).split(32))

    def steps_per_epoch(self) -> int:
        return -(-len(self.x) // 32)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(self.x[batch]), self.y[batch])

    def validate(self, model: nn.Module) -> float:
        x, y = self.held
        return 100 * (model(x).argmax(1) == y).float().mean().item()


class FakeRecipe(Recipe):
    """The linear classifier as an estimator."""

    name = "fake"
    metric = ACCURACY

    def __init__(self, score: Any = None, epochs: int = 5, rate: float = 0.05, seed: int = 0,
                 device: Any = None, average: float | None = None) -> None:  # fmt: skip
        self.score, self.epochs, self.rate, self.seed = score, epochs, rate, seed
        self.device, self.average = device, average

    def fit(self, x: Any, y: Any = None, *, validation: Any = None, checkpoint: Any = None,
            progress: Any = None) -> FakeRecipe:  # fmt: skip
        if len(x) == 0:
            raise RecipeError("x is empty: give at least one row")
        job = PointsJob(x, y, validation or (x, y), self.seed)
        plan = TrainingPlan(self.epochs, self.rate, average=self.average)
        self.history_ = train(job, plan, seed=self.seed, device=torch.device("cpu"),
                              checkpoint=checkpoint, progress=progress,
                              identity=lambda: self.identity(x, y, validation))  # fmt: skip
        self.model_ = job.model.eval()
        return self

    def predict(self, x: Any, beam: int = 1) -> np.ndarray:
        self.check_fitted()
        with torch.no_grad():
            return self.model_(torch.as_tensor(x)).argmax(1).numpy()

    def statistics(self, x: Any, y: Any) -> np.ndarray:
        return (self.predict(x) == y).astype(np.float64)[:, None]

    def learned(self) -> dict[str, Any]:
        return {"width": 8}

    def restore(self, learned: dict[str, Any]) -> None:
        width = learned["width"]
        self.model_ = nn.Sequential(
            nn.Linear(2, width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(width, 2)
        )


def contender(
    data: Dataset, name: str, kind: Any = "score", rates: Any = (0.05, 0.001)
) -> Contender:
    def run(setting: Any, seed: int, report: Any) -> Evaluated:
        model = FakeRecipe(epochs=3, seed=seed, **setting).fit_dataset(data)
        report(1.0)
        quality = model.score_part(data.validation) if hasattr(model, "score_part") else 0.0
        return Evaluated(quality, model.statistics(data.test.x, data.test.y), 42, 0.5, 0.01,
                         {"loss": model.history_.losses[-1]})  # fmt: skip

    title = Text(name.replace("_", " "), f"{name}（中）")
    return Contender(name, title, kind, tuple({"rate": rate} for rate in rates), run)


def comparison(data: Dataset, full: bool, device: str | None) -> Comparison:
    rows = (
        contender(data, "scaled_dot"),
        contender(data, "additive"),
        contender(data, "no attention", "control", (1e-6,)),
    )
    return Comparison("fake-points", Text("Points", "点"), ACCURACY, rows, "scaled_dot",
                      (0, 1, 2) if full else (0, 1))  # fmt: skip


def read(lines: list[str]) -> np.ndarray:
    try:
        return np.array([[float(x) for x in line.split(",")] for line in lines], dtype=np.float32)
    except ValueError:
        raise RecipeError("expected two numbers with a comma between, such as 1,2") from None


def write(inputs: Any, found: Any) -> list[str]:
    return [str(one) for one in found]


def show(model: Recipe, inputs: Any, language: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().plot([0, 1], [0, 1])
    return figure


KIT = Kit("fake", FakeRecipe, ("points", "public"), lambda name: {"epochs": 4}, load, read, write, show,
          comparison)  # fmt: skip
