"""Every claim by its id. A new claim is one file in `experiments/`; nothing else names it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

from regard.claims import experiments
from regard.claims.claim import Claim

ID = r"([A-Z])(\d+)"


class UnknownClaim(ValueError):
    """An id that no claim has; the message suggests the nearest."""


class Survey(NamedTuple):
    """What the folder of experiments has.

    Attributes:
        claims: by id, in the order of the ids.
        broken: why a file could not be loaded, by the name of the file.
    """

    claims: dict[str, Claim]
    broken: dict[str, Exception]


def survey() -> Survey:
    """Every claim that can be loaded; one broken file does not take the others with it."""
    found: dict[str, Claim] = {}
    broken: dict[str, Exception] = {}
    for module in pkgutil.iter_modules(experiments.__path__, f"{experiments.__name__}."):
        try:
            for claim in claims_in(importlib.import_module(module.name)):
                if claim.id in found:
                    raise ValueError(f"{claim.id} is also in {type(found[claim.id]).__module__}")
                found[claim.id] = claim
        except Exception as error:
            broken[f"{module.name.rpartition('.')[2]}.py"] = error
    return Survey({key: found[key] for key in sorted(found, key=order)}, broken)


def claims_in(module: ModuleType) -> list[Claim]:
    """The claims that a module defines."""
    found = [
        registered(thing)
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, Claim)
        and thing.__module__ == module.__name__
        and not inspect.isabstract(thing)
    ]
    for claim in found:
        order(claim.id)  # raises where the id is none
    return found


@cache
def registered(kind: type[Claim]) -> Claim:
    """The claim with its ingredients as they are: one object, so that `is` tells it from altered ones."""
    return kind()


def all_claims() -> dict[str, Claim]:
    """Every claim with its ingredients as they are, in the order of the ids.

    Raises:
        Exception: what the first file raised that could not be loaded.
    """
    claims, broken = survey()
    for error in broken.values():
        raise error
    return claims


def order(name: str) -> tuple[str, int]:
    """C10 comes after C9."""
    match = re.fullmatch(ID, name)
    if match is None:
        raise ValueError(f"an id is a letter and a number, as C10 is, got {name!r}")
    return match[1], int(match[2])


def find(names: Sequence[str], known: dict[str, Claim] | None = None) -> list[Claim]:
    """The claims of these ids (`c1` will do) or groups (`C`); all of them where none is named.

    Args:
        names: ids and groups.
        known: to search in; by default all there are.

    Raises:
        UnknownClaim: there is none of that id.
    """
    known = all_claims() if known is None else known
    chosen: dict[str, Claim] = {}
    for name in names or known:
        wanted = name.upper()
        group = {key: claim for key, claim in known.items() if key[0] == wanted}
        if not group and wanted not in known:
            near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
            groups = ", ".join(dict.fromkeys(key[0] for key in known))
            hint = f"Did you mean {' or '.join(near)}?" if near else f"Groups are {groups}."
            raise UnknownClaim(
                f"there is no claim {name!r}. {hint} `regard claims` lists all {len(known)}"
            )
        chosen |= group or {wanted: known[wanted]}
    return [claim for key, claim in known.items() if key in chosen]
