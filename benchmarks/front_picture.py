"""The picture of the front page as SVG: what the right score gains, and what each score costs.

Text stays text, so that it can be searched and read aloud. The colours follow the reader's choice of a light
or dark theme. The background is drawn too, because GitHub's own theme may be the other one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from html import escape

from front import COSTED, Cost, Gain

WIDTH, EDGE = 760, 24
ROW, BAR = 46, 25
AXIS = (EDGE + 6, 480)  # accuracies from 0 to 1
BARS = (250, 690)  # costs from 1 to MOST
MOST = 40
SIZE = re.compile(r", \d+ hidden|，\d+ 个隐藏单元")  # left out: there is no room for it
STYLE = """
:root { --ground: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0;
  --scaled_dot: #6e7781; --cosine: #0969da; --additive: #bc4c00; --other: #8250df; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #0d1117; --ink: #f0f6fc; --faint: #9198a1; --line: #3d444d;
    --scaled_dot: #9198a1; --cosine: #58a6ff; --additive: #ff8e3c; --other: #be8fff; } }
text { font: 15px system-ui, "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "PingFang SC",
  "Microsoft YaHei", sans-serif; fill: var(--ink); }
.title { font-weight: 600; font-size: 18px; }
.faint { fill: var(--faint); font-size: 13px; }
.strong { font-weight: 600; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
line { stroke: var(--line); }
"""
TEXTS = {
    "en": {
        "gain": "What the right score gains",
        "gain_axis": "accuracy, from that of scaled dot (grey) to that of the winner",
        "same": "no difference that matters",
        "open": "not decided",
        "cost": "What a score costs",
        "cost_axis": "time of a forward and backward pass over that of scaled dot (logarithmic)",
        "where": "{threads} CPU cores ({name}), length {length}, {heads} heads, width {width}, hidden {hidden}",
    },
    "zh": {
        "gain": "选对打分函数的收益",
        "gain_axis": "准确率：从缩放点积（灰点）到胜者",
        "same": "无实质差异",
        "open": "未能判定",
        "cost": "各种打分函数的开销",
        "cost_axis": "前向加反向的耗时，是缩放点积的多少倍（对数轴）",
        "where": "{threads} 个 CPU 核（{name}），长度 {length}，{heads} 个头，宽度 {width}，{hidden} 个隐藏单元",
    },
}


def draw(gains: list[Gain], costs: list[Cost], setting: dict, language: str) -> str:
    """The whole picture; `setting` says where and at which sizes the costs were measured."""
    words = TEXTS[language]
    top = 92 + ROW * len(gains) + 40
    lower = [
        text(EDGE, top, words["cost"], "title"),
        text(EDGE, top + 21, words["cost_axis"], "faint"),
        text(EDGE, top + 40, words["where"].format(**setting), "faint"),
        *bars(costs, top + 54, language),
    ]
    height = top + 54 + BAR * len(costs) + 20
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" lang="{language}">',
        f"<title>{escape(words['gain'])}. {escape(words['cost'])}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="var(--ground)"/>',
        *gain_panel(gains, words, language),
        *lower,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def gain_panel(gains: list[Gain], words: dict[str, str], language: str) -> Iterator[str]:
    """One row for each property: a grey dot for scaled dot, and a coloured one where another score wins."""
    left, right = AXIS
    yield text(EDGE, 36, words["gain"], "title")
    yield text(EDGE, 57, words["gain_axis"], "faint")
    bottom = 78 + ROW * len(gains)
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + share * (right - left)
        yield f'<line x1="{x:.0f}" x2="{x:.0f}" y1="72" y2="{bottom}"/>'
        yield text(x, bottom + 16, f"{share:.0%}", "faint middle")
    for number, gain in enumerate(gains):
        y = 106 + ROW * number
        start, end = (left + share * (right - left) for share in (gain.before, gain.after))
        # A background behind the words, so that the lines of the axis do not run through them.
        yield text(left, y - 14, gain.prop[language], "", ground=True)
        if gain.beaten:
            colour = colour_of(gain.score)
            yield (
                f'<line x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}" stroke-width="4" '
                f'style="stroke: {colour}"/>'
            )
            yield dot(start, y, colour_of("scaled_dot"))
            yield dot(end, y, colour)
            told = f"{SIZE.sub('', gain.use[language])} +{100 * gain.lead[0]:.1f}"
        else:
            yield dot(start, y, colour_of("scaled_dot"))
            colour, told = "var(--faint)", words["open" if gain.open else "same"]
        yield text(right + 16, y + 5, told, "strong" if gain.beaten else "", colour=colour)


def bars(costs: list[Cost], top: float, language: str) -> Iterator[str]:
    """Bars on a logarithmic axis; a textbook formula has a dashed outline."""
    left, right = BARS
    for number, cost in enumerate(costs):
        y = top + BAR * number
        width = max((right - left) * math.log(cost.times) / math.log(MOST), 3)
        colour = colour_of(cost.score)
        look = (
            f'fill="none" stroke-dasharray="4 3" style="stroke: {colour}"'
            if cost.textbook
            else f'style="fill: {colour}"'
        )
        yield text(left - 10, y + 15, COSTED[cost.name][language], "end")
        yield f'<rect x="{left}" y="{y + 3}" width="{width:.1f}" height="{BAR - 8}" rx="2" {look}/>'
        yield text(left + width + 8, y + 15, str(cost), "strong")


def colour_of(score: str) -> str:
    """The colour of a score: three have one of their own."""
    return f"var(--{score if score in ('scaled_dot', 'cosine', 'additive') else 'other'})"


def dot(x: float, y: float, colour: str) -> str:
    """A point of the upper panel."""
    return f'<circle cx="{x:.1f}" cy="{y}" r="6.5" style="fill: {colour}"/>'


def text(
    x: float, y: float, words: str, kind: str, *, colour: str = "", ground: bool = False
) -> str:
    """A line of text; `kind` is its class, `ground` draws the background around its letters."""
    style = f' style="fill: {colour}"' if colour else ""
    if ground:
        style = ' style="paint-order: stroke; stroke: var(--ground); stroke-width: 5"'
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{named}{style}>{escape(words)}</text>'
