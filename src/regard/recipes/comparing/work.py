"""What is to run, where processes get it from, and how one run is made."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from regard.recipes import catalog
from regard.recipes.comparing.store import THREADS, RunRecord, RunStore
from regard.recipes.datasets import Dataset
from regard.recipes.estimator import RecipeError
from regard.recipes.fingerprint import fingerprint
from regard.recipes.kit import Comparison, Contender, Kit


@dataclass(frozen=True)
class Assignment:
    """One run: a contender, one of its settings, and a seed.

    Attributes:
        contender: its name.
        number: index of the setting.
        seed: of the training.
        label: unique in a comparison, for progress: "additive, setting 2 of 4", "additive, seed 3".
    """

    contender: str
    number: int
    seed: int
    label: str


@dataclass(frozen=True)
class WorkSource:
    """Where a process gets a comparison from: all of it can be sent to another process.

    Attributes:
        recipe: name in the catalogue, or a module that has a `KIT`, with a point in its name.
        set: name of the set; None for the recipe's default.
        data: the user's folder; None for the environment variable.
        download: whether a missing public set may be downloaded.
        full: the full comparison, not the quick one.
        device: name of the device; None for the recipe's choice.
    """

    recipe: str
    set: str | None = None
    data: str | None = None
    download: bool = False
    full: bool = False
    device: str | None = None

    def kit(self) -> Kit:
        """The recipe's kit."""
        if "." in self.recipe:
            return importlib.import_module(self.recipe).KIT
        return catalog.kit(self.recipe)

    def load(self) -> tuple[Comparison, Dataset]:
        """The comparison and its data.

        Raises:
            RecipeError: the recipe has no such set.
            DataError: the data are missing or damaged.
        """
        return self.load_from(self.kit())

    def load_from(self, kit: Kit) -> tuple[Comparison, Dataset]:
        """The comparison and its data, by a kit that is at hand."""
        data = kit.dataset(self.set, self.data, self.download)
        return kit.comparison(data, self.full, self.device), data


def perform(
    contender: Contender, one: Assignment, store: RunStore, report: Callable[[float], None]
) -> RunRecord:
    """Train and evaluate one assignment, and write its file."""
    setting = settings_of(contender)[one.number]
    with few_threads():
        found = contender.run(setting, one.seed, report)
        return store.write(contender, setting, one.seed, found)


@contextmanager
def few_threads() -> Iterator[None]:
    """`THREADS` for torch, BLAS and OpenMP, whatever the number of processes.

    One thread is timed by its own work, several by the wall (`clock.worked`), and the two must not be in one column.
    Several also wait for one another after every operation: beside other programs, two took 41 times as long as one
    for a quarter of a run of `letters`.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with threadpool_limits(THREADS):
            yield
    finally:
        torch.set_num_threads(before)


def facts_of(data: Dataset) -> dict[str, Any]:
    """What a summary says about the data, with their fingerprint."""
    return {
        "name": data.name,
        "title": data.title._asdict(),
        "origin": data.origin,
        "licence": data.licence,
        "rows": [len(data.train), len(data.validation), len(data.test)],
        "fingerprint": fingerprint(data),
    }


def settings_of(contender: Contender) -> Sequence[Mapping[str, Any]]:
    """What is tried; one empty setting for a contender without any."""
    return contender.settings or ({},)


def seeds_of(comparison: Comparison, wanted: int | Iterable[int] | None) -> tuple[int, ...]:
    """The seeds to run: the comparison's, the first so many of them and then new ones, or those given.

    Raises:
        RecipeError: none, or one of them twice.
    """
    if wanted is None:
        return comparison.seeds
    if isinstance(wanted, int):
        more = range(max(comparison.seeds, default=-1) + 1, 2**31)
        found = [*comparison.seeds[:wanted]]
        found += more[: max(wanted - len(found), 0)]
    else:
        found = list(wanted)
    if not found or len(set(found)) != len(found):
        raise RecipeError(f"seeds={wanted!r}: expected one or more different seeds")
    return tuple(found)


def first_assignments(contenders: Iterable[Contender], seed: int) -> list[Assignment]:
    """Every setting of every contender from the first seed."""
    return [
        Assignment(
            one.name,
            number,
            seed,
            f"{one.name}, setting {number + 1} of {len(settings_of(one))}",
        )
        for one in contenders
        for number in range(len(settings_of(one)))
    ]


def later_assignments(chosen: Mapping[str, int], seeds: Sequence[int]) -> list[Assignment]:
    """The other seeds with the chosen settings."""
    return [
        Assignment(name, number, seed, later_label(name, seed))
        for name, number in chosen.items()
        for seed in seeds[1:]
    ]


def later_label(name: str, seed: int) -> str:
    """The label of a run of the second stage, which is known before its setting is."""
    return f"{name}, seed {seed}"


def all_labels(contenders: Sequence[Contender], seeds: Sequence[int]) -> list[str]:
    """The labels of all runs of a comparison, both stages."""
    first = [one.label for one in first_assignments(contenders, seeds[0])]
    return first + [later_label(one.name, seed) for one in contenders for seed in seeds[1:]]
