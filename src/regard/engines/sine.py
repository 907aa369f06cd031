"""Additive attention through a sine series of tanh: the pairwise form becomes an inner one.

The features are 2 * rank * hidden wide; an engine for inner forms does the rest. The result is an
approximation with a proven bound, so that this engine runs only where one was allowed, by `error=` or
by its name; or where the score's own activation is the series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard import sine
from regard.engines.base import Attended, Engine
from regard.forms import Pairwise
from regard.problem import Problem

# Asked for by name and without an error: here bf16 attention errs about as much by itself.
USUAL_RANK = 6
# Wider features cost more than the tanh that they replace (benchmarks/results/sine_cpu.json).
LARGEST_RANK = 8
TABLE = "matched"


class Sine:
    """The sine lowering in front of other engines.

    Args:
        through: engines that may run the inner form, in order of preference.
    """

    name = "sine"

    def __init__(self, through: Sequence[Engine]) -> None:
        self.through = through

    def refusals(self, problem: Problem) -> list[str]:
        """What is not tanh, was not allowed, or would err more than allowed."""
        p, form = problem, problem.form
        if not isinstance(form, Pairwise) or form.activation not in ("tanh", "sine"):
            return ["the series is one of tanh, which this score does not use"]
        if form.activation == "sine":
            return []
        if p.error is None:
            return ["it is an approximation: allow one by error=, or ask for engine='sine'"]
        if 0 in form.a.shape or 0 in form.b.shape:
            return ["there is nothing to approximate in empty tensors"]
        if isinstance(p.temperature, Tensor) or p.temperature == 0:
            return ["a hard look-up, which this may be, takes the best key: no error bound holds"]
        if torch.compiler.is_compiling() or not p.on_cpu:
            return ["the series depends on the largest |a + b|, which is read on the CPU alone"]
        return self.choose(p)[1]

    def choose(self, p: Problem) -> tuple[sine.Series | None, list[str]]:
        """The shortest series that keeps to the error, or why none does."""
        form, allowed = p.form, p.error
        assert isinstance(form, Pairwise) and allowed is not None
        reach = sine.unit_reach(form)
        series = sine.load(TABLE, USUAL_RANK)
        longest, largest = float(series.reach[-1]), float(reach.max())
        if not largest <= longest:
            why = f"|a + b| may reach {largest:.3g}, and no series was fitted beyond {longest:g}"
            return None, [why]
        if allowed == math.inf:
            return series, []
        bound = math.inf
        for rank in sine.ranks(TABLE):
            series = sine.load(TABLE, rank)
            bound = output_error(p, sine.logit_error(form, series, reach))
            if bound <= allowed:
                return series, []
            if rank == LARGEST_RANK:
                break
        why = f"rank {LARGEST_RANK}, the largest worth its cost, may err by {bound:.1e} of |value|"
        return None, [f"{why}, more than {allowed:.1e}"]

    def added_error(self, problem: Problem) -> float:
        """What the series adds to the error bound of rounding."""
        form = problem.form
        assert isinstance(form, Pairwise)
        if form.activation == "sine":
            return 0.0
        series, _ = self.choose(problem)
        assert series is not None
        return output_error(problem, sine.logit_error(form, series, sine.unit_reach(form)))

    def missing_promises(self, problem: Problem) -> list[str]:
        """It is an approximation, of value and gradient."""
        if isinstance(problem.form, Pairwise) and problem.form.activation == "sine":
            return []
        return ["tanh is replaced by a sine series; gradients are exactly those of the series"]

    def run(self, problem: Problem) -> Attended:
        """Build the features, then run the inner form."""
        form = problem.form
        assert isinstance(form, Pairwise)
        if form.activation == "sine":
            lowered = sine.lower_exactly(form)
        else:
            series, _ = self.choose(problem)
            assert series is not None
            lowered = sine.lower(form, series)
        inner = problem.with_form(lowered)
        engine = next(e for e in self.through if not e.refusals(inner))
        found = engine.run(inner)
        return found.with_changed({"output": found.output.to(problem.dtype)})


def output_error(p: Problem, logit_error: Tensor) -> float:
    """A bound on the error of the output, in units of the largest |value|.

    Logits that are off by delta change every weight by a factor of at most exp(2 delta).
    """
    assert isinstance(p.temperature, float)
    return math.expm1(min(2 * float(logit_error) / p.temperature, 700.0))
