"""Evaluation is a function: the same input gives the same bits."""

from __future__ import annotations

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import OTHER_SEED, LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling

ADVICE = (
    "functional.dropout(x, p, training=self.training): its own default is True",
    "dropout_p of scaled_dot_product_attention does not look at training: p if self.training else 0.0",
    "a cache or counter that one call leaves for the next has to be reset",
)
SOURCE = "two evaluations give the same bits"


def test(law: Law, bench: LawBench) -> Ruling:
    """Evaluate again, with other random numbers."""
    again = bench.changed(None, seed=OTHER_SEED)
    moved = {key: delta for key, delta in again.items() if bool((delta.moved > 0).any())}
    if not any(key[1].startswith("output:") for key in moved):
        return law.held("two evaluations with other random numbers give the same bits")
    most = max(float(x.moved.max()) / (float(x.size.max()) or 1.0) for x in moved.values())
    if bench.base.dropouts:
        path, (share, code) = next(iter(bench.base.dropouts.items()))
        site = next((s for s, made in bench.calls.items() if made.path == path), path)
        said = (
            f"Dropout with p={share:g} is on in evaluation at {path}{f' ({code})' if code else ''}: two "
            "evaluations of the same batch differ."
        )
        finding = finding_of(
            law, site, said, ADVICE, moved=most, allowed=0.0, what="difference", source=SOURCE,
            title="dropout is on in evaluation",
        )  # fmt: skip
        return law.broken("two evaluations differ", finding)
    first = next(iter(moved))
    # Sums by atomics differ in their last bits from run to run, and a sampler is meant to draw.
    if not any(bool(bench.dirty(key, delta).any()) for key, delta in moved.items()):
        return law.held(f"two evaluations differ by rounding alone, {most:.1g}")
    note = finding_of(
        law, first[0] or bench.root,
        "Two evaluations of the same batch differ, and no dropout was seen: the model draws random numbers "
        "or keeps something from one call to the next. If it is not meant to, look here first.",
        ADVICE, moved=most, allowed=0.0, what="difference", source=SOURCE, severity=Severity.NOTE,
        title="two evaluations differ",
    )  # fmt: skip
    return law.broken("two evaluations differ", note)


LAW = Law(
    "evaluation-is-a-function",
    "evaluation is a function",
    "Two evaluations of the same batch give the same bits.",
    test,
)
