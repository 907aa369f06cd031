"""Precision is enough: each attention call, computed again in fp64 from its own inputs, gives its output.

No pass is made: the inputs are those of the base pass. The model is not cast.

Shape legend: B samples, H heads, R queries read, L keys, Dv width of a value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.doctor.findings.finding import Finding, Severity
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.following import Summed
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.probing.looking import weights_of
from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import HIDDEN

MOST_QUERIES = 64
# Roundings that attention is allowed. In its own dtype: of weights and output, and in fused kernels of logits, for
# each unit of the largest. In fp32, in which sums are made: healthy calls have up to 4, and 0.13 for each unit.
OWN, OWN_LOGIT = 4.0, 0.5
SUMS, SUMS_LOGIT = 12.0, 2.0
FP32 = torch.finfo(torch.float32).eps
# Logits beyond this are masks.
MASKED = 1e4
ADVICE = (
    "keep logits, softmax and the sum over keys in float32, and cast the result",
    "scale queries before the product: in float16 a product beyond 65504 is infinite",
    "hide by -inf or torch.finfo(dtype).min; a mask of -1e4 that is added to large logits hides too little",
)
SOURCE = f"{OWN:.0f} roundings of the dtype, and those of sums in float32"


class Accuracy(NamedTuple):
    """How far a call is from the same in fp64.

    Attributes:
        error: the largest difference, over the largest number; inf where it is not finite.
        allowed: the largest error that rounding explains.
        step: "logits", "softmax", "sum" over the keys, or "call" for a fused one.
    """

    error: float
    allowed: float
    step: str


def test(law: Law, bench: LawBench) -> Ruling:
    """Recompute each attention call in fp64."""
    if not bench.shown:
        return law.skipped("no attention was seen")
    measured: dict[str, Accuracy] = {}
    for site, (seen, summed) in bench.shown.items():
        if bench.calls[site].path in bench.base.dropouts:
            continue
        out = bench.base.tensors.get((site, "out", 1))
        made = None
        if summed is not None:
            made = of_written(summed, None if out is None else out[0])
        elif seen is not None and out is not None:
            made = of_fused(seen, out[0])
        if made is not None:
            measured[site] = made
    if not measured:
        return law.skipped("no call has inputs that its output can be computed from again")
    worst = max(measured, key=lambda x: measured[x].error / measured[x].allowed)
    bad = [site for site, x in measured.items() if x.error > x.allowed]
    if not bad:
        most = measured[worst]
        return law.held(
            f"{len(measured)} calls in fp64: the least exact is {worst}, {most.error:.1g} of {most.allowed:.1g} allowed"
        )
    return law.broken(
        f"{len(bad)} of {len(measured)} calls", made_of(law, bench, bad, worst, measured[bad[0]])
    )


def made_of(law: Law, bench: LawBench, bad: list[str], worst: str, found: Accuracy) -> Finding:
    """The finding at the first call that is not exact enough."""
    site = bad[0]
    line = bench.calls[site].code
    where = f"{site}{f' ({line})' if line else ''}"
    what = {
        "softmax": "the weights that meet the values are not those that its logits give",
        "sum": "the sum of weights and values",
        "call": "its output",
        "logits": "the product of queries and keys",
    }[found.step]
    lost = found.error == float("inf")
    said = f"At {where} {what} was computed again in fp64 from its own inputs, and differs"
    said += " by NaN or infinity." if lost else " by more than the rounding of its inputs explains."
    said += f" Calls with this: {', '.join(bad[:6])}; the worst is {worst}." if len(bad) > 1 else ""
    return finding_of(
        law, site, said, ADVICE, moved=found.error, allowed=found.allowed, what="error over fp64",
        source=SOURCE, severity=Severity.FAILURE if lost else Severity.WARNING,
        title="attention loses precision",
    )  # fmt: skip


def of_fused(seen: Seen, out: Tensor) -> Accuracy | None:
    """The accuracy of a call whose query, key and value are known; None where it cannot be computed again."""
    if seen.query is None or seen.key is None or seen.value is None or seen.flex is not None:
        return None
    try:
        exact = seen._replace(query=seen.query.double(), key=seen.key.double())
        weights, rows, logits = weights_of(exact, MOST_QUERIES)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    heads = weights.shape[1]
    value = seen.value.double()
    if heads % value.shape[1]:
        return None
    wanted = weights @ value.repeat_interleave(heads // value.shape[1], 1)
    # An output in another layout cannot be compared row by row.
    if out.ndim < 3 or out.shape[-2] != seen.query.shape[-2] or out.shape[-1] != value.shape[-1]:
        return None
    got = out.index_select(-2, rows)
    if got.numel() != wanted.numel():
        return None
    visible = logits[logits > HIDDEN / 2]
    largest = float(visible.abs().max()) if visible.numel() else 0.0
    eps = max(torch.finfo(x.dtype).eps for x in (seen.query, seen.key))
    # A query that sees nothing has NaN or zero, by kernel.
    empty = (weights.sum(-1) == 0).unsqueeze(-1)
    got = got.reshape(wanted.shape).double().masked_fill(empty, 0.0)
    return Accuracy(apart(got, wanted), allowed(eps, largest, OWN_LOGIT), "call")


def of_written(summed: Summed, out: Tensor | None) -> Accuracy | None:
    """The accuracy of attention that is written out: of its softmax, then of the sum over the keys."""
    tag = summed.tag
    sides = [x for x in tag.sides or () if x.is_floating_point()]
    base = [*sides, *([tag.logits[0]] if tag.logits else [])] or [summed.values]
    eps = max(torch.finfo(x.dtype).eps for x in base)
    largest = 0.0
    if overflown(summed, sides, out):
        return Accuracy(
            float("inf"), allowed(eps, largest), "sum" if tag.logits is None else "logits"
        )
    if tag.logits is not None and not tag.exempt:
        logits, dim = tag.logits
        real = logits[logits.abs() < MASKED]
        largest = float(real.abs().max()) if real.numel() else 0.0
        exact = logits.double().softmax(dim)
        used = summed.weights
        if used.numel() == exact.numel() and used.shape == exact.shape:
            # Zeros are what a mask or a gate of another law has left; NaN of queries that see nothing.
            kept = (used != 0) & exact.isfinite()
            error = apart(used.double()[kept], exact[kept])
            if error > allowed(eps, largest) and not rescaled(used, exact):
                return Accuracy(error, allowed(eps, largest), "softmax")
    if out is None or summed.again is None:
        return None
    try:
        wanted = summed.again(summed.weights.double(), summed.values.detach().double())
    except RuntimeError:
        return None
    if wanted.shape != out.shape:
        return None
    return Accuracy(apart(out.double(), wanted), allowed(eps, largest), "sum")


def overflown(summed: Summed, sides: list[Tensor], out: Tensor | None) -> bool:
    """Whether finite queries, keys and values give logits or an output that are not."""
    given = [*sides, summed.values]
    if not sides or not all(bool(x.isfinite().all()) for x in given):
        return False
    if summed.tag.logits is not None:  # -inf is a mask
        logits = summed.tag.logits[0]
        return bool((logits.isnan() | logits.isposinf()).any())
    return out is not None and not bool(out.isfinite().all())


def rescaled(used: Tensor, exact: Tensor) -> bool:
    """Whether weights were changed on purpose after the softmax: by far more than any dtype rounds."""
    kept = exact > 1e-3
    ratio = used.double()[kept] / exact[kept]
    return bool(ratio.numel() and float((ratio - 1).abs().max()) > 0.05)


def allowed(eps: float, largest: float, each_logit: float = 0.0) -> float:
    """The error that rounding explains."""
    return eps * (OWN + each_logit * largest) + min(eps, FP32) * (SUMS + SUMS_LOGIT * largest)


def apart(got: Tensor, wanted: Tensor) -> float:
    """The largest difference over the largest number; inf where only one of them is finite."""
    if not wanted.numel():
        return 0.0
    both = got.isfinite() & wanted.isfinite()
    if bool((wanted.isfinite() & ~got.isfinite()).any()):
        return float("inf")
    size = float(wanted[both].abs().max()) if bool(both.any()) else 0.0
    return float((got - wanted)[both].abs().max()) / size if size > 0 else 0.0


LAW = Law(
    "precision-is-enough",
    "precision is enough",
    "An attention call gives what the same call gives in fp64, up to the rounding of its inputs.",
    test,
)
