"""The content of the report for each claim, in the reader's language; the template makes HTML of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from regard.claims.claim import Claim
from regard.claims.report.amounts import FactRow, row
from regard.claims.report.figures import Figure, figure
from regard.claims.report.words import GROUPS, MACHINE, VERDICTS, WORDS, key_of
from regard.claims.running.store import Result
from regard.claims.running.version import code_version
from regard.measuring.words import duration, seconds
from regard.text import Language

# Left out of the description of a machine: the load is different at every run.
FLEETING = ("load",)


@dataclass(frozen=True)
class ClaimEntry:
    """Texts, numbers and figure of one claim; `because`, `rows`, `figure` and `how` need a result."""

    id: str
    key: str
    verdict: str
    statement: str
    criterion: str
    control: str
    meaning: str
    caption: str
    command: str
    because: str = ""
    rows: tuple[FactRow, ...] = ()
    figure: Figure | None = None
    how: tuple[str, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether the claim has a result."""
        return bool(self.how)


@dataclass(frozen=True)
class Group:
    """The claims whose ids share a letter."""

    letter: str
    title: str
    entries: list[ClaimEntry]


@dataclass(frozen=True)
class Environment:
    """Versions and hardware, with the ids of the claims measured with them."""

    ids: list[str]
    rows: list[tuple[str, str]]


def entry(claim: Claim, result: Result | None, language: Language) -> ClaimEntry:
    """The entry of a claim, with its result if it has one."""
    verdict = result.judgement.verdict if result else None
    texts = {
        name: getattr(claim, name).of(language)
        for name in ("statement", "criterion", "control", "meaning", "caption")
    }
    plain = ClaimEntry(
        id=claim.id,
        key=key_of(verdict),
        verdict=VERDICTS[key_of(verdict)].of(language),
        command=command(claim.id, result),
        **texts,
    )
    if result is None:
        return plain
    return dataclasses.replace(
        plain,
        because=result.judgement.because.of(language),
        rows=tuple(row(fact, language) for fact in result.judgement.facts),
        figure=figure(claim, result.numbers, language),
        how=how(claim, result, language),
    )


def command(name: str, result: Result | None) -> str:
    """The command that runs the claim as its result was run, or a quick run if there is no result."""
    if result is None:
        return f"regard claims run {name} --quick"
    return f"regard claims run {name} --{'full' if result.full else 'quick'} --seed {result.seed}"


def how(claim: Claim, result: Result, language: Language) -> tuple[str, ...]:
    """Size, seed, duration and day of the run, and a note if the result is outdated."""
    outdated = result.code != code_version(claim)
    return (
        WORDS["full" if result.full else "quick"].of(language),
        f"{WORDS['seed'].of(language)} {result.seed}",
        seconds(result.seconds) if result.seconds < 10 else duration(result.seconds),
        result.finished[:10],
        *[WORDS["outdated"].of(language)] * outdated,
    )


def grouped(entries: Iterable[ClaimEntry], language: Language) -> list[Group]:
    """Entries by letter; they have to be in the order of ids."""
    return [
        Group(letter, GROUPS[letter].of(language), list(found))
        for letter, found in groupby(entries, key=lambda entry: entry.id[0])
    ]


def environments(results: Mapping[str, Result], language: Language) -> list[Environment]:
    """The different versions and hardware, each with the ids of the results that share them."""
    found: dict[str, Environment] = {}
    for name, result in results.items():
        known = result.versions | result.hardware
        rows = [
            (MACHINE[key].of(language) if key in MACHINE else key, plain(value))
            for key, value in known.items()
            if key not in FLEETING
        ]
        found.setdefault(json.dumps(rows), Environment([], rows)).ids.append(name)
    return list(found.values())


def plain(value: object) -> str:
    """A value of a result file as text: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
