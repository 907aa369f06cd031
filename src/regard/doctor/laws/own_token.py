"""A query is its own token's: query, key and value of a token are made of that token alone.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.findings.finding import Finding
from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.blame import first_place
from regard.doctor.laws.finding import finding_of
from regard.doctor.laws.law import Law, Ruling
from regard.doctor.laws.layout import arranged
from regard.doctor.laws.passes import SIDES, Delta, Key

# Convolutional projections and pooled keys read neighbours on purpose.
BAND = 4
ADVICE = (
    "split heads by view(B, T, H, D).transpose(1, 2); view(B, H, T, D) gives a head a piece of the sequence",
    "put heads together by transpose(1, 2).reshape(B, T, H * D)",
    "einops: rearrange(x, 'b t (h d) -> b h t d', h=H)",
)


def test(law: Law, bench: LawBench) -> Ruling:
    """Change one token of the inputs of each attention module: the rows of others must not move."""
    mixed = mixed_after(bench)
    if mixed is not None:
        site, name = mixed
        said = (
            f"The rows that {site} gives are put together to other rows: {name} gets the same numbers "
            "under other tokens."
        )
        return law.broken("heads are put together wrongly", made(law, bench, site, said, 1.0, 0.0))
    alone = bench.alone
    if alone is None:
        return by_inputs(law, bench) if bench.calls else law.skipped("no attention was seen")
    deltas, at = alone
    seen = 0
    for site in bench.calls:
        for what, (key, delta) in bench.of_sites(deltas, site).items():
            length = delta.moved.shape[1]
            if what == "out" or length not in at or length <= BAND + 2:
                continue
            seen += 1
            moved = bench.dirty(key, delta)
            others = far(moved, at[length])
            if others.any():
                share = float(delta.moved[others].max()) / (float(delta.size.max()) or 1.0)
                tokens = sorted(set(others.nonzero()[:, 1].tolist()))
                said = (
                    f"One token of the input of {site} was replaced, and the {what} rows of tokens "
                    f"{', '.join(map(str, tokens[:5]))} changed, which are far from it."
                )
                found = made(law, bench, site, said, share, bench.tolerance[key])
                return law.broken(f"the {what} of {site} mixes tokens", found)
    if not seen:
        return law.skipped("no query, key or value has a row for each token")
    return law.held(f"{seen} sides of {len(bench.calls)} attention calls, one token changed")


def by_inputs(law: Law, bench: LawBench) -> Ruling:
    """Attention in the model itself: the first call, while one token of the model's input changes."""
    target = bench.target
    if target is None or target.length <= BAND + 2 or not bench.influences:
        return law.skipped(
            "attention is in the model itself, and no output has a row for each token"
        )
    at = bench.changed_tokens[0]

    def forbidden(key: Key, delta: Delta) -> Tensor | None:
        fits = delta.tokens and delta.moved.shape[1] == target.length
        return far(torch.ones_like(delta.moved, dtype=torch.bool), at) if fits else None

    place = first_place(bench, bench.influences[0], forbidden)
    if place is None or place.step != "before" or place.name != next(iter(bench.calls)):
        return law.held("the first attention call, one token of the input changed")
    said = (
        f"One token of the input was replaced, and the query, key or value of {place.name} changed under "
        "tokens that are far from it."
    )
    found = made(law, bench, place.name, said, place.moved, place.noise)
    return law.broken(f"a side of {place.name} mixes tokens", found)


def far(moved: Tensor, at: Tensor) -> Tensor:
    """(B, T), the rows that moved and are no neighbours of the changed token."""
    distance = (torch.arange(moved.shape[1]) - at[:, None]).abs()
    return moved & (distance > BAND)


def made(law: Law, bench: LawBench, site: str, said: str, moved: float, allowed: float) -> Finding:
    """The finding at a site."""
    line = bench.calls[site].code
    return finding_of(
        law, site, said + (f" The call is at {line}." if line else ""), ADVICE,
        moved=moved, allowed=allowed, title="tokens and heads are mixed up",
    )  # fmt: skip


def mixed_after(bench: LawBench) -> tuple[str, str] | None:
    """A call whose rows go on under other tokens, and the module that gets them.

    The next module of the one that attends mostly gets the output of attention with heads put together:
    the same numbers. Row by row they must be the same too.
    """
    keys = list(bench.base.tensors)
    for site in bench.calls:
        key: Key = (site, "out", 1)
        if key not in bench.base.tensors:
            continue
        out = bench.base.tensors[key][0]
        rows = arranged(out, bench.sizes, of_call=True)
        after = next((k for k in keys[keys.index(key) + 1 :] if k[1] not in SIDES), None)
        if rows is None or not rows[1] or after is None:
            continue
        then = arranged(bench.base.tensors[after][0], bench.sizes)
        if then is None or not then[1] or then[0].shape != rows[0].shape:
            continue
        before, later = rows[0].float(), then[0].float()
        # Sorting takes long: the same numbers have the same sum, up to its rounding.
        apart = (before.double().sum() - later.double().sum()).abs()
        if torch.equal(before, later) or apart > 1e-9 * before.double().abs().sum():
            continue
        same = torch.equal(before.flatten().sort().values, later.flatten().sort().values)
        if same and not torch.equal(before.sort(-1).values, later.sort(-1).values):
            return site, after[0]
    return None


LAW = Law(
    "own-token",
    "a query is its own token's",
    "Query, key and value of a token depend on that token's input alone, and its result stays its own.",
    test,
)
