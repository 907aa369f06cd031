"""The report of `regard choose`: one self-contained HTML file. Needs jinja2 and matplotlib."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

from regard import page
from regard.choosing.report.charts import overview_chart
from regard.choosing.report.entries import claims, entry, versions
from regard.choosing.report.overview import fair, first_rows, summary, textbook_ratio
from regard.choosing.report.words import BORNE, WORDS
from regard.choosing.rules import RULES
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.models import Match
from regard.choosing.tasks.task import Task
from regard.choosing.training.candidates import LABELS
from regard.choosing.training.verdict import Verdict
from regard.measuring.files import write_atomic
from regard.page.template import ours, template
from regard.text import Text

FOLDER = Path(__file__).parent


def save_verdict(verdict: Verdict, path: str | Path) -> Path:
    """Write the report of one verdict of `regard.choose`, and return its path."""
    what = Text("your model and data", "你的模型和数据")
    task = Task("your model", what, partial(Match), [], (1, 1), zh="你的模型")
    return write_report(Suite([Answer(task, verdict)]), Path(path))


def write_report(suite: Suite, path: Path) -> Path:
    """Write the report of a suite, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A user's label may hold lone surrogates, which UTF-8 cannot encode.
    write_atomic(path, compose(suite).encode("utf-8", "replace"))
    return path


def compose(suite: Suite) -> str:
    """The report as HTML; the template escapes everything inserted."""
    entries = [entry(answer, number) for number, answer in enumerate(suite.answers, start=1)]
    done = [(one.task.title, one.verdict) for one in suite.answers if one.verdict is not None]
    named = [claim.id for entry in entries for claim in entry.claims]
    named += [name for rule in RULES for name in rule.claims]
    code = page.script(page.read(page.FOLDER, "language.js"), page.read(FOLDER, "report.js"))
    return template(FOLDER, "report.html.jinja").render(
        word=SimpleNamespace(**WORDS),
        sentences=summary(suite),
        entries=entries,
        overview=overview_chart(done),
        fair=fair(suite),
        first=first_rows(suite.headline),
        ratio=textbook_ratio(suite.headline),
        rules=RULES,
        scores=LABELS,
        borne=BORNE,
        claims=claims(tuple(sorted(set(named), key=in_order))),
        machine=versions(suite),
        css=ours(page.style_sheet(FOLDER, "report.css")),
        script=ours(code),
        policy=page.policy(code),
    )


def in_order(name: str) -> tuple[str, int]:
    """A sort key for claim ids that puts C2 before C10."""
    return name[0], int(name[1:])
