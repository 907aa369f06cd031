"""Calls like earlier ones: what was checked, lowered and planned for those is not asked again.

A training loop makes the same small call over and over, and waits for Python more than for kernels.
Calls that agree in everything but their numbers pass the same checks and are given the same engine;
from the third of them on, an engine that offers it (`repeated`) is handed their tensors at once.

That is for calls without options, of scores that take queries and keys as they come, while nobody
looks on: a compiler, a transform, a mode, a profiler, autocast. All others go the whole way.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, cast

import torch
from torch import Tensor

from regard.engines import plan
from regard.engines.base import RunAgain
from regard.engines.launching import REMEMBERED, SIGHTS
from regard.forms import KeySide, PairwiseKey
from regard.observed import is_observed
from regard.problem import Problem
from regard.scores import PairwiseScore


class Entry:
    """What is known of calls that agree: how often one came, and what runs the next, if an engine has it."""

    def __init__(self) -> None:
        self.seen, self.asked = 0, False
        self.run: RunAgain | None = None


@functools.lru_cache(maxsize=REMEMBERED)
def entry_of(*agreed: object) -> Entry:
    """The entry of all calls that agree in these."""
    return Entry()


class Call(NamedTuple):
    """A call that may be like earlier ones.

    Args:
        entry: what is known of those.
        tensors: query, key, value and v, as they were given.
    """

    entry: Entry
    tensors: tuple[Tensor, Tensor, Tensor, Tensor]

    def again(self) -> Tensor | None:
        """The output, or None where this call has to go the whole way."""
        run = self.entry.run
        return None if run is None else run(*self.tensors)

    def learn(self, problem: Problem, engine: str | None, output: Tensor) -> None:
        """The call went the whole way: the next one may not have to."""
        entry = self.entry
        entry.seen += 1
        if entry.seen >= SIGHTS and not entry.asked:
            entry.asked = True
            entry.run = plan.repeated(problem, engine, self.tensors, output)


def find(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: object,
    temperature: object,
    dropout: object,
    engine: str | None,
) -> Call | None:
    """The call, or None where it is of a kind that is not remembered. Nothing is checked yet."""
    if torch.compiler.is_compiling() or not isinstance(score, PairwiseScore):
        return None
    if type(temperature) is not float or temperature != 1.0:
        return None
    if type(dropout) is not float or dropout != 0.0:
        return None
    if not isinstance(query, Tensor) or query.device.type not in plan.REPEATED_ON:
        return None
    v = score.bare()
    if key is None or value is None or v is None:
        return None
    tensors = (query, key.b if type(key) is PairwiseKey else key, value, v)
    # What is no tensor is no plain one either, and refused on the way.
    tensors = cast(tuple[Tensor, Tensor, Tensor, Tensor], tensors)
    if is_observed(tensors):
        return None
    agreed = (score.activation, score.parameter, score.series, score.softcap, engine)
    for x in tensors:
        agreed += (x.shape, x.stride(), x.dtype, x.device)
    return Call(entry_of(*agreed), tensors)
