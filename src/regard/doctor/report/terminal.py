"""The report for a terminal: the findings, and a table of all attention calls."""

from __future__ import annotations

import math
from typing import IO, Any

import torch

from regard.doctor.report.data import Record, SiteRecord
from regard.doctor.report.lines import Line, bar, padded, plain_text, put, width_of, wrapped
from regard.doctor.report.numbers import harmless, real, shortened, shortened_alike, shown
from regard.doctor.report.reading import KEY_VITALS, worst
from regard.doctor.report.words import circumstances, comparison, headline, tested, where

SIGNS = {"failure": "✗", "warning": "!", "note": "·", "good": "✓", "none": "?"}
NUMBER, BAR, HEADS = 9, 8, 6  # columns of the table
BARRED = "logit_max"


def show(record: Record, file: IO[str] | None = None) -> None:
    """Print the summary to `file` (default standard output), in colours if it is a terminal."""
    put(summary(record, width_of(file)), file)


def summary_text(record: Record, width: int = 80) -> str:
    """The summary as plain text."""
    return plain_text(summary(record, width))


def summary(record: Record, width: int = 80) -> list[Line]:
    """The summary as styled lines: verdict, findings, table, notes."""
    sentence, tone = headline(record)
    lines: list[Line] = [[(f"{SIGNS[tone]} {sentence}", tone if tone != "none" else "title")]]
    lines += wrapped(harmless(circumstances(record)), width, style="dim")
    lines += wrapped(tested(record), width, style="dim") if record.sites else []
    heads = {site.name: site.heads for site in record.sites}
    said: set[str] = set()  # explanations, sources and remedies printed so far, to print each once
    for finding in record.findings:
        lines.append([])
        lines += finding_lines(finding, heads.get(finding["site"], 0), width, said)
    if record.sites:
        lines += [[], *table(record, width)]
    if record.notes:
        lines += [[], [("notes", "title")]]
        for note in record.notes:
            lines += wrapped(harmless(note), width, "  - ", "    ", "dim")
    return lines


def finding_lines(finding: dict[str, Any], heads: int, width: int, said: set[str]) -> list[Line]:
    """A finding with its numbers and remedies; texts in `said` were printed before and are left out."""
    severity = finding["severity"]
    title = f"{SIGNS[severity]} {severity}: {harmless(finding['title'])}"
    lines = wrapped(title, width, "", "  ", severity)
    lines.append([("  at ", "dim"), (shortened(harmless(finding["site"]), width - 5), "site")])
    sure = real(finding["confidence"])
    sureness = "" if math.isnan(sure) else f", {sure:.0%} sure"
    lines += wrapped(where(finding, heads) + sureness, width, "  ", "  ", "dim")
    if finding["explanation"] not in said:
        said.add(finding["explanation"])
        lines += wrapped(harmless(finding["explanation"]), width, "  ", "  ")
    lines += signal_lines(finding["signals"], width, said)
    remedies = [f"{advice['remedy']}: {advice['expected']}" for advice in finding["remedies"]]
    if remedies and repr(remedies) in said:
        return [*lines, [("    remedies: the same as above", "dim")]]
    said.add(repr(remedies))
    for number, text in enumerate(remedies, start=1):
        lines += wrapped(harmless(text), width, f"    {number}. ", "       ")
    return lines


def signal_lines(signals: list[dict[str, Any]], width: int, said: set[str]) -> list[Line]:
    """Each number with its source; only the numbers if all sources are in `said`."""
    sources = {signal["source"] for signal in signals}
    if sources <= said:
        text = "; ".join(comparison(signal) for signal in signals)
        return wrapped(harmless(text), width, "    = ", "      ")
    said |= sources
    texts = [f"{comparison(signal)} ({signal['source']})" for signal in signals]
    return [x for text in texts for x in wrapped(harmless(text), width, "    = ", "      ")]


def table(record: Record, width: int) -> list[Line]:
    """A table with a line for each attention call: the worst head of each vital that fits."""
    there = [v for v in KEY_VITALS if any(v in site.last for site in record.sites)]
    bars = BAR + 1 if BARRED in there else 0
    names = [shortened(harmless(site.name), 40) for site in record.sites]
    room = width - HEADS - bars - max(16, min(28, max(map(len, names))))
    columns = there[: max(room // (NUMBER + 2), 0)]
    site_width = width - HEADS - bars - len(columns) * (NUMBER + 2)
    most = max((finite(worst_of(site, BARRED)) for site in record.sites), default=0.0)
    alarms = alarms_of(record)
    head = padded("worst head of", site_width) + padded("heads", HEADS, right=True)
    for vital in columns:
        head += padded(shortened(vital, NUMBER + 1), NUMBER + 2, right=True)
        head += " " * bars if vital == BARRED else ""
    lines: list[Line] = [[(head, "dim")]]
    names = shortened_alike([harmless(site.name) for site in record.sites], site_width - 1)
    for site, name in zip(record.sites, names, strict=True):
        mark = min((alarms[site.name, v] for v in columns if (site.name, v) in alarms),
                   key=list(SIGNS).index, default="")  # fmt: skip
        line: Line = [(padded(name, site_width), mark or "site")]
        line.append((padded(str(site.heads or "-"), HEADS, right=True), "dim"))
        for vital in columns:
            text = shown(worst_of(site, vital))
            line.append((padded(text, NUMBER + 2, right=True), alarms.get((site.name, vital), "")))
            if vital == BARRED:
                style = alarms.get((site.name, BARRED), "note")
                line.append((" " + bar(worst_of(site, BARRED), most, BAR), style))
        lines.append(line)
    return lines


def alarms_of(record: Record) -> dict[tuple[str, str], str]:
    """The worst severity for each site and vital that a finding names."""
    found: dict[tuple[str, str], str] = {}
    # Findings are sorted worst first. Reversed, the worst one is written last and wins.
    for finding in reversed(record.findings):
        for signal in finding["signals"]:
            found[finding["site"], signal["made_of"]] = finding["severity"]
    return found


def worst_of(site: SiteRecord, vital: str) -> float:
    """The worst value of a vital over the heads of a site; NaN if it was not measured."""
    if vital not in site.last:
        return math.nan
    return worst(torch.tensor([real(x) for x in site.last[vital]]), vital)


def finite(x: float) -> float:
    """The number, or 0 if it is not finite: no bar can be scaled by it."""
    return x if math.isfinite(x) else 0.0
