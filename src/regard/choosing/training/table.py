"""A verdict in plain text: the recommendation, and a table of candidates that fits the terminal."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from regard.choosing.training.verdict import CandidateRow, Verdict
from regard.choosing.training.words import level, metric_of, recommendation, spread, standing
from regard.measuring.statistics import Estimate
from regard.measuring.words import seconds

WIDTH = 80  # of the table where nothing is known of a terminal
GAP = "  "
INDENT = " " * 4  # of what is told of a candidate below its numbers
NARROWEST = 12  # a column of labels


class Cells(NamedTuple):
    """One line of the table; `told` stands behind the numbers, or instead of them."""

    label: str
    quality: str
    ahead: str
    time: str
    told: str = ""


def as_text(verdict: Verdict, width: int | None = None) -> str:
    """The recommendation, a line for each candidate, and the code; sentences are wrapped at a width."""
    told = [sentence.en for sentence in recommendation(verdict)]
    if width is not None:
        told = [line for text in told for line in wrapped(text, width)]
    # The code is to be pasted: no line of it is broken.
    return "\n".join([*told, "", *table(verdict, width or WIDTH), "", f"score = {verdict.code}"])


def table(verdict: Verdict, width: int) -> list[str]:
    """A header and the candidates."""
    head = Cells("candidate", metric_of(verdict).en, "over scaled dot", "a step")
    rows = [head, *(cells(verdict, row) for row in verdict.rows)]
    sizes = [max(len(row[place]) for row in rows) for place in range(4)]
    taken = sum(sizes[1:]) + 3 * len(GAP)
    sizes[0] = min(sizes[0], max(width - taken, NARROWEST))
    return [line for row in rows for line in lines(row, sizes, width)]


def cells(verdict: Verdict, row: CandidateRow) -> Cells:
    """Of one candidate."""
    lead = verdict.over(row)
    ahead = "" if lead is None else signed(verdict, lead)
    time = "-" if row.cost is None else seconds(row.cost.seconds)
    told = standing(verdict, row).en
    return Cells(row.candidate.label.en, level(verdict, row), ahead, time, told)


def signed(verdict: Verdict, lead: Estimate) -> str:
    """A lead with its sign and interval; the unit is that of the column before."""
    said = spread(verdict, lead).en.replace(" points", "").removesuffix(" (one seed: no interval)")
    return f"+{said}" if float(said.split()[0]) > 0 else said


def lines(row: Cells, sizes: list[int], width: int) -> list[str]:
    """The line of a candidate; what has no room on it stands below."""
    first, *more = textwrap.wrap(row.label, sizes[0], break_on_hyphens=False) or [""]
    middle = [row.quality.rjust(sizes[1]), row.ahead.rjust(sizes[2])]
    told = row.told
    room = sizes[1] + len(GAP) + sizes[2]
    if told and not row.quality and len(told) <= room:
        middle, told = [told.rjust(room)], ""
    found = [GAP.join([first.ljust(sizes[0]), *middle, row.time.rjust(sizes[3])]), *more]
    if told and len(found[0]) + len(GAP) + len(told) <= width:
        found[0] += GAP + told
    elif told:
        found += wrapped(told, width, INDENT)
    return [line.rstrip() for line in found]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of words; options such as `--seeds 5` and names are not cut at a hyphen."""
    return textwrap.wrap(
        text,
        max(width, len(indent) + NARROWEST),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
