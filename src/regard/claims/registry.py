"""Finding claims by id. A claim is registered by its file in `experiments/`; there is no list to extend."""

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
    """No claim has the given id; the message suggests similar ids."""


class Survey(NamedTuple):
    """The content of the folder of experiments.

    Attributes:
        claims: every claim by id, in the order of ids.
        broken: the error of each file that could not be imported, by file name.
    """

    claims: dict[str, Claim]
    broken: dict[str, Exception]


def survey() -> Survey:
    """Import every experiment; a file that fails is reported in `broken` and the others still load."""
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
        order(claim.id)  # raises ValueError for an id that is not a letter and a number
    return found


@cache
def registered(kind: type[Claim]) -> Claim:
    """The claim with its default ingredients.

    It is one object for each class, so that `is` distinguishes it from copies with other ingredients.
    """
    return kind()


def all_claims() -> dict[str, Claim]:
    """Every claim with its default ingredients, by id and in the order of ids.

    Raises:
        Exception: the error of the first file that could not be imported.
    """
    claims, broken = survey()
    for error in broken.values():
        raise error
    return claims


def order(name: str) -> tuple[str, int]:
    """Sort key of an id: letter, then number, so that C10 comes after C9.

    Raises:
        ValueError: `name` is not a letter and a number.
    """
    match = re.fullmatch(ID, name)
    if match is None:
        raise ValueError(
            f"the id of a claim must be a letter and a number, such as C10; got {name!r}"
        )
    return match[1], int(match[2])


def find(names: Sequence[str], known: dict[str, Claim] | None = None) -> list[Claim]:
    """The claims with these ids or of these groups, in the order of ids.

    Args:
        names: ids (`C1`) and groups (`C`), in upper or lower case; all claims if empty.
        known: claims to search; all registered claims by default.

    Raises:
        UnknownClaim: a name is neither an id nor a group.
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
