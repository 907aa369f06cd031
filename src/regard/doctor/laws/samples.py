"""One sample, one answer: other samples of a batch change nothing.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import MOST_NOISE, LawBench
from regard.doctor.laws.blame import described, first_place
from regard.doctor.laws.changing import Replace
from regard.doctor.laws.finding import NOT_ATTENTION, finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.passes import Delta, Key

ADVICE = (
    (
        "heads are split by view(B, T, H, D).transpose(1, 2) and put together by transpose(1, 2).reshape(B, T, "
        "H * D): a view alone mixes samples, tokens and heads"
    ),
    "is the batch the first dim where the module expects it (batch_first=)?",
    "a softmax or a norm over dim 0 goes over the samples",
)


def test(law: Law, bench: LawBench) -> Ruling:
    """Replace every second sample: the others must not move."""
    count = bench.sizes.batch
    if count < 2:
        return law.skipped("the batch has one sample")
    if not bench.streams:
        return law.skipped("no input that can be changed was found in the batch")
    odd = torch.arange(count) % 2 == 1
    masks = {n: odd[:, None].expand(count, n) for n in bench.sizes.lengths} | {0: odd[:, None]}
    deltas = bench.changed(Replace(masks))

    def forbidden(key: Key, delta: Delta) -> Tensor | None:
        return (~odd)[:, None].expand_as(delta.moved)

    reached = any(
        key[1].startswith("output:") and bool((bench.dirty(key, delta)[~odd]).any())
        for key, delta in deltas.items()
    )
    place = first_place(bench, deltas, forbidden) if reached else None
    if place is None:
        return order(law, bench)
    said = (
        f"Every second sample was replaced, and outputs of the others changed. {described(place)}"
    )
    finding = finding_of(
        law, place.name, said if place.attention else f"{said} {NOT_ATTENTION}", ADVICE,
        moved=place.moved, allowed=place.noise,
        severity=Severity.FAILURE if place.attention else Severity.NOTE,
        title="samples of a batch see one another",
    )  # fmt: skip
    return law.broken("outputs moved with other samples", finding)


def order(law: Law, bench: LawBench) -> Ruling:
    """The order of the samples may move an output by rounding alone."""
    deltas = bench.reordered
    if deltas is None:
        return law.held("every second sample replaced, the others did not move")
    most = 0.0
    for key, delta in deltas.items():
        if key[1].startswith("output:") and float(delta.size.max()) > 0:
            share = float(delta.moved.max()) / float(delta.size.max())
            limit = torch.finfo(bench.base.tensors[key][0].dtype).eps ** MOST_NOISE
            most = max(most, share)
            if share > limit:
                note = finding_of(
                    law, bench.root,
                    "The samples were put in reverse order, and outputs changed by more than rounding.",
                    ADVICE, moved=share, allowed=limit, severity=Severity.NOTE,
                    title="outputs depend on the place of a sample in the batch",
                )  # fmt: skip
                return law.broken("outputs moved with the order of the samples", note)
    return law.held(
        f"every second sample replaced, the others did not move; in reverse order outputs move by {most:.1g}"
    )


LAW = Law(
    "one-sample-one-answer",
    "one sample, one answer",
    "The answer for a sample does not change with the other samples of its batch.",
    test,
)
