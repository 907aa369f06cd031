"""A verdict in plain text: the recommendation, and a table of candidates that fits the terminal."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from regard.choosing.training.marks import NO_ATTENTION, standing
from regard.choosing.training.phrases import level, metric_of, signed
from regard.choosing.training.rows import CandidateRow
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import opening
from regard.measuring.statistics import Estimate
from regard.measuring.words import seconds

WIDTH = 80  # columns of the table if the width of the terminal is unknown
GAP = "  "
INDENT = " " * 4  # indent of a remark below the numbers of its candidate
NARROWEST = 12  # least width of the column of labels


class Cells(NamedTuple):
    """One line of the table; `told` is a remark after the numbers, or instead of them."""

    label: str
    quality: str
    ahead: str
    time: str
    told: str = ""


def as_text(verdict: Verdict, width: int | None = None) -> str:
    """The recommendation, the table and the code as text; sentences are wrapped if a width is given."""
    told = [sentence.en for sentence in opening(verdict)]
    if width is not None:
        told = [line for text in told for line in wrapped(text, width)]
    # The code is never wrapped, since the user pastes it.
    code = ["", verdict.code] if verdict.recommended else []
    return "\n".join([*told, "", *table(verdict, width or WIDTH), *code])


def table(verdict: Verdict, width: int) -> list[str]:
    """The lines of the table: a header, all candidates, and models without attention."""
    head = Cells("candidate", metric_of(verdict).en, "over scaled dot", "a step")
    rows = [head, *(cells(verdict, row) for row in verdict.rows)]
    rows += [
        Cells(row.name.en, level(verdict, row), "", "-", NO_ATTENTION.en)
        for row in verdict.baselines
    ]
    sizes = [max(len(row[place]) for row in rows) for place in range(4)]
    taken = sum(sizes[1:]) + 3 * len(GAP)
    sizes[0] = min(sizes[0], max(width - taken, NARROWEST))
    return [line for row in rows for line in lines(row, sizes, width)]


def cells(verdict: Verdict, row: CandidateRow) -> Cells:
    """The cells of one candidate."""
    lead = verdict.over(row)
    ahead = "" if lead is None else bare(verdict, lead)
    time = "-" if row.cost is None else seconds(row.cost.seconds)
    told = standing(verdict, row).en
    return Cells(row.candidate.label.en, level(verdict, row), ahead, time, told)


def bare(verdict: Verdict, lead: Estimate) -> str:
    """A lead with its sign and interval, without its unit, which the quality column shows."""
    said = signed(verdict, lead).en.partition(" (no interval")[0]
    return said.replace(" points", "").replace(" point", "")


def lines(row: Cells, sizes: list[int], width: int) -> list[str]:
    """The line of a candidate; a remark that does not fit goes on lines below."""
    first, *more = textwrap.wrap(row.label, sizes[0], break_on_hyphens=False) or [""]
    middle = [row.quality.rjust(sizes[1]), row.ahead.rjust(sizes[2])]
    told = row.told
    room = sizes[1] + len(GAP) + sizes[2]
    # A candidate without numbers has room for its remark in their columns.
    if told and not row.quality and len(told) <= room:
        middle, told = [told.rjust(room)], ""
    found = [GAP.join([first.ljust(sizes[0]), *middle, row.time.rjust(sizes[3])]), *more]
    if told and len(found[0]) + len(GAP) + len(told) <= width:
        found[0] += GAP + told
    elif told:
        found += wrapped(told, width, INDENT)
    return [line.rstrip() for line in found]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The text as wrapped lines; options such as `--seeds` and names are not split at a hyphen."""
    return textwrap.wrap(
        text,
        max(width, len(indent) + NARROWEST),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
