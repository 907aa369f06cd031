"""Padding is not read: what lies under it changes nothing that is visible.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.blame import described, first_place
from regard.doctor.laws.changing import Replace
from regard.doctor.laws.finding import NOT_ATTENTION, finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.passes import Delta, Key

ADVICE = (
    "pass the mask on to every layer, cross-attention included",
    (
        "compare its polarity: True = a real token in SDPA and regard, True = padding in "
        "nn.MultiheadAttention (key_padding_mask)"
    ),
    "compare its side and its shape: it hides keys, (B, 1, 1, L), not queries",
    "pool only over real tokens",
)


def test(law: Law, bench: LawBench) -> Ruling:
    """Replace all tokens under the padding: only what belongs to padding may move."""
    real = bench.declared.real
    known = bench.declared.sources["padding"]
    if not real:
        return law.skipped(known)
    masks: dict[int, Tensor] = {}
    for stream in bench.streams:
        hides = real.get(stream.name)
        if hides is not None:
            masks[stream.length] = ~hides
    others = {s.length for s in bench.streams} - set(masks)
    # Streams of the same length are told apart by name; each mask belongs to one.
    deltas = bench.changed(Replace(masks, only=tuple(real)))

    def forbidden(key: Key, delta: Delta) -> Tensor | None:
        if not delta.tokens:
            # The input of the model is not asked what it holds.
            return torch.ones_like(delta.moved, dtype=torch.bool) if key[1] != "in0" else None
        padded = masks.get(delta.moved.shape[1])
        if padded is None and delta.moved.shape[1] in others:
            return torch.ones_like(delta.moved, dtype=torch.bool)
        query = deltas.get((key[0], "query", 1))
        if padded is None and key[1] == "out" and query is not None:
            # Queries that do not move with the padding, as learned latents, are no padding.
            still = not bool(bench.dirty((key[0], "query", 1), query).any())
            return torch.ones_like(delta.moved, dtype=torch.bool) if still else None
        # Of other lengths, as after a convolution with a stride, it is not known what is padding.
        return None if padded is None else ~padded

    reached = any(
        key[1].startswith("output:")
        and (cells := forbidden(key, delta)) is not None
        and bool((bench.dirty(key, delta) & cells).any())
        for key, delta in deltas.items()
    )
    place = first_place(bench, deltas, forbidden) if reached else None
    hidden = sum(int(x.sum()) for x in masks.values())
    if place is None:
        return law.held(f"{hidden} padded tokens replaced, no real output moved; {known}")
    said = (
        f"The {hidden} padded tokens of the batch were replaced ({known}), and outputs of real tokens "
        f"changed. {described(place)}"
    )
    grave = place.attention
    finding = finding_of(
        law, place.name, said if grave else f"{said} {NOT_ATTENTION}", ADVICE,
        moved=place.moved, allowed=place.noise,
        severity=Severity.FAILURE if grave else Severity.NOTE, title="padding is read",
    )  # fmt: skip
    return law.broken(f"real outputs moved with the padding; {known}", finding)


LAW = Law(
    "padding-is-not-read",
    "padding is not read",
    "Nothing visible changes when what lies under the padding is replaced.",
    test,
)
