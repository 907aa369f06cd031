"""`Law` and `Ruling`: what must be true of attention in any model, and what a test of it said."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from regard.doctor.findings.finding import Finding, Severity

if TYPE_CHECKING:
    from regard.doctor.laws.bench import LawBench

# A forbidden effect is larger than this many times the model's own noise,
NOISES = 10.0
# and than this share of the effect of the same change where it is allowed.
SHARE = 1e-3
NOISE_SOURCE = "ten times the model's own noise, measured by reordering the batch"


class LawVerdict(enum.StrEnum):
    """What a law says of a model."""

    HELD = "held"
    BROKEN = "broken"
    NOTE = "note"
    SKIPPED = "did not apply"


class Ruling(NamedTuple):
    """The result of one law.

    Attributes:
        law: its name in `LAWS`.
        verdict: held, broken, broken with a note only, or did not apply.
        why: what was tested and measured, or why it did not apply.
        findings: one for each place where it is broken, the first place first.
        padded: whether it is broken in samples with padding only.
    """

    law: str
    verdict: LawVerdict
    why: str
    findings: tuple[Finding, ...] = ()
    padded: bool = False


class Law(NamedTuple):
    """One law.

    Attributes:
        name: its name in results, such as "who-may-see-whom".
        title: the law in a few words.
        statement: what must be true.
        test: judges a model on the bench.
    """

    name: str
    title: str
    statement: str
    test: Callable[[Law, LawBench], Ruling]

    def held(self, why: str) -> Ruling:
        """The ruling that the law holds."""
        return Ruling(self.name, LawVerdict.HELD, why)

    def skipped(self, why: str) -> Ruling:
        """The ruling that the law does not apply."""
        return Ruling(self.name, LawVerdict.SKIPPED, why)

    def broken(self, why: str, *findings: Finding) -> Ruling:
        """The ruling that the law is broken; only notes make it a note."""
        grave = any(x.severity > Severity.NOTE for x in findings)
        return Ruling(self.name, LawVerdict.BROKEN if grave else LawVerdict.NOTE, why, findings)
