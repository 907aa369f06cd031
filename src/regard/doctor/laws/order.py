"""Order is seen: where a model has positions, two tokens that change places are told apart.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from regard.doctor.findings.finding import Severity
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.passes import Delta, Key
from regard.doctor.laws.visibility import own_sites, square_sites
from regard.doctor.signature import text_config

ADVICE = (
    "are positions added to the embeddings (and not only made)?",
    "rotary positions turn both queries and keys, and before the product",
    "a position for each token: arange(T), not the same index for all",
)
SOURCE = "the change that noise makes"
# Kinds that act in every layer; others act on the inputs of the first.
EVERYWHERE = ("rotary", "relative", "alibi")
LEAST_VARIATION = 1e-3  # of weights over keys, over their mean
# Configs that leave positions out of some layers on purpose.
PARTLY = ("no_rope_layers", "no_rope_layer_interval", "layer_types", "use_rope")


def test(law: Law, bench: LawBench) -> Ruling:
    """Two neighbours change places: a third token's attention must give something else."""
    kind, known = bench.declared.positions, bench.declared.sources["positions"]
    if not kind:
        return law.skipped(known)
    if not bench.pairs:
        return law.skipped("the inputs are no sequences of tokens that can change places")
    if any(x.precision > 1e-4 for x in bench.facts.values()):
        return law.skipped("in half precision the order of two tokens can be less than rounding")
    sites = own_sites(bench) if bench.influences else square_sites(bench)
    # Nearly equal weights, as of a fresh model with small logits, show no order whatever the positions.
    sites = [x for x in sites if bench.facts[x].keys_vary > LEAST_VARIATION]
    if not sites:
        return law.skipped(
            "no attention call in which tokens see one another with weights that differ"
        )
    seen = telling(bench, bench.swapped[0], sites[:1])
    if not seen:
        return law.skipped("the two tokens are alike in this batch, or no other sees both")
    blind = [site for site, told in seen.items() if not told]
    if kind in (*EVERYWHERE, "declared") and bench.owners and not partly(bench):
        everywhere = telling(bench, bench.swapped_alone, sites)
        # T5 and others make the bias in the first layer, which then has it from its own table.
        if kind == "declared":
            blind = blind if not any(everywhere.values()) else []
        elif everywhere:
            blind = [site for site, told in everywhere.items() if not told]
    if not blind:
        return law.held(f"two neighbours swapped, a third token told the order; {known}")
    said = (
        f"Two neighbouring tokens changed places, and what attention gives to the tokens around them stayed "
        f"the same at {blind[0]}: it does not know their order, although positions are declared ({known})."
    )
    said += f" Calls with this: {', '.join(blind[:6])}." if len(blind) > 1 else ""
    finding = finding_of(
        law, blind[0], said, ADVICE, moved=0.0, allowed=1.0, above=False,
        what="change over noise", source=SOURCE, severity=Severity.FAILURE,
        title="the order of tokens is not seen",
    )  # fmt: skip
    return law.broken(f"{len(blind)} attention calls do not see the order; {known}", finding)


def partly(bench: LawBench) -> bool:
    """Whether the config leaves positions out of some layers."""
    return any(getattr(text_config(bench.inner), name, None) for name in PARTLY)


def telling(bench: LawBench, deltas: Mapping[Key, Delta], sites: list[str]) -> dict[str, bool]:
    """For each call whether a third token's result moved; calls that cannot tell are left out."""
    found = {}
    for site in sites:
        made = bench.of_sites(deltas, site)
        if "out" not in made or "value" not in made:
            continue
        key, delta = made["out"]
        length = delta.moved.shape[1]
        if length not in bench.pairs or made["value"][1].moved.shape[1] != length:
            continue
        first, second = bench.pairs[length]
        # Tokens that are alike can change places unseen.
        differ = bench.dirty(*made["value"])[:, [first, second]].any(1)
        others = torch.ones(length, dtype=torch.bool)
        others[[first, second]] = False
        sees = sees_both(bench, site, first, second)
        others = others if sees is None else others & sees
        if differ.any() and others.any():
            found[site] = bool(bench.dirty(key, delta)[differ][:, others].any())
    return found


def sees_both(bench: LawBench, site: str, first: int, second: int) -> torch.Tensor | None:
    """(T,), the queries that give weight to both tokens; None if not known."""
    picture = bench.facts[site].picture
    if picture is None or picture.shape[0] != picture.shape[1]:
        return None
    return (picture[:, first] > 0) & (picture[:, second] > 0)


LAW = Law(
    "order-is-seen",
    "order is seen",
    "Where a model has positions, a token's attention changes when two others change places.",
    test,
)
