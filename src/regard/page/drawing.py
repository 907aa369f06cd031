"""Prepares SVG drawings by matplotlib for a page that holds several of them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping


def inline(svg: str, prefix: str, **attributes: str) -> str:
    """The `svg` element alone, with unique ids and attributes for screen readers.

    Ids and `style` elements apply to the whole page, so they would affect the other figures. Ids get a
    prefix, and styles are removed.

    Args:
        svg: as matplotlib writes it.
        prefix: for all its ids.
        attributes: of the `svg` element; an underscore becomes a hyphen, as in `aria_label`.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    more = "".join(f' {k.replace("_", "-")}="{html.escape(v)}"' for k, v in attributes.items())
    return svg.replace("<svg", f'<svg role="img"{more}', 1)


def width_of(svg: str) -> float:
    """The width of the drawing, in its own units."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert found, "matplotlib writes a viewBox"
    return float(found[1])


def in_both(svg: str, words: Mapping[str, str]) -> str:
    """The drawing with each label that `words` translates twice, in English and in Chinese."""
    known = {html.escape(en, quote=False): html.escape(zh) for en, zh in words.items() if en != zh}

    def twice(found: re.Match[str]) -> str:
        start, label = found.groups()
        if label not in known:
            return found[0]
        return (
            f'<text class="en"{start}>{label}</text><text class="zh"{start}>{known[label]}</text>'
        )

    return re.sub(r"<text( [^>]*)>([^<]*)</text>", twice, svg)
