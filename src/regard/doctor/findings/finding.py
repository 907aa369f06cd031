"""The data of a finding: what is wrong, where, since when, by which numbers, and what helps."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple


class Severity(enum.IntEnum):
    """How bad it is: a note informs, a warning asks for a look, a failure is a disease."""

    NOTE = 1
    WARNING = 2
    FAILURE = 3

    def __str__(self) -> str:
        """The name in lower case, as in reports and files."""
        return self.name.lower()


class Signal(NamedTuple):
    """One number that supports a finding.

    Attributes:
        vital: the name of a vital, or of a number computed from it ("logit_max slope").
        value: in the worst head.
        threshold: what the value was compared with.
        above: True if the value is too large, False if it is too small.
        source: where the threshold comes from: a paper, or "ours" with the measurement behind it.
    """

    vital: str
    value: float
    threshold: float
    above: bool
    source: str

    @property
    def made_of(self) -> str:
        """The vital that the number is computed from: logit_max for "logit_max slope"."""
        return re.split(r"[ :]", self.vital, maxsplit=1)[0]


class Advice(NamedTuple):
    """A remedy by its name in `REMEDIES`, and its expected effect on this disease."""

    remedy: str
    expected: str


class Finding(NamedTuple):
    """A disease at one attention call.

    Attributes:
        disease: its name in `DISEASES`, such as "growing-logits".
        title: the disease in a few words.
        severity: how bad it is.
        site: the attention call, by the path of its module.
        heads: the heads that have it.
        since: the step since which it has lasted, among the steps that are kept; 0 without steps, as
            for a broken law.
        signals: the numbers that show it, at least two.
        confidence: the share of alarms of this disease that were right on models with a known answer
            (`calibration.py`).
        explanation: what it is and what it does, for a reader who is new to it.
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
        """One line: severity, title, site, heads, first step, numbers, and the first remedy."""
        heads = f", head{'s' * (len(self.heads) > 1)} {', '.join(map(str, self.heads))}"
        when = f", since step {self.since}" if self.since else ""
        signs = "; ".join(
            f"{x.vital} {x.value:.3g} ({'above' if x.above else 'below'} {x.threshold:.3g})"
            for x in self.signals
        )
        first = f"; try {self.remedies[0].remedy}" if self.remedies else ""
        return (
            f"{self.severity}: {self.title}, at {self.site}{heads if self.heads else ''}{when}: "
            f"{signs}{first}"
        )

    def __repr__(self) -> str:
        """A short form, because lists of findings can be long."""
        return (
            f"Finding({self.disease!r}, {str(self.severity)!r}, {self.site!r}, heads={self.heads})"
        )
