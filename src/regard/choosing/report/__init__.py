"""The report of `regard choose`: one HTML file that needs nothing else. Needs jinja2 and matplotlib."""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from regard.choosing.report.entries import Entry, entry, first_rows, versions
from regard.choosing.rules import RULES
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.models import Match
from regard.choosing.tasks.task import Task
from regard.choosing.training.verdict import Verdict
from regard.claims.report import prose, style
from regard.measuring.files import write_atomic

FOLDER = Path(__file__).parent


def save_verdict(verdict: Verdict, path: str | Path) -> Path:
    """The report of one comparison from Python."""
    task = Task("your model", "your model and data", partial(Match), [], (1, 1))
    return write_report(Suite([Answer(task, verdict)]), Path(path))


def write_report(suite: Suite, path: Path) -> Path:
    """Write it, and return where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, compose(suite).encode())
    return path


def compose(suite: Suite) -> str:
    """The report as HTML; everything put into it is escaped."""
    entries: list[Entry] = [
        entry(answer, number) for number, answer in enumerate(suite.answers, start=1)
    ]
    script = (FOLDER / "report.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    return environment.get_template("report.html.jinja").render(
        entries=entries,
        first=first_rows(suite.headline),
        rules=RULES,
        machine=versions(suite),
        css=style("report.css") + own_style(),
        dark=style("dark.css"),
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def own_style() -> Markup:
    """What the style sheet of claims lacks."""
    return Markup((FOLDER / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
