"""Every claim by its id. A new claim is one file in `experiments/`; nothing else names it."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re

from regard.claims import experiments
from regard.claims.claim import Claim


class UnknownClaim(ValueError):
    """An id that no claim has; the message suggests the nearest."""


def all_claims() -> dict[str, Claim]:
    """Every claim with its ingredients as they are, in the order of the ids."""
    found = []
    for module in pkgutil.iter_modules(experiments.__path__, f"{experiments.__name__}."):
        found += [
            thing
            for thing in vars(importlib.import_module(module.name)).values()
            if isinstance(thing, type)
            and issubclass(thing, Claim)
            and thing.__module__ == module.name
        ]
    claims = sorted((claim() for claim in found), key=lambda claim: order(claim.id))
    return {claim.id: claim for claim in claims}


def order(name: str) -> tuple[str, int]:
    """C10 comes after C9."""
    letter, number = re.fullmatch(r"([A-Z])(\d+)", name).groups()
    return letter, int(number)


def find(names: list[str]) -> list[Claim]:
    """The claims of these ids (`c1` will do) or groups (`C`); all of them where none is named.

    Raises:
        UnknownClaim: there is none of that id.
    """
    known = all_claims()
    chosen: dict[str, Claim] = {}
    for name in names or known:
        wanted = name.upper()
        group = {key: claim for key, claim in known.items() if key[0] == wanted}
        if not group and wanted not in known:
            near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UnknownClaim(
                f"there is no claim {name!r}.{hint} `regard claims` lists all {len(known)}"
            )
        chosen |= group or {wanted: known[wanted]}
    return [claim for key, claim in known.items() if key in chosen]
