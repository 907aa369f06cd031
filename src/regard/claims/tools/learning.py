"""Training small models for a claim: several seeds at once, every competitor tuned alike.

S seeds, B batch. One model for each seed is stacked and trained by one vectorised step: on models
this small it costs hardly more than one. Inside, attention has to run on engine="reference".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from regard.claims.claim import Run
from regard.claims.tools.statistics import Estimate, mean

RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class Task(Protocol):
    """Something to learn: what goes in, what should come out, how good an answer is."""

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """`count` examples: the inputs of the model, and last the target."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """What training lowers: one number."""

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """What is reported, one number, more is better: an accuracy, or R^2."""


class Choosing:
    """Loss and quality of tasks whose answer is one of several: logits (B, n), target (B,)."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy."""
        return nn.functional.cross_entropy(output, target)

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """Share of right answers."""
        return (output.argmax(-1) == target).double().mean()


class Predicting:
    """Loss and quality of tasks whose answer is a vector or a number."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return (output - target).square().mean()

    def quality(self, output: Tensor, target: Tensor) -> Tensor:
        """R^2: the share of the variance that is explained."""
        left = (output - target).double().square().mean()
        return 1 - left / (target - target.mean(0)).double().square().mean()


@dataclass(frozen=True)
class Budget:
    """What every competitor gets, the same for all.

    Attributes:
        steps: of Adam, with the rate falling to 0 along a cosine.
        batch: examples in a step.
        rates: learning rates to try; the best on data of its own is kept.
        examples: size of a fixed training set, or None for fresh examples at every step.
        held: examples for the choice of the rate, and as many others for the result.
    """

    steps: int = 300
    batch: int = 64
    rates: tuple[float, ...] = RATES
    examples: int | None = None
    held: int = 1024


@dataclass(frozen=True)
class Trained:
    """The outcome of one competitor at its best rate; lists run over seeds.

    Attributes:
        quality: on fresh test data.
        train_quality: on data of the training set (on fresh data where there is no fixed set).
        loss: on the test data.
        validated: quality on the data that the rate was chosen by.
        rate: the rate that was best there; `tried` has the mean validation quality of all.
        parameters: how many one model has.
        curve: training loss at `curve_steps`, for each seed.
        model: a copy of one model's structure, `weights` the stacked parameters (S first).
    """

    quality: list[float]
    train_quality: list[float]
    loss: list[float]
    validated: list[float]
    rate: float
    parameters: int
    curve: list[list[float]]
    curve_steps: list[int]
    model: nn.Module
    weights: dict[str, Tensor]
    tried: dict[float, float] = field(default_factory=dict)

    def estimate(self) -> Estimate:
        """Mean test quality with its interval over seeds."""
        return mean(self.quality)

    def outputs(self, *inputs: Tensor) -> Tensor:
        """Every seed's model on the same inputs: (S, ...)."""
        call = lambda weights: functional_call(self.model, weights, inputs)  # noqa: E731
        with torch.no_grad():
            return vmap(call)(self.weights)


def train(
    build: Callable[[], nn.Module],
    task: Task | Callable[[int], Task],
    seeds: Sequence[int],
    budget: Budget,
    run: Run,
) -> Trained:
    """Train `build()` on the task from every seed, at every rate, and keep the best rate.

    Args:
        build: makes a model; called once for each seed, after seeding torch.
        task: the task, or a function from seed to task where each seed has a world of its own.
        seeds: of the parameters and the data: competitors with the same seeds see the same data.
        budget: what it may spend.
        run: told how far it is.
    """
    worlds = [task(seed) for seed in seeds] if callable(task) else [task] * len(seeds)
    held = [draw_held(world, seed, budget) for world, seed in zip(worlds, seeds, strict=True)]
    tries = []
    for number, rate in enumerate(budget.rates):
        part = run.within(number, len(budget.rates))
        tries.append(train_at(rate, build, worlds, seeds, budget, held, part))
    best = max(tries, key=lambda one: finite(one.validated))
    return replace(best, tried={one.rate: finite(one.validated) for one in tries})


def compete(
    builds: dict[str, Callable[[], nn.Module]],
    task: Task | Callable[[int], Task],
    seeds: Sequence[int],
    budget: Budget,
    run: Run,
) -> dict[str, Trained]:
    """Every competitor by name, each with the same seeds, data, rates to try and steps."""
    return {
        name: train(build, task, seeds, budget, run.within(number, len(builds)))
        for number, (name, build) in enumerate(builds.items())
    }


def finite(values: list[float]) -> float:
    """The mean; a run that diverged counts as the worst there is."""
    middle = math.fsum(values) / len(values)
    return middle if math.isfinite(middle) else -math.inf


def draw_held(task: Task, seed: int, budget: Budget) -> dict[str, tuple[Tensor, ...]]:
    """Fixed data of one seed: to train on (where it is fixed), to choose the rate, to report."""
    sizes = {"train": budget.examples or budget.held, "validate": budget.held, "test": budget.held}
    return {
        name: task.sample(size, torch.Generator().manual_seed(seed * 16 + number))
        for number, (name, size) in enumerate(sizes.items())
    }


def train_at(
    rate: float,
    build: Callable[[], nn.Module],
    worlds: Sequence[Task],
    seeds: Sequence[int],
    budget: Budget,
    held: list[dict[str, tuple[Tensor, ...]]],
    run: Run,
) -> Trained:
    """The outcome at one learning rate."""
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(build())
    model = models[0]
    weights, buffers = stack_module_state(models)
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in weights.values()]
    weights = dict(zip(weights, leaves, strict=True))
    task = worlds[0]

    def one(own: dict[str, Tensor], inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        return task.loss(functional_call(model, own, inputs), target)

    optimiser = torch.optim.Adam(leaves, lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, budget.steps)
    draws = [torch.Generator().manual_seed(seed * 16 + 9) for seed in seeds]
    every = max(budget.steps // 40, 1)
    curve, curve_steps = [], []
    for step in range(budget.steps):
        *inputs, target = draw_batch(worlds, draws, held, budget)
        losses = vmap(one)({**weights, **buffers}, tuple(inputs), target)
        optimiser.zero_grad()
        losses.sum().backward()
        optimiser.step()
        schedule.step()
        if step % every == 0 or step == budget.steps - 1:
            curve.append(losses.detach())
            curve_steps.append(step)
            run.tell((step + 1) / budget.steps)
    weights = {name: x.detach() for name, x in {**weights, **buffers}.items()}
    score = lambda part, measure: judge(model, weights, task, held, part, measure)  # noqa: E731
    return Trained(
        quality=score("test", task.quality),
        train_quality=score("train", task.quality),
        loss=score("test", task.loss),
        validated=score("validate", task.quality),
        rate=rate,
        parameters=sum(x.numel() for x in model.parameters()),
        curve=torch.stack(curve, 1).tolist(),
        curve_steps=curve_steps,
        model=model,
        weights=weights,
    )


def draw_batch(
    worlds: Sequence[Task],
    draws: list[torch.Generator],
    held: list[dict[str, tuple[Tensor, ...]]],
    budget: Budget,
) -> list[Tensor]:
    """One batch for every seed, stacked: fresh, or from the fixed training set."""
    found = []
    for world, draw, data in zip(worlds, draws, held, strict=True):
        if budget.examples is None:
            found.append(world.sample(budget.batch, draw))
        else:
            pick = torch.randint(
                budget.examples, (min(budget.batch, budget.examples),), generator=draw
            )
            found.append(tuple(x[pick] for x in data["train"]))
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


def judge(
    model: nn.Module,
    weights: dict[str, Tensor],
    task: Task,
    held: list[dict[str, tuple[Tensor, ...]]],
    part: str,
    measure: Callable[[Tensor, Tensor], Tensor],
) -> list[float]:
    """One number for each seed, on data it was not trained on (or was, for `train`)."""
    found = []
    with torch.no_grad():
        for number, data in enumerate(held):
            own = {name: x[number] for name, x in weights.items()}
            *inputs, target = data[part]
            found.append(float(measure(functional_call(model, own, tuple(inputs)), target)))
    return found
