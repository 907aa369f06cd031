"""`ChooseOrder`: what a comparison is asked to do, made from the checked arguments of `regard.choose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.arguments import checked_device
from regard.choosing.training.candidates import TrialCandidate, candidates
from regard.choosing.training.data import Data, as_split
from regard.choosing.training.show import ProgressCallback
from regard.choosing.training.sizes import candidate_sizes, prepared
from regard.choosing.training.splits import SplitRows


@dataclass(frozen=True)
class ChooseOrder:
    """The checked arguments of `regard.choose`.

    Attributes:
        standardize: inputs and float targets are standardised.
        baselines: models without attention are trained too.
        control: the best finalist is trained again on shuffled targets.
        optional: names of candidates that are left out if time is short.
    """

    build: Callable[..., Any]
    data: Data
    candidates: list[TrialCandidate]
    metric: Any
    loss: Any
    minutes: float
    seeds: int
    steps: int | None
    batch: int
    rates: Sequence[float]
    matters: float
    finalists: int
    storage: str | Path
    name: str
    resume: bool
    jobs: int
    device: torch.device
    watched: bool
    progress: ProgressCallback
    standardize: bool = False
    baselines: bool = False
    control: bool = False
    optional: frozenset[str] = frozenset()


def ordered_by(given: dict[str, Any]) -> ChooseOrder:
    """The order that the checked arguments of `regard.choose` give, by name."""
    build, data = given["build_model"], as_split(given["data"], given["group"], given["split"])
    asked_sizes = (given[name] for name in ("dims", "heads", "width", "projected"))
    plan = candidate_sizes(build, data, *asked_sizes)
    everyone = candidates(
        plan.sizes, given["scores"], given["stabilizers"], given["hidden"], plan.heads
    )
    asked, optional = plan.kept(everyone)
    same = ("metric", "loss", "minutes", "seeds", "steps", "batch", "matters", "finalists", "storage",
            "name", "resume", "jobs", "progress")  # fmt: skip
    standardize, baselines, control = (
        given[name] for name in ("standardize", "baselines", "control")
    )
    return ChooseOrder(
        build=build,
        data=data,
        candidates=asked,
        rates=sorted(given["rates"]),
        device=checked_device(given["device"]),
        watched=given["vitals"],
        standardize=prepared(build, data) if standardize == "auto" else standardize,
        baselines=isinstance(data, SplitRows) if baselines is None else baselines,
        control=not callable(data) if control is None else control,
        optional=optional,
        **{name: given[name] for name in same},
    )
