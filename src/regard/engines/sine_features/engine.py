"""The `sine` engine: what it serves, and its CPU path, which hands features to an engine for inner forms.

The features are 2 * rank * hidden wide. The result is an approximation with a proven bound. The engine
therefore runs only in three cases: the caller allows an error, by `error=` or by requesting the engine;
exact attention in the dtype has as large an error, which the device checks; or the score's own activation
is the series, so that nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard import sine
from regard.engines.base import Attended, Engine
from regard.engines.sine_features import choice, device
from regard.engines.tiled.eager import is_readable
from regard.forms import Pairwise
from regard.problem import Problem
from regard.sine import escapes

MIB = 2**20
FIRST_NOTE = (
    "tanh is replaced by the sine series {0!r} of rank {1}; gradients are those of the series"
)
LAYOUT_NOTE = (
    "it runs through cuDNN with features {0} wide and values {1} wide (one hidden unit lends columns to "
    "the linear term: {2})"
)
WIDE_NOTE = (
    "it runs through kernels of its own with features {0} wide and values {1} wide (one hidden unit lends "
    "columns to the linear term: {2}); features and chunks of pairs take at most {3} MiB at a time"
)
RANGE_NOTE = (
    "where |a + b| leaves the range of the series, or its error what is allowed, the exact kernel "
    "answers: the device decides, and regard.sine.escapes counts"
)
BACKWARD_NOTE = "cuDNN's backward is not deterministic, and there is no second derivative"
WIDE_BACKWARD_NOTE = "there is no second derivative"


class Sine(Engine):
    """The sine lowering in front of other engines.

    Args:
        through: engines that may run the inner form, in order of preference.
    """

    name = "sine"
    approximate = True
    runs_series = True

    def __init__(self, through: Sequence[Engine]) -> None:
        self.through = through

    def refusals(self, problem: Problem) -> list[str]:
        """Calls that are not tanh, allow no approximation, or would exceed the allowed error."""
        if self.depends_on_range(problem):
            return choice.on_cpu(problem)[1]
        return self.unfit(problem)

    def refusals_of_call(self, problem: Problem) -> list[str]:
        """`refusals`; on the CPU it also counts the call, and whether it left the range of the series."""
        reasons = self.refusals(problem)
        if self.depends_on_range(problem):
            escapes.note(not reasons)
        return reasons

    def depends_on_range(self, problem: Problem) -> bool:
        """Whether the choice depends on the numbers in the tensors, which are read on the CPU alone."""
        return problem.on_cpu and approximates(problem) and len(self.unfit(problem)) == 0

    def unfit(self, p: Problem) -> list[str]:
        """Reasons against the series that do not depend on the numbers in the tensors."""
        form = p.form
        if not isinstance(form, Pairwise) or form.activation not in ("tanh", "sine"):
            return ["the series is one of tanh, which this score does not use"]
        if form.activation == "sine":
            return []
        if p.on_cpu and p.error is None:
            return ["it is an approximation: allow one by error=, or ask for engine='sine'"]
        if 0 in form.a.shape or 0 in form.b.shape or 0 in p.value.shape:
            return ["there is nothing to approximate in empty tensors"]
        if isinstance(p.temperature, Tensor) or p.temperature == 0:
            return [
                "temperature 0, which a tensor may hold, is a hard look-up: no error bound holds"
            ]
        if not p.on_cpu:
            return device.refusals(p)
        # A compiled graph, a batch of `vmap` or a fake tensor has no numbers to read.
        if torch.compiler.is_compiling() or not (is_readable(form.a) and is_readable(form.b)):
            return [
                "on the CPU the series depends on the largest |a + b|, which cannot be read here"
            ]
        return []

    def added_error(self, problem: Problem) -> float:
        """The error bound of the series, on top of that of rounding."""
        form = problem.form
        assert isinstance(form, Pairwise)
        if form.activation == "sine":  # the series is the score itself
            return 0.0
        if not problem.on_cpu:
            return device.added_error(problem)
        series = sine.load(*chosen(problem))
        return choice.output_error(problem, sine.logit_error(form, series, sine.unit_reach(form)))

    def error_bound(self, problem: Problem) -> float | None:
        """On a GPU the bound of the series with all its roundings, where the series answers."""
        if problem.on_cpu or not approximates(problem):
            return None
        return device.stated_error(problem)

    def missing_promises(self, problem: Problem) -> list[str]:
        """Exactness of value and gradient, and what the engine that runs the features does not keep."""
        if problem.on_cpu or not approximates(problem):
            series = [FIRST_NOTE.format(*chosen(problem))] if approximates(problem) else []
            engine, inner = self.inner(problem)
            return series + engine.missing_promises(inner)
        call, _ = choice.on_device(problem)
        assert call is not None
        return [
            FIRST_NOTE.format(call.kind, call.rank),
            WIDE_NOTE.format(*call.widths, device.workspace(problem, call) // MIB)
            if call.wide
            else LAYOUT_NOTE.format(*call.widths),
            RANGE_NOTE,
            WIDE_BACKWARD_NOTE if call.wide else BACKWARD_NOTE,
        ]

    def inner(self, problem: Problem) -> tuple[Engine, Problem]:
        """The problem with its features built, and the engine that runs it."""
        form = problem.form
        assert isinstance(form, Pairwise)
        if form.activation == "sine":
            lowered = sine.lower_exactly(form)
        else:
            wide = torch.promote_types(problem.dtype, torch.float32)
            lowered = sine.lower(form, sine.load(*chosen(problem), dtype=wide))
        inner = problem.with_form(lowered)
        return next(e for e in self.through if not e.refusals(inner)), inner

    def run(self, problem: Problem) -> Attended:
        """The result of the features as an inner form."""
        # On a GPU features, attention and the exact fallback are one operator, which does not wait.
        if approximates(problem) and not problem.on_cpu:
            return device.run(problem)
        engine, inner = self.inner(problem)
        found = engine.run(inner)
        # Features are in fp32 or wider, and so is the result of an engine that keeps their dtype.
        return found.with_changed({"output": found.output.to(problem.dtype)})


def approximates(p: Problem) -> bool:
    """Whether the series replaces tanh, rather than being the activation of the score."""
    return isinstance(p.form, Pairwise) and p.form.activation == "tanh"


def chosen(p: Problem) -> tuple[str, int]:
    """Kind and rank of the series on the CPU, for a problem that was not refused."""
    found, _ = choice.on_cpu(p)
    assert found is not None
    return found
