"""A check as an HTML page, a figure, or JSON. The page is one file and fetches nothing."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path

from regard.doctor.findings.finding import Finding
from regard.doctor.laws.law import LawVerdict
from regard.doctor.laws.result import SIGNS, Checked
from regard.doctor.report.numbers import harmless, shown
from regard.measuring.files import write_atomic
from regard.page import policy, read, script, style_sheet
from regard.page.drawing import inline

FOLDER = Path(__file__).parent
TONES = {
    LawVerdict.HELD: "good",
    LawVerdict.BROKEN: "failure",
    LawVerdict.NOTE: "note",
    LawVerdict.SKIPPED: "none",
}


def write(results: Sequence[Checked], path: str | Path) -> Path:
    """Write results in the format that the path ends in: .json, .svg, .png, else HTML.

    Raises:
        ValueError: a figure is wanted, and there is no influence map.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} exists and is not a regular file")
    if path.suffix == ".json":
        found = [x.as_dict() for x in results]
        text = json.dumps(found[0] if len(found) == 1 else found, indent=1, allow_nan=False)
        write_atomic(path, text.encode() + b"\n")
    elif path.suffix in (".svg", ".png"):
        from regard.doctor.laws.picture import images

        drawn = next((x.map for x in results if x.map is not None), None)
        if drawn is None:
            raise ValueError("there is no influence map: no output has a row for each token")
        suffix = path.suffix[1:]
        write_atomic(path, images(drawn, (suffix,))[suffix])
    else:
        write_atomic(path, compose(results).encode("utf-8", "replace"))
    return path


def compose(results: Sequence[Checked], names: Sequence[str] = ()) -> str:
    """The page as HTML; `names` are headings, the models' names unless given."""
    titles = list(names) or [x.model for x in results]
    sections = [
        section(x, title, number)
        for number, (x, title) in enumerate(zip(results, titles, strict=True))
    ]
    bad = sum(not x.ok for x in results)
    title = f"{titles[0]}: {results[0].headline}" if len(results) == 1 else (
        f"{len(results)} checks, {bad} with broken laws"
    )  # fmt: skip
    return page_of(sections, title)


def page_of(sections: Sequence[str], title: str) -> str:
    """The page of these sections."""
    style, code = style_sheet(FOLDER, "page.css"), script("themeButton();\n")
    parts = {
        "title": escaped(title),
        "style": style,
        "script": code,
        # Drawings carry colours as style attributes.
        "policy": policy(code),
        "body": "".join(sections),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read(FOLDER, "page.html"))


def escaped(text: str) -> str:
    """Text for HTML, with control characters spelled out."""
    return html.escape(harmless(text))


def section(result: Checked, title: str, number: int) -> str:
    """One check: verdict, findings, laws, map, declarations."""
    tone = "failure" if result.broken else "good" if result.sites else "none"
    laws = "".join(
        f'<li class="{TONES[x.verdict]}"><b class="sign-of">{SIGNS[x.verdict]}</b>'
        f"<b>{escaped(x.law)}</b><span>{escaped(f'{x.verdict}: {x.why}')}</span></li>"
        for x in result.rulings
    )
    known = "".join(
        f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in result.sources.items()
    )
    return (
        f'<section class="check"><div class="verdict {tone}"><p>{escaped(title)}</p>'
        f"<h1>{escaped(result.headline)}</h1><p>{escaped(result.cost)}</p></div>"
        + "".join(card(x) for x in result.findings)
        + f'<h2 class="part">Laws</h2><ul class="laws">{laws}</ul>'
        + figure(result, number)
        + "<details><summary>What the model is meant to do, and from what that is known</summary>"
        f"<dl>{known}</dl></details></section>"
    )


def card(finding: Finding) -> str:
    """A finding, with its causes folded."""
    numbers = "; ".join(
        f"{x.vital} {shown(x.value)}, {'allowed' if x.above else 'expected more than'} "
        f"{shown(x.threshold)} ({x.source})"
        for x in finding.signals
    )
    causes = "".join(f"<li>{escaped(x.expected)}</li>" for x in finding.remedies)
    return (
        f'<article class="card broken {finding.severity}"><h2>{escaped(finding.title)}</h2>'
        f'<p class="site">{escaped(finding.site)}</p><p>{escaped(finding.explanation)}</p>'
        f'<p class="numbers">{escaped(numbers)}</p>'
        f"<details><summary>What usually causes it</summary><ul>{causes}</ul></details></article>"
    )


def figure(result: Checked, number: int) -> str:
    """The influence map, if there is one and matplotlib is there."""
    if result.map is None or importlib.util.find_spec("matplotlib") is None:
        return ""
    from regard.doctor.laws.picture import images, panels_of

    svg = images(result.map)["svg"].decode()
    wide = f"width: {16 * len(panels_of(result.map))}rem"
    label = "who may see whom, who sees whom as measured, and the mean attention weight"
    return (
        '<h2 class="part">Who sees whom</h2><div class="card map">'
        f"{inline(svg, f'map{number}', aria_label=label, style=wide)}</div>"
    )
