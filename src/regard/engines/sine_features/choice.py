"""Chooses the series of a call (kind and rank): on the CPU from its values, on a GPU from its shapes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard import sine
from regard.engines.gpu import is_known
from regard.engines.sine_features.bounds import (
    BOUNDED,
    FULL_PRECISION,
    LONGEST_SERIES,
    OWN_ERROR,
    UNKNOWN_LENGTH,
    WIDE_LONGEST_SERIES,
    planned_reach,
    shortest_rank,
)
from regard.engines.sine_features.widths import (
    WIDE_FEATURES,
    WIDE_VALUE,
    WIDEST_FEATURES,
    Widths,
    lay_out,
    lay_out_wide,
)
from regard.forms import Pairwise
from regard.problem import Problem
from regard.sine.series import FAST_RANK, MATCHED_RANK, can_lend

# The series of an engine requested by name, where the score names none.
USUAL_SERIES = "matched"
# Ranks for an engine requested by name without `error=`: the error is about that of exact attention in bf16.
USUAL_RANK = {"fast": FAST_RANK, "matched": MATCHED_RANK, "uniform": 6, "normal": 5}
# On the CPU every sine costs time, and rank 6 is within 1e-4 there (benchmarks/results/sine_cpu.json).
CPU_RANK = {**USUAL_RANK, "matched": 6}


# Computed at import: a compiled graph would guard every number of the tables.
LENDING = {(kind, rank): can_lend(kind, rank) for kind in sine.KINDS for rank in sine.ranks(kind)}


class Chosen(NamedTuple):
    """The choices for a call on a GPU: kind and rank of the series, the error that the device allows, widths.

    `wide` says that the wide kernels run it: features or values are too wide for cuDNN, or it hides pairs
    or drops weights as cuDNN is not asked to.
    """

    kind: str
    rank: int
    allowed: float
    widths: Widths
    wide: bool


def on_cpu(p: Problem) -> tuple[tuple[str, int] | None, list[str]]:
    """Kind and rank of the shortest series within the allowed error, or the reasons why there is none."""
    form, allowed = p.form, p.error
    assert isinstance(form, Pairwise) and allowed is not None
    reach = sine.unit_reach(form)
    kind = kind_of(form, allowed == math.inf)
    series = sine.load(kind, CPU_RANK[kind])
    longest, largest = float(series.reach[-1]), float(reach.max())
    if not largest <= longest:  # NaN is refused too
        return None, [
            f"|a + b| may reach {largest:.3g}, and no series was fitted beyond {longest:g}"
        ]
    if allowed == math.inf:
        return (kind, CPU_RANK[kind]), []
    bound = math.inf
    for rank in sine.ranks(kind):
        bound = output_error(p, sine.logit_error(form, sine.load(kind, rank), reach))
        if bound <= allowed:
            return (kind, rank), []
        if rank == LONGEST_SERIES:
            break
    why = f"rank {LONGEST_SERIES}, the largest in use, may have an error of {bound:.1e} of |value|"
    return None, [f"{why}, more than {allowed:.1e}"]


def on_device(p: Problem) -> tuple[Chosen | None, list[str]]:
    """The choices for a GPU, or the reasons why there are none. Tensors are not read: the device checks them."""
    form = p.form
    assert isinstance(form, Pairwise) and isinstance(p.temperature, float)
    hidden, value_dim, rate = form.a.shape[-1], p.value.shape[-1], 1 / p.temperature
    error = OWN_ERROR.get(p.dtype, 0.0) if p.error is None else p.error
    named = error == math.inf
    kind = kind_of(form, named)
    allowed = error - (FULL_PRECISION if p.dtype == torch.float32 else 0.0)
    rank = USUAL_RANK[kind] if named else shortest_rank(allowed, hidden, rate)
    if rank is not None:
        widths = lay_out(2 * rank * hidden, value_dim, LENDING[kind, rank])
        if widths is not None and not needs_wide_kernels(p):
            return Chosen(kind, rank, allowed, widths, False), []
    if not named and (rank is None or 2 * rank * hidden > WIDEST_FEATURES):
        lengths = (p.queries, p.keys) if is_known(p.queries, p.keys) else (UNKNOWN_LENGTH,) * 2
        rank = shortest_rank(allowed, hidden, rate, planned_reach(*lengths))
    if rank is None:
        why = f"no series up to rank {WIDE_LONGEST_SERIES} with fp16 features is expected to stay within"
        return None, [f"{why} {error:.1e} of |value|"]
    widths = lay_out_wide(2 * rank * hidden, value_dim, LENDING[kind, rank])
    if widths is None:
        why = f"rank {rank} makes features {2 * rank * hidden} wide, for values {value_dim} wide"
        most = f"{WIDE_FEATURES:,} and {WIDE_VALUE}, with columns for beta among the features"
        return None, [f"{why}: the wide kernels take at most {most}"]
    return Chosen(kind, rank, allowed, widths, True), []


def kind_of(form: Pairwise, by_name: bool) -> str:
    """The kind of series: that of the score for an engine requested by name, else the one with the least bound."""
    return (form.series or USUAL_SERIES) if by_name else BOUNDED


def needs_wide_kernels(p: Problem) -> bool:
    """Whether the call hides pairs or drops weights as cuDNN is not asked to, or has a single query or key."""
    hides = p.mask is not None and not is_causal_square(p)
    return p.dropout > 0 or hides or p.queries < 2 or p.keys < 2


def is_causal_square(p: Problem) -> bool:
    """Whether the mask is the one passed to cuDNN as a flag: causal, with as many keys as queries."""
    return p.mask is not None and p.queries == p.keys and p.mask.is_only_causal


def output_error(p: Problem, logit_error: Tensor) -> float:
    """A bound on the error of the output, in units of the largest |value|.

    Logits that are off by delta change every weight by a factor of at most exp(2 delta).
    """
    assert isinstance(p.temperature, float)
    # Capped at 700, since expm1 overflows beyond 709.
    return math.expm1(min(2 * float(logit_error) / p.temperature, 700.0))
