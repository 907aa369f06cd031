"""A table that updates while a model trains: `with live(doctor, total=1000): ...`."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Self

from regard.doctor.findings.finding import Finding, Severity
from regard.doctor.report.lines import (
    Line,
    has_rich,
    padded,
    plain_text,
    rich_text,
    sparkline,
    width_of,
)
from regard.doctor.report.listening import Listener
from regard.doctor.report.numbers import (
    cells,
    counted,
    fitting,
    harmless,
    ranges,
    shortened,
    shown,
)
from regard.doctor.report.reading import LOW_IS_WORSE, Glance, glance
from regard.doctor.report.terminal import SIGNS
from regard.doctor.vitals.table import Level
from regard.measuring.words import duration, listed

if TYPE_CHECKING:
    from regard.doctor.watch import Doctor

SHOWN = ("logit_max", "entropy")
SHOWN_CHEAP = ("logit_bound", "entropy")  # the cheap level has no logit_max
SPARK, NUMBER = 14, 8  # widths of a sparkline and of a number
LEAST_SPARK, LEAST_NAME = 4, 20  # in a narrow terminal
MOST_FINDINGS = 6
QUIET_SECONDS = 30.0  # between two lines if the file is not a terminal
# A diagnosis reads the whole history: it may take at most this share of the run time.
DIAGNOSING = 0.05


def live(
    doctor: Doctor,
    every_seconds: float = 1.0,
    *,
    total: int | None = None,
    file: IO[str] | None = None,
) -> Live:
    """A display of a doctor's numbers while the model trains, used as a `with` block.

    It updates after a step once `every_seconds` have passed, in the thread that trains, and reads
    nothing from the device in between. If `file` is not a terminal, in a notebook, or without rich, it
    prints a line every half minute and one for each new finding.

    Args:
        doctor: the doctor to show, attached or not.
        every_seconds: seconds between two updates.
        total: number of steps there will be, to estimate the time left.
        file: standard output unless given.
    """
    return Live(doctor, every_seconds, total, sys.stdout if file is None else file)


class Live(Listener):
    """The listener that `live` returns."""

    def __init__(
        self, doctor: Doctor, every_seconds: float, total: int | None, file: IO[str]
    ) -> None:
        super().__init__(doctor, seconds=every_seconds)
        self.file = file
        sampled = SHOWN[0] in doctor.vitals and doctor.level is not Level.CHEAP
        self.vitals = [v for v in (SHOWN if sampled else SHOWN_CHEAP) if v in doctor.vitals]
        self.last_step = None if total is None else doctor.steps + total
        self.mark: tuple[float, int] | None = None  # time and step of the first look
        self.findings: list[Finding] = []
        self.told: set[tuple[str, str]] = set()
        self.next_diagnosis = self.next_line = 0.0
        self.screen: Any = None

    def start(self) -> Self:
        """Start to listen, and take over the terminal if there is one."""
        super().start()
        if self.screen is None and is_terminal(self.file):
            from rich.console import Console
            from rich.live import Live as Screen

            # auto_refresh starts a thread that draws while the model trains; `look` draws instead.
            console = Console(file=self.file, highlight=False)
            self.screen = Screen(console=console, auto_refresh=False, transient=False)
            self.screen.start()
        return self

    def close(self) -> None:
        """Release the terminal."""
        screen, self.screen = self.screen, None
        if screen is not None:
            screen.stop()

    def look(self) -> None:
        """Draw the table, or print a line."""
        glances = glance(self.doctor, self.vitals)
        self.diagnose()
        if self.screen is not None:
            height = self.screen.console.size.height
            lines = self.table(glances, width_of(self.file), height)
            self.screen.update(rich_text(lines), refresh=True)
        else:
            self.say(glances)

    def diagnose(self) -> None:
        """Update the findings; the longer that takes, the less often."""
        began = time.monotonic()
        if began >= self.next_diagnosis or self.ending:
            self.findings = self.doctor.findings()
            self.next_diagnosis = began + (time.monotonic() - began) / DIAGNOSING

    def say(self, glances: dict[str, Glance]) -> None:
        """Print lines for a log: new findings, and the progress from time to time."""
        lines: list[Line] = []
        for finding in self.findings:
            if (
                finding.severity > Severity.NOTE
                and (finding.disease, finding.site) not in self.told
            ):
                self.told.add((finding.disease, finding.site))
                lines.append(finding_line(finding, 1_000))
        now = time.monotonic()
        if now >= self.next_line or self.ending:
            self.next_line = now + QUIET_SECONDS
            worst = [
                f"worst {v} {shown(overall(glances, i, v))}" for i, v in enumerate(self.vitals)
            ]
            lines.append([(", ".join([self.progress(), *worst]), "")])
        if lines:
            encoding = getattr(self.file, "encoding", None) or "utf-8"
            self.file.write(plain_text(lines).encode(encoding, "replace").decode(encoding))
            self.file.flush()

    def progress(self) -> str:
        """Step, pace, time left and findings as text.

        The pace starts at the first look: the steps before it include compilation and warm-up.
        """
        now, step = time.monotonic(), self.doctor.steps
        self.mark = (now, step) if self.mark is None else self.mark
        parts = [f"step {step}" if self.last_step is None else f"step {step}/{self.last_step}"]
        if step > self.mark[1]:
            pace = (step - self.mark[1]) / max(now - self.mark[0], 1e-9)
            parts.append(f"{shown(pace)} steps/s")
            if self.last_step is not None and step < self.last_step:
                parts.append(f"about {duration((self.last_step - step) / pace)} left")
        levels = [finding.severity for finding in self.findings]
        counts = [(levels.count(s), str(s)) for s in (Severity.FAILURE, Severity.WARNING)]
        said = [counted(count, name) for count, name in counts if count]
        return ", ".join([*parts, listed(said) if said else "no alarm"])

    def table(self, glances: dict[str, Glance], width: int, height: int) -> list[Line]:
        """The lines to draw, no more than the terminal has."""
        alarms = {finding.site: finding.severity for finding in reversed(self.findings)}
        said = self.progress()
        title = "regard doctor  " if cells(said) + 15 <= width else ""
        lines: list[Line] = [[(title, "title"), (said, "")], []]
        findings = [finding_line(finding, width) for finding in self.findings[:MOST_FINDINGS]]
        room = max(height - len(lines) - len(findings) - 5, 3)
        each = (width - LEAST_NAME) // max(len(self.vitals), 1)
        spark = min(max(each - NUMBER - 4, LEAST_SPARK), SPARK)
        site_width = width - len(self.vitals) * (NUMBER + spark + 4)
        head = [(padded("attention call", site_width), "dim")]
        head += [(padded(f"worst {v}", NUMBER + spark + 4, right=True), "dim") for v in self.vitals]
        lines.append(head)
        # If not all fit, show sites with findings first, then those with the worst numbers.
        names = sorted(glances, key=lambda name: self.urgency(name, glances[name], alarms))[:room]
        for name, seen in glances.items():
            if name in names:
                style = str(alarms[name]) if name in alarms else ""
                lines.append(self.row(name, seen, site_width, spark, style))
        if len(glances) > room:
            lines.append([(f"and {len(glances) - room} more, with lower numbers", "dim")])
        if not glances:
            lines.append([("no attention has been measured yet", "dim")])
        return [*lines, [], *findings] if findings else lines

    def urgency(self, name: str, seen: Glance, alarms: dict[str, Severity]) -> tuple[float, float]:
        """A sort key: small for sites that should be shown first."""
        worst = seen.worst(0, self.vitals[0]) if self.vitals else 0.0
        return -float(alarms.get(name, 0)), math.inf if math.isnan(worst) else -worst

    def row(self, name: str, seen: Glance, site_width: int, spark: int, style: str) -> Line:
        """The line of one attention call: number, arrow and sparkline for each vital."""
        line: Line = [(padded(shortened(harmless(name), site_width - 1), site_width), style)]
        for i, vital in enumerate(self.vitals):
            course = seen.course[:, i].tolist()
            number = padded(shown(seen.worst(i, vital)), NUMBER, right=True)
            line += [(number, style), (f" {arrow(course)} ", "dim")]
            line.append((f"{sparkline(course, spark)} ", "note"))
        return line


def finding_line(finding: Finding, width: int) -> Line:
    """A finding on one line of `width`, dropping the least important parts if it is too long."""
    severity = str(finding.severity)
    heads = f" head{'' if len(finding.heads) == 1 else 's'} {ranges(finding.heads)}"
    heads = heads if finding.heads else ""
    tails = (f"{heads}, since step {finding.since}", heads, "")
    site, title = harmless(finding.site), f"{harmless(finding.title)} at "
    sign = f"{SIGNS[severity]} {severity}: "
    if cells(sign + title + site + tails[0]) > width:  # colour and sign tell the severity too
        sign = f"{SIGNS[severity]} "
    line = ""
    for tail in tails:  # the heads matter more than the step
        room = max(width - cells(sign + title + tail), 12)
        line = sign + title + shortened(site, room) + tail
        if "…" not in line and cells(line) <= width:
            return [(line, severity)]
    if cells(line) > width:
        line = f"{fitting(line, width - 1).rpartition(' ')[0]}…"
    return [(line, severity)]


def overall(glances: dict[str, Glance], column: int, vital: str) -> float:
    """The worst value of a vital over all sites."""
    found = [x for seen in glances.values() if not math.isnan(x := seen.worst(column, vital))]
    return (min if vital in LOW_IS_WORSE else max)(found, default=math.nan)


def arrow(course: list[float]) -> str:
    """An arrow: up or down if the last quarter of a course differs from the first by over 10%."""
    there = [x for x in course if math.isfinite(x)]
    part = len(there) // 4
    if part == 0:
        return " "
    before, after = sum(there[:part]) / part, sum(there[-part:]) / part
    change = (after - before) / max(abs(before), 1e-12)
    return "↑" if change > 0.1 else "↓" if change < -0.1 else "→"


def is_terminal(file: IO[str]) -> bool:
    """Whether a table can be redrawn in place: not in a log, a notebook, or without rich."""
    if not has_rich() or not file.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return "ipykernel" not in sys.modules
