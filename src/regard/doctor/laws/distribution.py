"""Weights are a distribution over keys: those of a query sum to 1 over what is summed against values."""

from __future__ import annotations

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.weights import ONE, Sums

AXIS = (
    (
        "give softmax the dim of the keys, the one that the product with the values sums over: dim=-1 for "
        "weights (..., queries, keys)"
    ),
)
ERASED = (
    "mask the logits with -inf before the softmax, not the weights after it; or divide by the new sum",
)
SOURCE = "rounding of the weights, and no more"


def test(law: Law, bench: LawBench) -> Ruling:
    """Sum the weights that were multiplied with values over the axis that the product sums over."""
    # Dropout that is on is found by another law.
    dropped = bench.base.dropouts
    read = {
        site: x
        for site, x in bench.facts.items()
        if x.sums is not None and x.call.path not in dropped
    }
    if not bench.facts:
        return law.skipped("no attention was seen")
    if not read:
        return law.held("all attention calls are fused, where it holds by construction")
    bad = {site: kind for site, x in read.items() if x.sums and (kind := fault(x.sums))}
    if not bad:
        exempt = [site for site, x in read.items() if x.sums and off(x.sums)]
        told = f"; left out on purpose or by a gate: {', '.join(exempt[:3])}" if exempt else ""
        return law.held(f"{len(read)} calls that are written out{told}")
    site, kind = next(iter(bad.items()))
    sums, line = read[site].sums, bench.calls[site].code
    assert sums is not None
    where = f"{site}{f' ({line})' if line else ''}"
    if kind == "axis":
        said = (
            f"At {where} weights are summed against {sums.keys} values, but their sum over these is up to "
            f"{sums.off:.3g} away from 1, while over another axis every sum is 1: the softmax went over "
            "queries, heads or samples."
        )
    else:
        said = (
            f"At {where} weights were set to zero after the softmax: {sums.share:.0%} of the queries have "
            f"weights that sum to less than 1, by up to {sums.off:.3g}. What was hidden still took its share."
        )
    said += f" Calls with this: {', '.join(list(bad)[:6])}." if len(bad) > 1 else ""
    finding = finding_of(
        law, site, said, AXIS if kind == "axis" else ERASED, moved=sums.off, allowed=ONE,
        what="|sum of weights - 1|", source=SOURCE, severity=Severity.FAILURE,
        title="weights are no distribution over the keys",
    )  # fmt: skip
    return law.broken(f"{len(bad)} of {len(read)} calls that are written out", finding)


def off(sums: Sums) -> bool:
    """Whether sums are not 1."""
    return sums.off > ONE


def fault(sums: Sums) -> str:
    """What is wrong with the sums: "axis", "erased", or "" for nothing."""
    if not off(sums) or sums.exempt or sums.keys < 2:
        return ""
    if sums.elsewhere:
        return "axis"
    # A factor, as a gate of a head has it, changes sums too, but erases nothing.
    return "erased" if sums.erased else ""


LAW = Law(
    "distribution-over-keys",
    "weights are a distribution over keys",
    "The weights of a query sum to 1 over the keys that they are summed against.",
    test,
)
