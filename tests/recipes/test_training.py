"""The training loop: schedule, clipping, averaging, early stopping, divergence, bfloat16, time limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.recipes import training
from regard.recipes.training import DivergedError, Job, Trainer, TrainingPlan, decayed_groups, train

CPU = torch.device("cpu")


class LineJob(Job):
    """Fits y = w x from w = 0 to 1; the quality is that of a list, or minus the distance from 1."""

    def __init__(self, qualities: list[float] | None = None, steps: int = 4) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.qualities, self.steps = qualities, steps
        self.dtypes: list[torch.dtype] = []
        self.factor = 1.0

    def batches(self, epoch: int) -> list[int]:
        return list(range(self.steps))

    def steps_per_epoch(self) -> int:
        return self.steps

    def loss(self, batch: int) -> Tensor:
        found = self.model(torch.ones(1, 1))
        self.dtypes.append(found.dtype)
        return self.factor * (found.float() - 1).square().mean()

    def validate(self, model: nn.Module) -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        if self.qualities is not None:
            return self.qualities.pop(0)
        return -abs(next(model.parameters()).item() - 1)


class Told:
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        self.losses: list[float] = []
        self.validations: list[tuple[int, float, float]] = []

    def start(self, steps: int, done: int) -> None:
        self.started.append((steps, done))

    def step(self, loss: Callable[[], float]) -> None:
        self.losses.append(loss())

    def validated(self, epoch: int, quality: float, best: float) -> None:
        self.validations.append((epoch, quality, best))


def run(job: Job, told: Any = None, **plan: Any) -> training.TrainingHistory:
    plan = {"epochs": 6, "rate": 0.1, "schedule": "constant"} | plan
    return train(job, TrainingPlan(**plan), seed=0, device=CPU, progress=told)


def test_rate_rises_in_the_warmup_and_then_falls_as_the_schedule_says() -> None:
    cosine = TrainingPlan(1, 1.0, "cosine", warmup=4)
    assert [cosine.factor(step, 14) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert cosine.factor(4, 14) == 1.0
    assert cosine.factor(9, 14) == pytest.approx(0.5)
    assert cosine.factor(14, 14) == pytest.approx(0, abs=1e-12)
    assert cosine.factor(99, 14) == pytest.approx(0, abs=1e-12), "it does not rise again"
    root = TrainingPlan(1, 1.0, "inverse_sqrt", warmup=4)
    assert root.factor(3, 100) == 1.0
    assert root.factor(15, 100) == pytest.approx(0.5)
    constant = TrainingPlan(1, 1.0, "constant")
    assert {constant.factor(step, 10) for step in range(20)} == {1.0}


def test_optimizer_gets_the_rates_of_the_schedule() -> None:
    job, rates = LineJob(), []
    trainer = Trainer(job, TrainingPlan(2, 0.1, "cosine", warmup=2), 0, CPU)
    loss = job.loss

    def noting(batch: int) -> Tensor:
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        return loss(batch)

    job.loss = noting  # type: ignore[method-assign]
    trainer.run(None, None)
    assert rates == pytest.approx([0.1 * trainer.plan.factor(step, 8) for step in range(8)])


def test_clipping_bounds_the_gradient() -> None:
    norms = {}
    for clip in (0.5, None):
        job = LineJob(steps=1)
        job.factor = 1000.0
        run(job, epochs=1, clip=clip)
        assert job.model.weight.grad is not None
        norms[clip] = job.model.weight.grad.norm().item()
    assert norms[0.5] == pytest.approx(0.5, rel=1e-4)
    assert norms[None] == pytest.approx(2000)


def test_average_of_the_weights_is_validated_and_kept() -> None:
    plain, averaged = LineJob(), LineJob()
    run(plain, epochs=1)
    run(averaged, epochs=1, average=0.9)
    weight = torch.zeros(())
    other, steps = LineJob(), []
    trainer = Trainer(other, TrainingPlan(1, 0.1, "constant"), 0, CPU)
    loss = other.loss
    other.loss = lambda batch: (steps.append(other.model.weight.item()), loss(batch))[1]  # type: ignore[method-assign]
    trainer.run(None, None)
    steps = [*steps[1:], other.model.weight.item()]
    weight = steps[0]  # the first update copies
    for one in steps[1:]:
        weight = 0.9 * weight + 0.1 * one
    assert averaged.model.weight.item() == pytest.approx(weight, rel=1e-5)
    assert averaged.model.weight.item() < plain.model.weight.item()


def test_best_weights_are_kept_and_patience_ends_the_training() -> None:
    job, told = LineJob([1.0, 3.0, 2.0, 2.5, 9.0]), Told()
    seen: list[float] = []
    validate = job.validate
    job.validate = lambda model: (seen.append(job.model.weight.item()), validate(model))[1]  # type: ignore[method-assign]
    history = run(job, told, epochs=50, patience=1)
    assert history.stopped == "patience"
    assert (history.best, history.best_epoch) == (3.0, 2)
    assert job.model.weight.item() == seen[1], "the weights of epoch 2"
    assert told.validations == [(1, 1.0, 1.0), (2, 3.0, 3.0), (3, 2.0, 3.0), (4, 2.5, 3.0)]
    assert told.started == [(200, 0)]
    assert len(told.losses) == 16


def test_validation_every_few_epochs_and_always_the_last() -> None:
    history = run(LineJob(), epochs=5, validate_every=2)
    assert [epoch for epoch, _ in history.validations] == [2, 4, 5]
    assert history.stopped == "epochs"
    assert len(history.losses) == 5
    assert history.losses[-1] < history.losses[0]


def test_patience_counts_validations_and_not_the_epochs_between_them() -> None:
    """It ended trainings before their first validation, without weights, and later after one that was no better."""
    qualities = [1.0, 0.5, 0.7, 2.0, 0.5, 0.5, 0.5, 9.0]
    history = run(LineJob([*qualities]), epochs=100, validate_every=5, patience=2)
    assert [quality for _, quality in history.validations] == qualities[:7]
    assert history.stopped == "patience" and history.best_epoch == 20


def test_nan_as_the_first_validation_gives_way_to_a_number() -> None:
    history = run(LineJob([math.nan, 1.0, 0.5]), epochs=3)
    assert (history.best, history.best_epoch) == (1.0, 2)


def test_diverged_training_stops_and_keeps_the_best_weights() -> None:
    job = LineJob()
    batches = job.batches

    def worse(epoch: int) -> list[int]:
        job.factor = math.inf if epoch == 2 else 1.0
        return batches(epoch)

    job.batches = worse  # type: ignore[method-assign]
    history = run(job, epochs=9)
    assert history.stopped == "diverged"
    assert len(history.losses) == 3
    assert math.isfinite(job.model.weight.item())


@pytest.mark.parametrize("qualities", [[math.nan] * 3, [-math.inf] * 3])
def test_training_without_a_usable_validation_is_an_error(qualities: list[float]) -> None:
    """It ended like any other, and `predict` gave class 0 or NaN for every row."""
    with pytest.raises(DivergedError, match=r"diverged before a validation .*smaller rate="):
        run(LineJob(qualities), epochs=3)


def test_training_that_diverges_at_once_is_an_error() -> None:
    job = LineJob()
    job.factor = math.inf
    trainer = Trainer(job, TrainingPlan(3, 0.1, "constant"), 0, CPU)
    with pytest.raises(DivergedError):
        trainer.run(None, None)
    assert trainer.history.stopped == "diverged"


def test_time_limit_validates_before_it_stops() -> None:
    history = run(LineJob(), epochs=1000, validate_every=1000, minutes=1e-9)
    assert history.stopped == "minutes"
    assert len(history.validations) == 1


def test_bfloat16_is_of_the_forward_pass_alone() -> None:
    job = LineJob()
    history = run(job, epochs=20, bf16=True)
    assert set(job.dtypes) == {torch.bfloat16}
    assert job.model.weight.dtype == torch.float32
    assert history.best > -0.05


def test_decay_is_of_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    model[0].weight.requires_grad_(True)
    matrices, vectors = decayed_groups(model, 0.1)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert [x.ndim for x in matrices["params"]] == [2]
    assert [x.ndim for x in vectors["params"]] == [1, 1, 1]


def test_same_seed_same_weights(fake_weights: Callable[..., dict[str, Tensor]]) -> None:
    one, two, other = fake_weights(seed=1), fake_weights(seed=1), fake_weights(seed=2)
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def fake_weights() -> Callable[..., dict[str, Tensor]]:
    from .fake_recipe import FakeRecipe, load

    def made(**arguments: Any) -> dict[str, Tensor]:
        return FakeRecipe(epochs=2, **arguments).fit_dataset(load("points")).model_.state_dict()

    return made


def test_around_is_entered_with_the_model() -> None:
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def enter(model: nn.Module) -> Any:
        seen.append(model)
        yield
        seen.append(None)

    job = LineJob()
    training.AROUND.append(enter)
    try:
        run(job, epochs=1)
    finally:
        training.AROUND.remove(enter)
    assert seen == [job.model, None]
