"""Picks the engine that runs a problem, and says why.

The choice depends on shapes, dtypes and options, never on timing: the same call runs the same engine
on every machine of a job. One exception: on the CPU `sine` also looks at the range of the tensors.
Which engines there are is in `lineup.py`; here every engine is asked the same questions (`base.Engine`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.describe import describe
from regard.engines.base import Engine, RunAgain
from regard.engines.gpu import HAS_TRITON
from regard.engines.lineup import ENGINES
from regard.forms import Form, Inner, Pairwise
from regard.observed import derivative_levels, in_forward_mode
from regard.precision import working_dtype
from regard.problem import Problem
from regard.scores import Score
from regard.sine.activation import row_of

BY_NAME: dict[str, Engine] = {engine.name: engine for engine in ENGINES}
# Engines that override `comes_first`. In reverse order: simpler engines come later in `ENGINES`, and
# come first for smaller calls.
MAY_COME_FIRST = tuple(
    engine for engine in reversed(ENGINES) if type(engine).comes_first is not Engine.comes_first
)
# Engines that override `comes_last`.
MAY_COME_LAST = tuple(
    engine for engine in ENGINES if type(engine).comes_last is not Engine.comes_last
)
NO_DERIVATIVE = "forward-mode derivatives, and derivatives of derivatives under torch.func, do not pass through it"
# The engine of a series that a score names.
SERIES_ENGINE = next(engine.name for engine in ENGINES if engine.runs_series)
# Device types on which some engine has a short cut for repeated calls.
REPEATED_ON = frozenset(device for engine in ENGINES for device in engine.repeats_on)


# What a caller can do, by whether the score asks for the engine by naming a series.
ADVICE = {
    False: "engine=None picks one that serves it; explain(...) shows which",
    True: "the score asks for this engine by series=; leave that out, or name another engine by engine=",
}


class EngineRefused(ValueError):
    """An engine requested by name cannot serve the call; `reasons` says why."""

    def __init__(self, engine: str, reasons: list[str], by_series: bool = False) -> None:
        self.engine, self.reasons = engine, reasons
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(f"engine {engine!r} refuses this call:{lines}\n{ADVICE[by_series]}")


@dataclass(frozen=True)
class Plan:
    """How `attention` would run a call, as `explain` returns it; print it to read it.

    Attributes:
        engine: the engine that runs, or None where the requested one refuses.
        form: the form that the score is lowered to.
        error_bound: an upper bound on the error of the output against exact arithmetic on the
            lowered features, in units of the largest |value|; inf where rounding can change the
            answer altogether, nan where none is known: device "meta", and calls over edges.
        refused: the reasons of each engine that refuses the call.
        also: other engines that would serve it if requested by name.
        notes: promises that the engine does not keep, and what is missing on this machine.
    """

    engine: str | None
    score: str
    form: str
    error_bound: float
    refused: dict[str, list[str]] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """A few lines for a person."""
        lines = [
            f"score   {self.score}",
            f"form    {self.form}",
            f"engine  {self.engine or 'none: the engine asked for refuses'}",
            "error   not known"
            if math.isnan(self.error_bound)
            else f"error   at most {self.error_bound:.1e} of the largest |value|",
        ]
        lines += (
            [f"also    {', '.join(self.also)} would serve it, asked by name"] if self.also else []
        )
        for name, reasons in self.refused.items():
            lines.append(f"refused {name}")
            lines += [f"          - {reason}" for reason in reasons]
        lines += [f"note    {note}" for note in self.notes]
        return "\n".join(lines)


def preferred(p: Problem) -> tuple[Engine, ...]:
    """The engines in the order to ask them: one that asks to come first, then all, but those that ask to come last."""
    late = [engine for engine in MAY_COME_LAST if engine.comes_last(p)]
    order = (*(engine for engine in ENGINES if engine not in late), *late) if late else ENGINES
    for engine in MAY_COME_FIRST:
        if engine.comes_first(p):
            return (engine, *order)
    return order


def pick(problem: Problem, engine: str | None = None) -> Engine:
    """The engine that runs the problem; one requested by name never falls back to another."""
    by_series = engine is None and runs_series(problem)
    if by_series:
        engine = SERIES_ENGINE
    if engine is None:
        every = asks_every_derivative(problem)
        for candidate in preferred(problem):
            if every and not candidate.every_derivative:
                continue
            if not candidate.refusals_of_call(problem):
                return candidate
    # Reached only with a name: the reference refuses nothing, so that the loop above returns.
    chosen = named_engine(engine)
    reasons = chosen.refusals_of_call(problem)
    if reasons:
        raise EngineRefused(chosen.name, reasons, by_series)
    return chosen


def names_series(form: Form) -> bool:
    """Whether the score names the series that replaces tanh."""
    return isinstance(form, Pairwise) and form.activation == "tanh" and form.series != ""


def runs_series(problem: Problem) -> bool:
    """Whether the series that the score names has to run: where an error is to be kept, that decides."""
    return problem.error == math.inf and names_series(problem.form)


def asks_every_derivative(problem: Problem) -> bool:
    """Whether the call is inside forward mode, or inside derivatives of derivatives of `torch.func`.

    Second derivatives by autograd itself are not known ahead: the engines on the CPU serve them when they
    are asked for.
    """
    return in_forward_mode() or derivative_levels(problem.form.query, problem.value) > 1


def repeated(
    problem: Problem, engine: str | None, given: Sequence[Tensor], output: Tensor
) -> RunAgain | None:
    """A function that runs further calls like this one (pairwise, without options), or None.

    See `Engine.repeated`. Only the first engine in order is asked: the others serve long calls, whose
    time is spent in kernels and not in Python.
    """
    if engine is None and runs_series(problem):
        engine = SERIES_ENGINE
    first = preferred(problem)[0] if engine is None else named_engine(engine)
    return first.repeated(problem, given, output)


def allowed_error(error: float | None, engine: str | None, form: Form) -> float | None:
    """The error that a call allows; an approximate engine requested by name runs with its own bound."""
    if error is None and engine is None and names_series(form):
        return math.inf
    if error is None and engine is not None and named_engine(engine).approximate:
        return math.inf
    return error


def named_engine(name: str | None) -> Engine:
    """The engine called `name`, or an error that suggests one."""
    if not isinstance(name, str):
        raise ValueError(
            f"engine must be a name or None, got {describe(name)}; engines: {', '.join(BY_NAME)}"
        )
    if name not in BY_NAME:
        near = difflib.get_close_matches(name.lower(), BY_NAME, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown engine {name!r}{hint}; engines: {', '.join(BY_NAME)}")
    return BY_NAME[name]


def scores(problem: Problem) -> Tensor:
    """Raw logits (*, H, Q, L) in working precision, from the engine that needs the least memory."""
    for engine in ENGINES:
        found = engine.raw_scores(problem)
        if found is not None:
            return found
    raise AssertionError("the reference has raw scores of every form")


def make_plan(problem: Problem, score: Score, engine: str | None = None) -> Plan:
    """The plan for a problem; see `Plan`."""
    if engine is None and runs_series(problem):
        engine = SERIES_ENGINE
    # Not `refusals_of_call`: explaining a call must not count as one.
    refusals = {candidate.name: candidate.refusals(problem) for candidate in ENGINES}
    if engine is None and asks_every_derivative(problem):
        for candidate in ENGINES:
            refusals[candidate.name] += [] if candidate.every_derivative else [NO_DERIVATIVE]
    if engine is None:
        chosen = next(x for x in preferred(problem) if not refusals[x.name])
    else:
        chosen = named_engine(engine)
    served = not refusals[chosen.name]
    return Plan(
        engine=chosen.name if served else None,
        score=score.name,
        form=problem.form.describe(),
        error_bound=stated_bound(problem, chosen if served else None),
        refused={name: reasons for name, reasons in refusals.items() if reasons},
        also=[name for name, reasons in refusals.items() if not reasons and name != chosen.name],
        notes=(chosen.missing_promises(problem) if served else []) + machine_notes(problem),
    )


def stated_bound(problem: Problem, engine: Engine | None) -> float:
    """The bound on the error of the output: the engine's own, or that of rounding and what it adds."""
    own = None if engine is None else engine.error_bound(problem)
    if own is not None:
        return own
    return error_bound(problem) + (0.0 if engine is None else engine.added_error(problem))


def machine_notes(problem: Problem) -> list[str]:
    """Notes on hardware and packages that are missing here and would make a difference."""
    notes = []
    if problem.on_cpu and not torch.cuda.is_available():
        notes.append("no GPU is visible: everything runs on the CPU")
    if not HAS_TRITON:
        notes.append(
            "Triton 3.6 or newer is not installed: engines written in it are not available"
        )
    return notes


def error_bound(problem: Problem) -> float:
    """A bound on |output - exact| / max |value|, from the sizes of the lowered features.

    Rounding moves a logit by at most `delta = u * n * size`, with u the unit roundoff of the
    working precision, n the number of terms and size the largest sum of their absolute values. A
    logit error of delta changes each weight by a factor of at most exp(2 delta); weights of half
    precision kernels and the output are rounded once more to the dtype itself.
    """
    form, p = problem.form, problem
    if 0 in form.query.shape or 0 in form.key.shape:
        return 0.0
    if p.device.type == "meta":
        return math.nan
    working = torch.finfo(working_dtype(p.dtype)).eps
    terms = form.query.shape[-1] + 8
    if isinstance(form, Inner):
        size = form.scale * float(_norm(form.phi) * _norm(form.psi))
        size += sum(float(x.detach().abs().max()) for x in (form.alpha, form.beta) if x is not None)
    else:
        size = float(form.v.detach().abs().sum(-1).max()) * _reach(form)
    coldest = p.temperature
    if isinstance(coldest, Tensor):
        coldest = float(coldest.detach().abs().min())
    if coldest == 0:  # a hard look-up: rounding may change which key is the best
        return math.inf
    size = size / coldest
    if p.bias is not None:
        size += float(torch.where(p.bias == -torch.inf, 0, p.bias).detach().abs().max())
    delta = working * terms * size
    rounding = 4 * torch.finfo(p.dtype).eps + 2 * working * p.keys**0.5
    # Capped at 700, since expm1 overflows beyond 709.
    return math.expm1(min(2 * delta, 700.0)) + rounding


def _reach(form: Pairwise) -> float:
    """A bound on |f(a + b)|, inf for an activation that is not one of ours."""
    if form.activation == "tanh":
        return 1.0
    largest = float(_peak(form.a) + _peak(form.b))
    if form.activation == "sine":
        row = row_of(form.parameter)
        return abs(row.linear) * largest + sum(map(abs, row.coefficients))
    if form.activation == "leaky_relu":
        return largest * max(1.0, abs(form.parameter))
    return math.inf


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float64).max()


def _peak(x: Tensor) -> Tensor:
    return x.detach().abs().max()
