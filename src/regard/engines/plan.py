"""Picks the engine that runs a problem, and says why.

The choice depends on shapes, dtypes and options, never on timing: the same call runs the same engine
on every machine of a job. One exception: on the CPU `sine` also looks at the range of the tensors.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.engines.base import Engine, RunAgain
from regard.engines.cpu import Cpu, blocked_scores
from regard.engines.gpu import HAS_TRITON
from regard.engines.plain import Plain
from regard.engines.reference import Reference, raw_scores
from regard.engines.sdpa import Sdpa
from regard.engines.sine import Sine
from regard.engines.sine.device import is_too_short, tanh_count
from regard.engines.sine.parts import PARTS
from regard.engines.triton import Behind, Triton
from regard.forms import Inner, Pairwise
from regard.precision import working_dtype
from regard.problem import Problem
from regard.scores import Score
from regard.sine import escapes
from regard.sine.activation import row_of

SDPA, CPU, TRITON, PLAIN, REFERENCE = Sdpa(), Cpu(), Triton(), Plain(), Reference()
SINE = Sine(through=(SDPA, CPU, TRITON, REFERENCE))
# Engines do not import one another: what stands behind the series on a GPU is put in here.
PARTS.exact = Behind()
# In order of preference: the first that does not refuse runs.
ENGINES: tuple[Engine, ...] = (SDPA, SINE, CPU, TRITON, PLAIN, REFERENCE)
# Calls of up to this many tanh, as in examples and tests, go to plain PyTorch: nobody waits for kernels
# to be compiled. Calls that come again are done sooner by kernels at any size:
# benchmarks/results/small_h200.json.
FEW_TANH = 2**13
# The same on a CPU, where plain PyTorch is the sooner up to here; one query alone repays exponentials
# of its own only by the memory they save. benchmarks/results/small_cpu.json.
FEW_TANH_ON_CPU = 2**18
FEW_TANH_OF_ONE_QUERY = 2**23
BY_NAME: dict[str, Engine] = {engine.name: engine for engine in ENGINES}


# Where an engine has a short way for calls that come again.
REPEATED_ON = TRITON.devices if HAS_TRITON else ()


class EngineRefused(ValueError):
    """An engine asked for by name cannot serve the call; `reasons` says why."""

    def __init__(self, engine: str, reasons: list[str]) -> None:
        self.engine, self.reasons = engine, reasons
        lines = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(
            f"engine {engine!r} refuses this call:{lines}\n"
            "engine=None picks one that serves it; explain(...) shows which"
        )


@dataclass(frozen=True)
class Plan:
    """What `attention` would do with a call; print it to read it.

    Attributes:
        engine: the engine that runs, or None where the one asked for refuses.
        form: what the score is lowered to.
        error_bound: an upper bound on the error of the output against exact arithmetic on the
            lowered features, in units of the largest |value|; inf where rounding can change the
            answer altogether, nan where the tensors hold no numbers (device "meta").
        refused: why each engine that cannot serve the call refuses it.
        also: engines that would serve it too, if asked for by name.
        notes: what the engine does not promise, and what is missing on this machine.
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
            "error   not known: meta tensors hold no numbers"
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
    """All engines, the one to ask first in front."""
    form = p.form
    if not isinstance(form, Pairwise) or (p.on_cpu and p.error is not None):
        return ENGINES
    tanh = tanh_count(p)
    if p.on_cpu:
        few = FEW_TANH_OF_ONE_QUERY if p.queries == 1 else FEW_TANH_ON_CPU
        return (PLAIN, *ENGINES) if tanh <= few else ENGINES
    if tanh <= FEW_TANH:
        return (PLAIN, *ENGINES)
    # The series would refuse, and a short call would notice the time that asking it takes.
    return (TRITON, *ENGINES) if is_too_short(p) else ENGINES


def pick(problem: Problem, engine: str | None = None) -> Engine:
    """The engine to run; one asked for by name never falls back to another."""
    if engine is None:
        for candidate in preferred(problem):
            if not asked(candidate, problem):
                return candidate
    chosen = named_engine(engine)
    allow(problem, chosen)
    reasons = asked(chosen, problem)
    if reasons:
        raise EngineRefused(chosen.name, reasons)
    return chosen


def asked(engine: Engine, problem: Problem) -> list[str]:
    """Its refusals for a call that is really made: one that leaves the series' range is counted."""
    reasons = engine.refusals(problem)
    if engine is SINE and SINE.depends_on_range(problem):
        escapes.note(not reasons)
    return reasons


def repeated(
    problem: Problem, engine: str | None, given: Sequence[Tensor], output: Tensor
) -> RunAgain | None:
    """What runs further calls like this one, of a pairwise form and without options; or None.

    `given` is query, key, value and v as the caller gave them, and `output` what was returned. Long calls
    have no need of it: kernels are what they wait for.
    """
    first = preferred(problem)[0] if engine is None else named_engine(engine)
    if first is not TRITON or TRITON.refusals(problem):
        return None
    return TRITON.repeated(problem, given, output)


def allow(problem: Problem, engine: Engine) -> None:
    """Who asks for an approximate engine by name and no error takes what it gives."""
    if engine is SINE and problem.error is None:
        problem.error = math.inf


def named_engine(name: str | None) -> Engine:
    """The engine called `name`, or an error that suggests one."""
    if name not in BY_NAME:
        near = difflib.get_close_matches(str(name), BY_NAME, n=1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown engine {name!r}{hint}; engines: {', '.join(BY_NAME)}")
    return BY_NAME[name]


def scores(problem: Problem) -> Tensor:
    """Raw logits (*, H, Q, L) in working precision, by the leanest route on this device."""
    form = problem.form
    if isinstance(form, Pairwise) and problem.on_cpu:
        return blocked_scores(problem)
    if (
        isinstance(form, Pairwise)
        and not TRITON.refusals(problem)
        and not TRITON.has_long_heads(problem)
    ):
        return TRITON.scores(problem)
    return raw_scores(form, working_dtype(form.query.dtype))


def make_plan(problem: Problem, score: Score, engine: str | None = None) -> Plan:
    """The plan for a problem; see `Plan`."""
    if engine is not None:
        allow(problem, named_engine(engine))
    refusals = {candidate.name: candidate.refusals(problem) for candidate in ENGINES}
    if engine is None:
        chosen = next(x for x in preferred(problem) if not refusals[x.name])
    else:
        chosen = named_engine(engine)
    served = not refusals[chosen.name]
    added = SINE.added_error(problem) if served and chosen is SINE else 0.0
    return Plan(
        engine=chosen.name if served else None,
        score=score.name,
        form=problem.form.describe(),
        error_bound=error_bound(problem) + added,
        refused={name: reasons for name, reasons in refusals.items() if reasons},
        also=[name for name, reasons in refusals.items() if not reasons and name != chosen.name],
        notes=(chosen.missing_promises(problem) if served else []) + machine_notes(problem),
    )


def machine_notes(problem: Problem) -> list[str]:
    """What this machine lacks that would matter."""
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
    if coldest == 0:
        return math.inf
    size = size / coldest
    if p.bias is not None:
        size += float(torch.where(p.bias == -torch.inf, 0, p.bias).detach().abs().max())
    delta = working * terms * size
    rounding = 4 * torch.finfo(p.dtype).eps + 2 * working * p.keys**0.5
    return math.expm1(min(2 * delta, 700.0)) + rounding


def _reach(form: Pairwise) -> float:
    """The largest |f(a + b)|; not known for an activation that is not ours."""
    if form.activation == "tanh":
        return 1.0
    largest = float(_peak(form.a) + _peak(form.b))
    if form.activation == "sine":
        row = row_of(form.parameter)
        return abs(row.linear) * largest + sum(map(abs, row.coefficients))
    return largest if form.activation == "leaky_relu" else math.inf


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.detach(), dim=-1, dtype=torch.float64).max()


def _peak(x: Tensor) -> Tensor:
    return x.detach().abs().max()
