"""The page of a comparison: one self-contained HTML file in English and Chinese. Needs jinja2 and matplotlib."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from markupsafe import Markup

from regard import page
from regard.figures.canvas import drawn
from regard.measuring.files import write_atomic
from regard.measuring.words import number, seconds
from regard.page.drawing import inline, width_of
from regard.page.template import ours, template
from regard.recipes.comparing.report.charts import CHARTS
from regard.recipes.comparing.report.words import CAPTIONS, WORDS
from regard.recipes.comparing.results import Compared, ComparedRow, is_number
from regard.recipes.comparing.sentences import how, sentences, winner
from regard.recipes.comparing.table import KINDS, change, parameters
from regard.text import LANGUAGES, Text

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class CompareDrawing:
    """A drawing in both languages: markup by language, its width in its own units, and its caption."""

    markup: Mapping[str, Markup]
    width: float
    caption: Text


def write_report(found: Compared, path: Path) -> Path:
    """Write the page, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, compose(found).encode("utf-8", "replace"))
    return path


def compose(found: Compared) -> str:
    """The page as HTML; the template escapes everything that is put into it."""
    code = page.script(page.read(page.FOLDER, "language.js"), page.read(FOLDER, "report.js"))
    best, reference = winner(found), found.row(found.reference).title
    return template(FOLDER, "report.html.jinja").render(
        word=SimpleNamespace(**WORDS),
        found=found,
        sentences=sentences(found),
        how=how(found),
        rows=[entry(found, row) for row in found.rows],
        extra_names=extra_names(found),
        best=None if best is None else best.name,
        difference=Text(f"difference to {reference.en}", f"与{reference.zh}之差"),
        drawings=[drawing(found, name) for name in CHARTS],
        pictures=[(picture(one.svg, one.caption), one.caption) for one in found.pictures],
        dataset=found.dataset if "title" in found.dataset else None,
        machine=[(k, v) for k, v in found.machine.items() if k != "load"],
        css=ours(page.style_sheet(FOLDER, "report.css")),
        script=ours(code),
        policy=page.policy(code),
    )


def entry(found: Compared, row: ComparedRow) -> dict[str, Any]:
    """A row as the template shows it."""
    show = found.metric.show
    return {
        "name": row.name,
        "title": row.title,
        "kind": KINDS[row.kind],
        "value": show(row.value.value),
        "interval": f"[{show(row.value.low)}, {show(row.value.high)}]",
        "difference": change(found, row),
        "train": seconds(row.train_seconds),
        "predict": seconds(row.predict_seconds),
        "parameters": parameters(row),
        "setting": ", ".join(f"{k}={v}" for k, v in row.setting.items()) or "-",
        "tried": row.tried,
        "values": ", ".join(show(x) for x in row.values),
        "about": row.about,
        "extra": {k: number_text(v) for k, v in row.extra.items() if is_number(v)},
    }


def extra_names(found: Compared) -> list[str]:
    """Names of the further numbers that have a column."""
    return sorted({k for row in found.rows for k, v in row.extra.items() if is_number(v)})


def number_text(value: float) -> str:
    """A number of unknown kind for a table."""
    if float(value).is_integer():
        return f"{value:,.0f}".replace("-", "−")
    return f"−{number(-value)}" if value < 0 else number(value)


def drawing(found: Compared, name: str) -> CompareDrawing:
    """A chart in both languages."""
    caption, markup, width = CAPTIONS[name], {}, 0.0
    for language in LANGUAGES:
        svg = drawn(lambda canvas: CHARTS[name](found, canvas), language, ["svg"])["svg"].decode()
        svg = inline(svg, f"{name}-{language}", aria_label=caption.of(language))
        markup[language], width = Markup(svg), width_of(svg)  # noqa: S704 - matplotlib escapes
    return CompareDrawing(markup, width, caption)


def picture(svg: str, caption: Text) -> Markup:
    """A recipe's drawing as an image: no script in it can run."""
    data = base64.b64encode(svg.encode("utf-8", "replace")).decode()
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(data, caption.en)
