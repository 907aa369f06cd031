"""The short way of calls that repeat earlier ones: checks, lowering and plan are skipped.

A training loop makes the same small call over and over, and spends more time in Python than in kernels.
Calls that differ only in the numbers inside their tensors pass the same checks and get the same engine.
From the third of them on, an engine that supports it (`Engine.repeated`) gets their tensors at once.

A call qualifies if it has no options, its score takes queries and keys as they are, and nothing observes
it: no compiler, transform, mode or profiler, no autocast, no doctor. All other calls go the whole way.
No tensor is kept between calls.
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
    """What is remembered of calls that agree.

    Attributes:
        seen: how many of them went the whole way.
        asked: whether an engine was asked for a short way; it is asked once.
        run: that short way, or None.
    """

    def __init__(self) -> None:
        self.seen, self.asked = 0, False
        self.run: RunAgain | None = None


@functools.lru_cache(maxsize=REMEMBERED)
def entry_of(*agreed: object) -> Entry:
    """The one entry of all calls that agree in these values; the least recently used are forgotten."""
    return Entry()


class Call(NamedTuple):
    """A call that qualifies for the short way.

    Args:
        entry: what is remembered of calls that agree with it.
        tensors: query, key, value and v, as the caller gave them.
    """

    entry: Entry
    tensors: tuple[Tensor, Tensor, Tensor, Tensor]

    def again(self) -> Tensor | None:
        """The output by the short way, or None if there is none yet."""
        run = self.entry.run
        return None if run is None else run(*self.tensors)

    def learn(self, problem: Problem, engine: str | None, output: Tensor) -> None:
        """Count a call that went the whole way; after the second, ask its engine for a short way."""
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
    """The call, or None if it does not qualify for the short way.

    The arguments are not checked yet, so they may be of any type.
    """
    # Ordered by cost: cheap questions that turn most calls away come first.
    if torch.compiler.is_compiling() or not isinstance(score, PairwiseScore):
        return None
    # Exact types: a tensor or an integer here still has to be checked or converted.
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
    # The cast is for the type checker. `is_observed` turns away whatever is not a plain tensor, and the
    # whole way then raises the error.
    tensors = cast(tuple[Tensor, Tensor, Tensor, Tensor], tensors)
    if is_observed(tensors):
        return None
    agreed = (score.activation, score.parameter, score.series, score.softcap, engine)
    for x in tensors:
        agreed += (x.shape, x.stride(), x.dtype, x.device)
    return Call(entry_of(*agreed), tensors)
