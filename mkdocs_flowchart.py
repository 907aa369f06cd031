"""Draws the flowcharts of the pages as SVG when the site is built.

The pages hold Mermaid text, which GitHub renders. In the site, Mermaid would be 3 MB of JavaScript that the
theme fetches from a CDN, and the site fetches nothing. This file draws the part of Mermaid that our pages
use: `flowchart TD`, nodes `id["first line<br/>second line"]` and edges `a & b --> c & d`. Any other line is
an error, so that no part of a chart goes missing.

Layout: the row of a box is its longest path from the top. An edge over several rows passes an empty box
in each row between. Sweeps down and up order every row by where its neighbours stand, then move its boxes
towards them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from statistics import mean

NODE = re.compile(r'(\w+)\["([^"]+)"\]')
EDGE = re.compile(r"(\w+(?: & \w+)*) --> (\w+(?: & \w+)*)")
LETTER, LINE, PAD = 7.4, 17, 10  # width of a bold letter at 13 px, height of a line, room around
GAP, BETWEEN = 16, 44  # from box to box, and from row to row
SWEEPS = 24


@dataclass(eq=False)
class Box:
    """A node of the chart or, without lines, the place where an edge crosses a row."""

    row: int = 0
    lines: list[str] = field(default_factory=list)
    x: float = 0.0  # of its middle
    above: list[Box] = field(default_factory=list)
    below: list[Box] = field(default_factory=list)

    @property
    def half(self) -> float:
        """Half of its width."""
        return max((len(line) for line in self.lines), default=0) * LETTER / 2 + PAD * bool(
            self.lines
        )

    @property
    def height(self) -> float:
        """0 where an edge passes."""
        return len(self.lines) * LINE + PAD if self.lines else 0


def draw(text: str, name: str) -> str:
    """The chart as one SVG element on one line; `name` is its label for screen readers."""
    paths, rows = laid_out(text)
    tops, bottom = [], 2.0
    for row in rows:
        tops.append(bottom)
        bottom += max(box.height for box in row) + BETWEEN
    heights = [max(box.height for box in row) for row in rows]
    boxes = [box for row in rows for box in row]
    left = min(box.x - box.half for box in boxes) - 2
    width = max(box.x + box.half for box in boxes) + 2 - left
    parts = [curve(path, tops, heights) for path in paths]
    parts += [drawn(box, tops[box.row] + heights[box.row] / 2) for box in boxes if box.lines]
    return (
        f'<svg role="img" aria-label="{escape(name)}" width="{width:.0f}" '
        f'viewBox="{left:.0f} 0 {width:.0f} {bottom - BETWEEN + 2:.0f}">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def laid_out(text: str) -> tuple[list[list[Box]], list[list[Box]]]:
    """The boxes that each edge passes, from end to end, and the boxes of each row, with positions set."""
    boxes, edges = parsed(text)
    for _ in boxes:
        for start, end in edges:
            end.row = max(end.row, start.row + 1)
    if any(end.row <= start.row for start, end in edges):
        raise ValueError("the arrows run in a circle")
    paths = [[a, *(Box(row) for row in range(a.row + 1, b.row)), b] for a, b in edges]
    for path in paths:
        for above, below in pairwise(path):
            above.below.append(below)
            below.above.append(above)
    everything = [*boxes, *(box for path in paths for box in path[1:-1])]
    rows = [
        [box for box in everything if box.row == row]
        for row in range(max(b.row for b in boxes) + 1)
    ]
    for row in rows:
        settle(row)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            for box in row:
                joined = box.above if down else box.below
                box.x = mean(other.x for other in joined) if joined else box.x
            if sweep < SWEEPS // 2:  # later the order stays, and places alone are improved
                row.sort(key=lambda box: box.x)
            settle(row)
    return paths, rows


def parsed(text: str) -> tuple[list[Box], list[tuple[Box, Box]]]:
    """The boxes of a chart in the order of the text, and which leads to which."""
    head, *lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if head != "flowchart TD":
        raise ValueError(f"a chart begins with 'flowchart TD', not with {head!r}")
    boxes: dict[str, Box] = {}
    edges = []
    for line in lines:
        if node := NODE.fullmatch(line):
            boxes[node[1]] = Box(lines=node[2].split("<br/>"))
        elif edge := EDGE.fullmatch(line):
            edges += [(a, b) for a in edge[1].split(" & ") for b in edge[2].split(" & ")]
        else:
            raise ValueError(f"not a node or an edge that is drawn here: {line!r}")
    if unknown := {name for edge in edges for name in edge} - set(boxes):
        raise ValueError(f"edges name boxes that are not declared: {', '.join(sorted(unknown))}")
    return list(boxes.values()), [(boxes[a], boxes[b]) for a, b in edges]


def settle(row: list[Box]) -> None:
    """Push the boxes of a row apart, in their order, as close to their positions as possible.

    Takes the mean of pushing all boxes to the right and all to the left, so that the row keeps its middle.
    """
    right = [box.x for box in row]
    left = list(right)
    for i, (a, b) in enumerate(pairwise(row)):
        right[i + 1] = max(right[i + 1], right[i] + a.half + b.half + GAP)
    for i in range(len(row) - 2, -1, -1):
        left[i] = min(left[i], left[i + 1] - row[i].half - row[i + 1].half - GAP)
    for box, a, b in zip(row, left, right, strict=True):
        box.x = (a + b) / 2


def curve(path: list[Box], tops: list[float], heights: list[float]) -> str:
    """An edge through all boxes that it passes."""
    first, *others = path
    x, y = first.x, tops[first.row] + (heights[first.row] + first.height) / 2
    way = f"M{x:.0f} {y:.0f}"
    for box in others:
        end = tops[box.row] + (heights[box.row] - box.height) / 2 - bool(box.lines)
        if not box.lines:
            end = tops[box.row]
        middle = (y + end) / 2
        way += f"C{x:.0f} {middle:.0f} {box.x:.0f} {middle:.0f} {box.x:.0f} {end:.0f}"
        x, y = box.x, end
        if not box.lines:  # straight between the boxes of this row
            y += heights[box.row]
            way += f"V{y:.0f}"
    return f'<path d="{way}" marker-end="url(#arrow)"/>'


def drawn(box: Box, middle: float) -> str:
    """A box and its lines; the first is its name."""
    top = middle - box.height / 2
    shape = f'<rect x="{box.x - box.half:.0f}" y="{top:.0f}" width="{2 * box.half:.0f}" height="{box.height:.0f}" rx="4"/>'
    lines = "".join(
        f'<tspan x="{box.x:.0f}" y="{top + PAD / 2 + 12.5 + i * LINE:.0f}">{escape(line)}</tspan>'
        for i, line in enumerate(box.lines)
    )
    return f"{shape}<text>{lines}</text>"
