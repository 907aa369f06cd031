"""What the report says of each claim, in the reader's language, before it becomes HTML."""

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

# Differs from one minute to the next: of a result, not of a machine.
FLEETING = ("load",)


@dataclass(frozen=True)
class ClaimEntry:
    """One claim as the reader sees it; `figure`, `rows` and `because` come from its result."""

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
        """There is a result."""
        return bool(self.how)


@dataclass(frozen=True)
class Group:
    """Claims that share a letter."""

    letter: str
    title: str
    entries: list[ClaimEntry]


@dataclass(frozen=True)
class Environment:
    """What some of the results were measured with."""

    ids: list[str]
    rows: list[tuple[str, str]]


def entry(claim: Claim, result: Result | None, language: Language) -> ClaimEntry:
    """The claim with its result, where it has one."""
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
    """What to type to run it as it was run."""
    if result is None:
        return f"regard claims run {name} --quick"
    return f"regard claims run {name} --{'full' if result.full else 'quick'} --seed {result.seed}"


def how(claim: Claim, result: Result, language: Language) -> tuple[str, ...]:
    """How large the run was, its seed, how long it took, on which day, whether it is outdated."""
    outdated = result.code != code_version(claim)
    return (
        WORDS["full" if result.full else "quick"].of(language),
        f"{WORDS['seed'].of(language)} {result.seed}",
        seconds(result.seconds) if result.seconds < 10 else duration(result.seconds),
        result.finished[:10],
        *[WORDS["outdated"].of(language)] * outdated,
    )


def grouped(entries: Iterable[ClaimEntry], language: Language) -> list[Group]:
    """Entries, in the order of their ids, by letter."""
    return [
        Group(letter, GROUPS[letter].of(language), list(found))
        for letter, found in groupby(entries, key=lambda entry: entry.id[0])
    ]


def environments(results: Mapping[str, Result], language: Language) -> list[Environment]:
    """Versions and hardware, once for all results that share them."""
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
    """A value of a result file as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
