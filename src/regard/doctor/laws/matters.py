"""Queries matter and keys matter: weights differ from key to key, and from query to query."""

from __future__ import annotations

from regard.doctor.findings.finding import Finding, Severity
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.layout import arranged
from regard.doctor.laws.weights import SiteFacts

# Weights are the exponentials of logits, whose rounding they share.
ROUNDINGS = 20
KEYS = (
    "is the vector v of an additive score, or the projection of queries or keys, zero?",
    "do all keys get the same content (one token repeated, a broadcast that is one too many)?",
)
QUERIES = (
    "does the query reach the score (a term of the keys alone gives every query the same weights)?",
    "do all queries get the same vector, such as the first token's or a mean?",
)
SOURCE = "rounding of the weights"


def test(law: Law, bench: LawBench) -> Ruling:
    """Compare the weights of the base pass."""
    if not bench.facts:
        return law.skipped("no attention whose weights can be read was seen")
    if alike(bench):
        return law.skipped("all tokens of the batch are the same")
    findings: list[Finding] = []
    judged = 0
    for site, facts in bench.facts.items():
        if not facts.visible:
            continue
        judged += 1
        limit = ROUNDINGS * facts.precision
        # A bias of positions makes weights differ although queries or keys are all the same.
        sides = [spread_of(bench, site, what) for what in ("key", "query")]
        # Where both sides vary the wiring is right: weights that hardly do are of small logits, as in a
        # fresh model without norms.
        varied = all(limit < x < float("inf") for x in sides)
        keys = sides[0] if varied else min(facts.keys_vary, sides[0])
        queries = sides[1] if varied else min(facts.queries_vary, sides[1])
        if keys < limit:
            findings.append(made(law, bench, site, "keys", facts, keys, limit))
        elif queries < limit:
            findings.append(made(law, bench, site, "queries", facts, queries, limit))
    if not judged:
        return law.skipped("no query sees more than one key")
    if not findings:
        return law.held(f"{judged} attention calls")
    return law.broken(f"{len(findings)} of {judged} attention calls", *findings[:1])


def spread_of(bench: LawBench, site: str, what: str) -> float:
    """How far the rows of a side differ, over their size; inf if that is not known."""
    kept = bench.base.tensors.get((site, what, 1))
    rows = None if kept is None else arranged(kept[0], bench.sizes, of_call=True)
    if rows is None or not rows[1] or rows[0].shape[1] < 2:
        return float("inf")
    x = rows[0].float()
    size = float(x.abs().max())
    return float((x.amax(1) - x.amin(1)).max()) / size if size > 0 else 0.0


def made(
    law: Law, bench: LawBench, site: str, side: str, facts: SiteFacts, moved: float, limit: float
) -> Finding:
    """The finding at a call; a projection that starts at zero makes it a note."""
    path, line = bench.calls[site].path, bench.calls[site].code
    module = bench.modules.get(path)
    zero = [] if module is None else [
        name for name, x in module.named_parameters()
        if x.ndim > 1 and x.requires_grad and bool((x == 0).all())
    ]  # fmt: skip
    same = "every visible key gets the same weight" if side == "keys" else (
        "every query gives the same weights"
    )  # fmt: skip
    said = f"At {site}{f' ({line})' if line else ''} {same}: the {side} make no difference."
    said += f" {zero[0]} starts at zero, which training may change." if zero else ""
    return finding_of(
        law, site, said, KEYS if side == "keys" else QUERIES, moved=moved, allowed=limit, above=False,
        what=f"variation of weights over {side}", source=SOURCE,
        severity=Severity.NOTE if zero else Severity.WARNING, title=f"the {side} make no difference",
    )  # fmt: skip


def alike(bench: LawBench) -> bool:
    """Whether all tokens of every input are the same."""
    known = [s.ids for s in bench.streams if s.ids is not None]
    return bool(known) and all(bool((ids == ids.flatten()[0]).all()) for ids in known)


LAW = Law(
    "queries-and-keys-matter",
    "queries matter, keys matter",
    "Weights differ from key to key, and from query to query.",
    test,
)
