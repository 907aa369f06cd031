"""What a finding is: data that says what is wrong, where, since when, by which numbers, and what helps."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Severity(enum.IntEnum):
    """How bad it is: a note tells, a warning asks to look, a failure is a disease."""

    NOTE = 1
    WARNING = 2
    FAILURE = 3

    def __str__(self) -> str:
        """In lower case, as reports and files have it."""
        return self.name.lower()


class Signal(NamedTuple):
    """One number that speaks for a finding.

    Attributes:
        vital: its name, one of `VITALS`, or one of them with what was made of it ("logit_max slope").
        value: of the worst head.
        threshold: what it was held against.
        above: whether it is too large; else it is too small.
        source: where the threshold comes from: a paper, or "ours" with the measurement behind it.
    """

    vital: str
    value: float
    threshold: float
    above: bool
    source: str

    @property
    def made_of(self) -> str:
        """The vital that it is, or is made of: "logit_max slope" is made of logit_max."""
        return re.split(r"[ :]", self.vital, maxsplit=1)[0]


class Advice(NamedTuple):
    """A remedy by its name in `REMEDIES`, and what it is expected to do in this case."""

    remedy: str
    expected: str


class Finding(NamedTuple):
    """A disease at a place.

    Attributes:
        disease: its name in `DISEASES`, as "growing-logits".
        title: in a few words.
        severity: see there.
        site: the attention call, by the module's path.
        heads: which of its heads.
        since: the first step in which it showed, of those that are kept.
        signals: two at least.
        confidence: 0 to 1: how many of the signs that could speak do, and over how many steps.
        explanation: what it is and does, in two or three sentences for a reader new to it.
        remedies: the best first.
    """

    disease: str
    title: str
    severity: Severity
    site: str
    heads: tuple[int, ...]
    since: int
    signals: tuple[Signal, ...]
    confidence: float
    explanation: str
    remedies: tuple[Advice, ...]

    def __str__(self) -> str:
        """One line: how bad, what, where, since when, by which number, and what helps first."""
        heads = f"head{'s' * (len(self.heads) > 1)} {', '.join(map(str, self.heads))}"
        signs = "; ".join(
            f"{x.vital} {x.value:.3g} ({'above' if x.above else 'below'} {x.threshold:.3g})"
            for x in self.signals
        )
        first = f"; try {self.remedies[0].remedy}" if self.remedies else ""
        return (
            f"{self.severity}: {self.title}, at {self.site}, {heads}, since step {self.since}: "
            f"{signs}{first}"
        )

    def __repr__(self) -> str:
        """Short: in a list there may be many."""
        return (
            f"Finding({self.disease!r}, {str(self.severity)!r}, {self.site!r}, heads={self.heads})"
        )
