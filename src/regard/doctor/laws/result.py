"""`Checked`: the result of a check, as data and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.doctor.findings.finding import Finding, Severity
from regard.doctor.laws.law import LawVerdict, Ruling
from regard.doctor.laws.map import InfluenceMap
from regard.doctor.report.entries import finding_entry
from regard.doctor.report.lines import USUAL, Line, padded, plain_text, put, width_of, wrapped
from regard.doctor.report.numbers import counted, harmless, plain, shown

SIGNS = {
    LawVerdict.HELD: "✓",
    LawVerdict.BROKEN: "✗",
    LawVerdict.NOTE: "·",
    LawVerdict.SKIPPED: "-",
}
STYLES = {
    LawVerdict.HELD: "good",
    LawVerdict.BROKEN: "failure",
    LawVerdict.NOTE: "note",
    LawVerdict.SKIPPED: "dim",
}
# Findings of the vitals that a law tests better, at the same call.
SAME = {
    "missing-mask": "who-may-see-whom",
    "inverted-mask": "who-may-see-whom",
    "no-gradient": "gradients-arrive",
}
NAME = 30  # columns of a law's name


class Checked(NamedTuple):
    """The result of a check.

    Attributes:
        model: name of the model.
        rulings: one for each law, in the order of `LAWS`.
        sites: the attention calls that were seen.
        sources: from what it is known what the model is meant to do.
        forward, backward: passes that were made.
        seconds: time it took.
        map: who sees whom, None where no output has a row for each token.
        vitals: findings of a watch on the same batch, if there was one. They break no law.
    """

    model: str
    rulings: list[Ruling]
    sites: list[str]
    sources: dict[str, str]
    forward: int
    backward: int
    seconds: float
    map: InfluenceMap | None
    vitals: tuple[Finding, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """The findings of all laws, and those of the vitals that no law tells better, the worst first."""
        return merged(self.vitals, [x for ruling in self.rulings for x in ruling.findings])

    @property
    def broken(self) -> list[Ruling]:
        """The rulings of broken laws, without notes."""
        return [x for x in self.rulings if x.verdict is LawVerdict.BROKEN]

    @property
    def ok(self) -> bool:
        """Whether attention was seen and no law is broken."""
        return bool(self.sites) and not self.broken

    def ruling(self, law: str) -> Ruling:
        """The ruling of a law by its name."""
        return next(x for x in self.rulings if x.law == law)

    @property
    def headline(self) -> str:
        """The verdict in one sentence; a clean bill says what was not tested."""
        if not self.sites and not self.broken:
            return "No attention was seen, so there is nothing to check."
        held = [x for x in self.rulings if x.verdict is LawVerdict.HELD]
        skipped = [x.law for x in self.rulings if x.verdict is LawVerdict.SKIPPED]
        if self.broken:
            laws = ", ".join(x.law for x in self.broken)
            return f"{counted(len(self.broken), 'law')} broken: {laws}."
        missing = f" Not tested: {', '.join(skipped)}." if skipped else ""
        notes = sum(x.verdict is LawVerdict.NOTE for x in self.rulings)
        said = f", with {counted(notes, 'note')}" if notes else ""
        return f"{len(held)} of {len(self.rulings)} laws hold, none is broken{said}.{missing}"

    def as_dict(self) -> dict[str, Any]:
        """The result as strict JSON."""
        return {
            "model": self.model,
            "ok": self.ok,
            "headline": self.headline,
            "laws": [{"law": x.law, "verdict": str(x.verdict), "why": x.why} for x in self.rulings],
            "findings": [finding_entry(x) for x in self.findings],
            "sites": self.sites,
            "declared": self.sources,
            "passes": {"forward": self.forward, "backward": self.backward},
            "seconds": plain(self.seconds),
            "map": None if self.map is None else self.map.as_dict(),
        }

    def lines(self, width: int = USUAL) -> list[Line]:
        """The result as styled lines: verdict, findings, table of laws, declarations."""
        tone = "failure" if self.broken else "good" if self.sites else "none"
        sign = "✗" if self.broken else "✓" if self.sites else "?"
        found = wrapped(f"{sign} {harmless(self.headline)}", width, "", "  ", tone)
        found += wrapped(harmless(self.cost), width, "  ", "  ", "dim")
        for finding in self.findings:
            found += [[], *finding_lines(finding, width)]
        found += [[], [("laws", "title")]]
        for ruling in self.rulings:
            first = padded(f"  {SIGNS[ruling.verdict]} {ruling.law}", NAME)
            text = f"{ruling.verdict}: {harmless(ruling.why)}"
            found += wrapped(text, width, first, " " * NAME, STYLES[ruling.verdict])
        if self.sources:
            found += [[], [("what the model is meant to do, and from what that is known", "title")]]
            for name, source in self.sources.items():
                found += wrapped(f"{name}: {harmless(source)}", width, "  ", "      ", "dim")
        return found

    @property
    def cost(self) -> str:
        """What was run, in one sentence."""
        calls = counted(len(self.sites), "attention call")
        return (
            f"{self.model}: {calls}; {self.forward} forward and {self.backward} backward passes, "
            f"{shown(self.seconds)} s."
        )

    def summary(self, width: int = USUAL) -> str:
        """The result as plain text."""
        return plain_text(self.lines(width)).rstrip("\n")

    def show(self) -> None:
        """Print the result, in colours if standard output is a terminal."""
        put(self.lines(width_of()))

    def report(self, path: str | Path) -> Path:
        """Write the result: HTML, the influence map alone if the path ends in .png or .svg, or JSON."""
        from regard.doctor.laws.page import write

        return write([self], path)

    def __str__(self) -> str:
        """The result in lines of 80 columns."""
        return self.summary()

    def __repr__(self) -> str:
        """A short form, for the whole is a page."""
        return f"Checked({self.model!r}, {self.headline!r})"


def merged(vitals: Sequence[Finding], laws: Sequence[Finding]) -> list[Finding]:
    """Findings of the laws, then those of the vitals that no law has found at the same call."""
    known = {(finding.disease, finding.site) for finding in laws}
    rest = [x for x in vitals if (SAME.get(x.disease), x.site) not in known]
    return sorted([*laws, *rest], key=lambda x: -x.severity)


def finding_lines(finding: Finding, width: int) -> list[Line]:
    """A finding with what was measured and what usually causes it."""
    style = str(finding.severity)
    mark = {Severity.FAILURE: "✗", Severity.WARNING: "!", Severity.NOTE: "·"}[finding.severity]
    found = wrapped(f"{mark} {style}: {harmless(finding.title)}", width, "", "  ", style)
    found += wrapped(f"at {harmless(finding.site)}", width, "  ", "  ", "site")
    found += wrapped(harmless(finding.explanation), width, "  ", "  ")
    for x in finding.signals:
        side = "allowed" if x.above else "expected more than"
        text = f"{x.vital} {shown(x.value)}, {side} {shown(x.threshold)} ({x.source})"
        found += wrapped(harmless(text), width, "    = ", "      ")
    for advice in finding.remedies:
        found += wrapped(harmless(advice.expected), width, "    - ", "      ")
    return found
