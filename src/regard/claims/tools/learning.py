"""Training small models for claims: all seeds at once, and the same tuning for every competitor.

S seeds, B batch. The models of all seeds and learning rates are stacked and trained by one vectorised step,
which for models this small costs little more than training one. Inside vmap, attention has to run on
engine="reference".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from regard.claims.claim import Run
from regard.synthetic.task import DATA_SEEDS, SyntheticTask

RATES = (1e-3, 3e-3, 1e-2, 3e-2)


@dataclass(frozen=True)
class Budget:
    """The training budget, the same for every competitor.

    Attributes:
        steps: steps of Adam; the learning rate falls to 0 along a cosine.
        batch: examples in a step.
        rates: learning rates to try; the one that is best on validation data is kept.
        examples: size of a fixed training set, or None for fresh examples at every step.
        held: size of the validation set and of the test set.
    """

    steps: int = 300
    batch: int = 64
    rates: tuple[float, ...] = RATES
    examples: int | None = None
    held: int = 1024


@dataclass(frozen=True)
class Trained:
    """The outcome of one competitor at its best learning rate; lists have one item for each seed.

    Attributes:
        quality: on test data.
        train_quality: on the training set; on fresh data if there is no fixed training set.
        loss: on test data.
        validated: quality on the validation data, by which the rate was chosen.
        rate: the best learning rate over all seeds.
        parameters: number of parameters of one model.
        model: one model, for its structure.
        weights: parameters and buffers of all seeds, stacked along the first dim.
        rates: the best learning rate of each kind of world, if there are several kinds.
    """

    quality: list[float]
    train_quality: list[float]
    loss: list[float]
    validated: list[float]
    rate: float
    parameters: int
    model: nn.Module
    weights: dict[str, Tensor]
    rates: list[float] = field(default_factory=list)

    def member(self, number: int) -> dict[str, Tensor]:
        """The parameters of one seed's model."""
        return {name: x[number] for name, x in self.weights.items()}


def train(
    build: Callable[[], nn.Module],
    task: SyntheticTask | Callable[[int], SyntheticTask],
    seeds: Sequence[int],
    budget: Budget,
    run: Run,
    kinds: int = 1,
) -> Trained:
    """Train `build()` on the task from every seed at every learning rate, and keep the best rate.

    Args:
        build: makes a model; called once for each seed, after seeding torch.
        task: the task, or a function from seed to task if each seed has its own world.
        seeds: of parameters and data. Competitors with the same seeds see the same data.
        budget: steps, batch size and learning rates.
        run: receives the progress.
        kinds: number of kinds of worlds; seed number i has kind `i % kinds`. All kinds are trained
            together, and each keeps its own best rate.
    """
    worlds = [task(seed) for seed in seeds] if callable(task) else [task] * len(seeds)
    held = [draw_held(world, seed, budget) for world, seed in zip(worlds, seeds, strict=True)]
    tries = train_all(build, worlds, seeds, budget, held, run)
    best = max(tries, key=lambda one: mean_or_worst(one.validated))
    return best if kinds == 1 else best_of_kinds(best, tries, kinds)


def best_of_kinds(best: Trained, tries: list[Trained], kinds: int) -> Trained:
    """For each seed the model of the learning rate that is best for the seed's kind of world."""
    own = [max(tries, key=lambda one: mean_or_worst(one.validated[k::kinds])) for k in range(kinds)]
    chosen = [own[number % kinds] for number in range(len(best.quality))]
    pick = lambda name: [getattr(one, name)[number] for number, one in enumerate(chosen)]  # noqa: E731
    weights = {
        name: torch.stack([one.weights[name][number] for number, one in enumerate(chosen)])
        for name in best.weights
    }
    return replace(
        best, quality=pick("quality"), train_quality=pick("train_quality"), loss=pick("loss"),
        validated=pick("validated"), weights=weights, rates=[one.rate for one in own],
    )  # fmt: skip


def compete(
    builds: dict[str, Callable[[], nn.Module]],
    task: SyntheticTask | Callable[[int], SyntheticTask],
    seeds: Sequence[int],
    budget: Budget,
    run: Run,
    kinds: int = 1,
) -> dict[str, Trained]:
    """Train every competitor with the same seeds, data, learning rates and steps; outcomes by name."""
    return {
        name: train(build, task, seeds, budget, run.within(number, len(builds)), kinds)
        for number, (name, build) in enumerate(builds.items())
    }


def mean_or_worst(values: list[float]) -> float:
    """The mean, or -inf if a run diverged, so that its learning rate is never chosen."""
    middle = math.fsum(values) / len(values)
    return middle if math.isfinite(middle) else -math.inf


def draw_held(task: SyntheticTask, seed: int, budget: Budget) -> dict[str, tuple[Tensor, ...]]:
    """Training, validation and test data of one seed."""
    sizes = {"train": budget.examples or budget.held, "validate": budget.held, "test": budget.held}
    return {
        name: task.sample(size, torch.Generator().manual_seed(DATA_SEEDS + seed * 16 + number))
        for number, (name, size) in enumerate(sizes.items())
    }


def train_all(
    build: Callable[[], nn.Module],
    worlds: Sequence[SyntheticTask],
    seeds: Sequence[int],
    budget: Budget,
    held: list[dict[str, tuple[Tensor, ...]]],
    run: Run,
) -> list[Trained]:
    """The outcome at every learning rate.

    All rates see the same data, so one vectorised step trains R rates times S seeds. The optimiser has one
    parameter group for each rate.
    """
    models = []
    for seed in seeds:
        torch.manual_seed(seed)
        models.append(build())
    model, task, rates = models[0], worlds[0], budget.rates
    start, buffers = stack_module_state(models)
    leaves = [{n: x.detach().clone().requires_grad_() for n, x in start.items()} for _ in rates]
    fixed = {name: torch.cat([x] * len(rates)) for name, x in buffers.items()}

    def one(own: dict[str, Tensor], inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        return task.loss(functional_call(model, own, inputs), target)

    groups = [{"params": list(x.values()), "lr": r} for x, r in zip(leaves, rates, strict=True)]
    optimiser = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, budget.steps)
    draws = [torch.Generator().manual_seed(DATA_SEEDS + seed * 16 + 9) for seed in seeds]
    for step in range(budget.steps):
        batch = draw_batch(worlds, draws, held, budget)
        *inputs, target = (torch.cat([x] * len(rates)) for x in batch)
        weights = {name: torch.cat([x[name] for x in leaves]) for name in start}
        optimiser.zero_grad()
        # The losses are summed over independent models, so each one gets its own gradient unscaled.
        vmap(one)({**weights, **fixed}, tuple(inputs), target).sum().backward()
        optimiser.step()
        schedule.step()
        run.tell((step + 1) / budget.steps)
    found = [{name: x.detach() for name, x in {**own, **buffers}.items()} for own in leaves]
    return [outcome(model, own, task, held, rate) for own, rate in zip(found, rates, strict=True)]


def outcome(
    model: nn.Module,
    weights: dict[str, Tensor],
    task: SyntheticTask,
    held: list[dict[str, tuple[Tensor, ...]]],
    rate: float,
) -> Trained:
    """Quality, loss and weights after training at one learning rate."""
    on = lambda part, measure: evaluate(model, weights, held, part, measure)  # noqa: E731
    return Trained(
        quality=on("test", task.quality),
        train_quality=on("train", task.quality),
        loss=on("test", task.loss),
        validated=on("validate", task.quality),
        rate=rate,
        parameters=sum(x.numel() for x in model.parameters()),
        model=model,
        weights=weights,
    )


def draw_batch(
    worlds: Sequence[SyntheticTask],
    draws: list[torch.Generator],
    held: list[dict[str, tuple[Tensor, ...]]],
    budget: Budget,
) -> list[Tensor]:
    """One batch for each seed, stacked: fresh examples, or a sample of the fixed training set."""
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


def evaluate(
    model: nn.Module,
    weights: dict[str, Tensor],
    held: list[dict[str, tuple[Tensor, ...]]],
    part: str,
    measure: Callable[[Tensor, Tensor], Tensor],
) -> list[float]:
    """The measure on one part of the held data ("train", "validate" or "test"), for each seed."""
    found = []
    with torch.no_grad():
        for number, data in enumerate(held):
            own = {name: x[number] for name, x in weights.items()}
            *inputs, target = data[part]
            found.append(float(measure(functional_call(model, own, tuple(inputs)), target)))
    return found
