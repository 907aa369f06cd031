"""Scores with random, untrained parameters, for claims about formulas."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import regard
from regard import Score

# By the names that figures use. `Additive` has no projections here: a = q, b = k.
BUILDS: dict[str, Callable[[int], Score]] = {
    "dot": lambda dim: regard.Dot(),
    "scaled dot": lambda dim: regard.ScaledDot(),
    "cosine": lambda dim: regard.Cosine(heads=None),
    "gaussian": lambda dim: regard.Gaussian(heads=None),
    "additive": regard.Additive,
    "bilinear": lambda dim: regard.Bilinear(dim, dim),
}


def untrained(name: str, dim: int, generator: torch.Generator) -> Score:
    """The score of this name with its initial random parameters, in fp64 and without gradients."""
    return drawn(lambda: BUILDS[name](dim), generator)


def drawn(build: Callable[[], Score], generator: torch.Generator) -> Score:
    """`build()` with parameters that depend on the generator alone, in fp64 and without gradients."""
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().requires_grad_(False)


def pair_scores(query: Tensor, key: Tensor, score: Score) -> Tensor:
    """Scores (rows,) of each query with the key in the same row; both are (rows, dim)."""
    return regard.score(query.unsqueeze(-2), key.unsqueeze(-2), score).flatten()
