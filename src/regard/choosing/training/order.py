"""`ChooseOrder`: the checked arguments of `regard.choose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.choosing.training.candidates import TrialCandidate
from regard.choosing.training.data import Data

ProgressCallback = Callable[[str, float, float], None]
"""Called every so often with a label, the fraction done and the seconds left."""


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
