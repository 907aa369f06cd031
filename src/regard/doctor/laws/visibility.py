"""Who may see whom: no output depends on a token that it may not see.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.blame import Place, described, first_place
from regard.doctor.laws.finding import NOT_ATTENTION, finding_of
from regard.doctor.laws.law import SHARE, Law, Ruling
from regard.doctor.laws.passes import Delta, Key

ADVICE = (
    (
        "compare the mask with torch.ones(T, T, dtype=torch.bool).tril(): True = may see, in SDPA; "
        "nn.MultiheadAttention hides where True"
    ),
    "is the mask made for the same offset as queries and keys (tril(1) shows each token its successor)?",
    (
        "in transformers, register a mask function with a registered attention function: "
        "AttentionMaskInterface.register(name, sdpa_mask)"
    ),
)
RESHAPE = ("heads are split by view(B, T, H, D).transpose(1, 2), not by view(B, H, T, D)",)


def test(law: Law, bench: LawBench) -> Ruling:
    """Change one token of each sample in a pass, and see which outputs move."""
    declared, target = bench.declared, bench.target
    if target is None or target.length < 2:
        why = "no output has a row for each token of an input"
        return isolated(law, bench) if declared.direct is not None else law.skipped(why)
    if declared.visible is None and declared.scored is None:
        return undeclared(law, bench)
    tested = 0
    for at, deltas in zip(bench.changed_tokens, bench.influences, strict=True):
        tested += len(at)
        cells = forbidden_cells(bench, at)
        found = leaking(bench, deltas, at, cells)
        if found is not None:
            ruling = broken(law, bench, deltas, at, cells, found)
            return ruling._replace(padded=only_padded(bench))
    by_sites = isolated(law, bench)
    if by_sites.findings:
        return by_sites
    return law.held(f"{tested} tokens changed, no forbidden output moved; {source(bench)}")


def source(bench: LawBench) -> str:
    """From what it is known who may see whom."""
    known = bench.declared.sources
    rule = bench.declared.visible is not None
    return known["causal"] if rule else known["labels"]


def forbidden_cells(bench: LawBench, at: Tensor) -> Tensor:
    """(B, T), True where an output may not move when token `at` of its sample does."""
    declared, target = bench.declared, bench.target
    assert target is not None
    count, length = bench.sizes.batch, target.length
    cells = torch.zeros(count, length, dtype=torch.bool)
    each = torch.arange(count)
    if declared.visible is not None:
        whole = declared.visible.cpu().expand(count, length, length)
        cells |= ~whole[each, :, at]
    if declared.scored is not None:
        before = at > 0
        cells[each[before], at[before] - 1] |= declared.scored.cpu()[each[before], at[before] - 1]
    cells[each, at] = False
    # What a query under padding sees is of no use to anybody.
    real = declared.real.get(target.name)
    return cells if real is None else cells & real


def leaking(
    bench: LawBench, deltas: Mapping[Key, Delta], at: Tensor, cells: Tensor
) -> tuple[tuple[float, float], Place] | None:
    """The largest forbidden and allowed change of an output, and the first place; None without a leak."""

    def forbidden(key: Key, delta: Delta) -> Tensor | None:
        return cells if delta.tokens and delta.moved.shape == cells.shape else None

    for key, delta in deltas.items():
        if not key[1].startswith("output:") or delta.moved.shape != cells.shape:
            continue
        bad = bench.dirty(key, delta) & cells
        place = first_place(bench, deltas, forbidden) if bad.any() else None
        if place is not None:
            allowed = float(delta.moved.masked_fill(cells, 0.0).max())
            return (float(delta.moved[bad].max()), allowed or 1.0), place
    return None


def only_padded(bench: LawBench) -> bool:
    """Whether samples without padding leak nothing: then the padding may be what leaks."""
    target = bench.target
    real = None if target is None else bench.declared.real.get(target.name)
    if real is None or not real.all(1).any():
        return False
    for at, deltas in zip(bench.changed_tokens, bench.influences, strict=True):
        cells = forbidden_cells(bench, at) & real.all(1, keepdim=True)
        if leaking(bench, deltas, at, cells) is not None:
            return False
    return True


def broken(
    law: Law,
    bench: LawBench,
    deltas: Mapping[Key, Delta],
    at: Tensor,
    cells: Tensor,
    leak: tuple[tuple[float, float], Place],
) -> Ruling:
    """The ruling for a leak that reaches an output."""
    found, place = leak
    sample, row = pair_of(bench, deltas, cells)
    said = (
        f"Token {int(at[sample])} of a sample was replaced, and the output of token {row} changed, which "
        f"may not see it ({source(bench)}). The change is {found[0] / found[1]:.2g} of the largest that "
        f"an output that may see it shows. {described(place)}"
    )
    others = [x for x in leaking_sites(bench) if x != place.name]
    said += f" On their own inputs these leak too: {', '.join(others[:6])}." if others else ""
    severity = Severity.FAILURE if place.attention else Severity.NOTE
    said += "" if place.attention else f" {NOT_ATTENTION}"
    finding = finding_of(
        law, place.name, said, (RESHAPE + ADVICE) if place.step in ("before", "after") else ADVICE,
        moved=place.moved, allowed=place.noise, severity=severity,
        title="an output sees a token that it may not see",
    )  # fmt: skip
    return law.broken(f"a forbidden output moved; {source(bench)}", finding)


def pair_of(bench: LawBench, deltas: Mapping[Key, Delta], cells: Tensor) -> tuple[int, int]:
    """Sample and row of the output that moved most where it may not."""
    for key, delta in deltas.items():
        if key[1].startswith("output:") and delta.moved.shape == cells.shape:
            bad = delta.moved.masked_fill(~(bench.dirty(key, delta) & cells), 0.0)
            if bad.any():
                place = int(bad.argmax())
                return place // cells.shape[1], place % cells.shape[1]
    return 0, 0


def own_sites(bench: LawBench) -> list[str]:
    """The calls in which tokens of the target see one another: both of their sides move with it."""
    found = []
    for site, facts in bench.facts.items():
        if facts.shape[0] != facts.shape[1]:
            continue
        moved = [bench.of_sites(deltas, site) for deltas in bench.influences]
        sides = [name for name in ("query", "value") if any(name in x for x in moved)]
        if sides and all(
            any(name in x and bool(bench.dirty(*x[name]).any()) for x in moved) for name in sides
        ):
            found.append(site)
    return found


def leaking_sites(bench: LawBench) -> dict[str, tuple[float, float]]:
    """The calls that leak on their own inputs, with the change and what was allowed."""
    direct, alone = bench.declared.direct, bench.alone
    if direct is None or alone is None:
        return {}
    deltas, at = alone
    found: dict[str, tuple[float, float]] = {}
    sites = own_sites(bench) if bench.influences else square_sites(bench)
    for site in sites:
        made = bench.of_sites(deltas, site)
        if "out" not in made:
            continue
        key, delta = made["out"]
        length = delta.moved.shape[1]
        if length not in at or length != direct.shape[-1]:
            continue
        count = delta.moved.shape[0]
        cells = ~direct.expand(count, length, length)[torch.arange(count), :, at[length]]
        cells[torch.arange(count), at[length]] = False
        cells &= ~moved_before(bench, made, cells.shape)
        for real in bench.declared.real.values():
            cells &= real if real.shape == cells.shape else True
        bad = bench.dirty(key, delta) & cells
        most = float(delta.moved.max())
        if bad.any() and float(delta.moved[bad].max()) > SHARE * most:
            found[site] = (
                float(delta.moved[bad].max()) / float(delta.size.max()),
                bench.tolerance[key],
            )
    return found


def moved_before(
    bench: LawBench, made: Mapping[str, tuple[Key, Delta]], shape: torch.Size
) -> Tensor:
    """(B, T), where the query of a call has moved: another law is broken there."""
    if "query" not in made or made["query"][1].moved.shape != shape:
        return torch.zeros(shape, dtype=torch.bool)
    return bench.dirty(*made["query"])


def square_sites(bench: LawBench) -> list[str]:
    """The calls with as many queries as keys."""
    return [site for site, facts in bench.facts.items() if facts.shape[0] == facts.shape[1]]


def isolated(law: Law, bench: LawBench) -> Ruling:
    """Each attention module alone: what one layer shows."""
    if bench.declared.direct is None:
        return law.held(source(bench))
    found = leaking_sites(bench)
    if not found:
        return law.held(f"each attention call alone, on its own inputs; {source(bench)}")
    site, (moved, allowed) = next(iter(found.items()))
    line = bench.calls[site].code
    said = (
        f"On its own inputs, {site}{f' ({line})' if line else ''} shows a query what it may not see "
        f"({source(bench)}). Calls that do: {', '.join(list(found)[:6])}."
    )
    finding = finding_of(
        law, site, said, ADVICE, moved=moved, allowed=allowed,
        title="a query sees a key that it may not see",
    )  # fmt: skip
    return law.broken(f"{len(found)} attention calls show what is hidden; {source(bench)}", finding)


def undeclared(law: Law, bench: LawBench) -> Ruling:
    """Nobody declares who may see whom: a map that is almost causal is a note."""
    sources = bench.declared.sources
    why = f"{sources['causal']}; {sources['labels']}"
    if bench.declared.causal is False:
        why = f"every token may see every other ({sources['causal']})"
    ahead = steps_ahead(bench)
    if ahead is None or bench.declared.causal is False:
        return law.skipped(why)
    note = finding_of(
        law, ahead[0],
        "No output sees a token further ahead than the next one, and the next one it does see. A causal "
        "mask that is shifted by one does this; so does a model that is made to look one step ahead. "
        "Pass causal=True to decide.",
        ADVICE, moved=ahead[1], allowed=ahead[2], severity=Severity.NOTE,
        title="almost causal: each token sees its successor",
    )  # fmt: skip
    return law.broken(f"almost causal, but {why}", note)


def steps_ahead(bench: LawBench) -> tuple[str, float, float] | None:
    """Site, change and noise if outputs see exactly one token ahead in all passes; None else."""
    reached = False
    where: tuple[str, float, float] | None = None
    for at, deltas in zip(bench.changed_tokens, bench.influences, strict=True):
        for key, delta in deltas.items():
            if not key[1].startswith("output:") or not delta.tokens:
                continue
            behind = at[:, None] - torch.arange(delta.moved.shape[1])
            dirty = bench.dirty(key, delta)
            # Tokens that have at least two before them can tell one step from many.
            able = (at >= 3)[:, None]
            if (dirty & able & (behind > 1)).any():
                return None
            reached = reached or bool((dirty & able & (behind == 1)).any())
            if (dirty & (behind == 1)).any() and where is None:
                cells = behind == 1
                place = first_place(
                    bench,
                    deltas,
                    lambda k, d, c=cells: c if d.tokens and d.moved.shape == c.shape else None,
                )
                if place is not None:
                    where = place.name, place.moved, place.noise
    return where if reached else None


LAW = Law(
    "who-may-see-whom",
    "who may see whom",
    "The output of a token does not change when a token that it may not see is replaced.",
    test,
)
