"""The report of claims as one self-contained HTML file. Needs jinja2 and matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

from regard.claims.absent import ABSENT
from regard.claims.claim import Claim
from regard.claims.registry import survey
from regard.claims.report.entries import entry, environments, grouped
from regard.claims.report.words import HOW, MEANINGS, VERDICTS, WORDS
from regard.claims.running.store import Result, load_results
from regard.measuring.files import write_atomic
from regard.page import policy, read, script, style_sheet
from regard.page.template import ours, template
from regard.text import Language

FOLDER = Path(__file__).parent


def write_report(folder: Path, language: Language, path: Path) -> Path:
    """Write the report of the results in `folder` to `path`, and return `path`.

    Claims without a result come last, as not run.
    """
    claims = survey().claims
    write_atomic(path, compose(claims, load_results(folder, claims), language).encode())
    return path


def compose(claims: Mapping[str, Claim], results: Mapping[str, Result], language: Language) -> str:
    """The report as HTML: it opens on the claims that were run, and ends with the others."""
    entries = [entry(claim, results.get(name), language) for name, claim in claims.items()]
    shown = {name: results[name] for name in claims if name in results}
    code = script(read(FOLDER, "report.js"))
    # Result files may come from other people, so the template escapes all of their text.
    return template(FOLDER, "report.html.jinja").render(
        language={"en": "en", "zh": "zh-Hans"}[language],
        word=SimpleNamespace(**{name: text.of(language) for name, text in WORDS.items()}),
        verdicts={key: text.of(language) for key, text in VERDICTS.items()},
        meanings={key: text.of(language) for key, text in MEANINGS.items()},
        how=[text.of(language) for text in HOW],
        groups=grouped([entry for entry in entries if entry.ran], language),
        waiting=[entry for entry in entries if not entry.ran],
        absent=[
            (name, f"{one.topic.of(language)} ({one.reason.of(language)})")
            for name, one in ABSENT.items()
        ],
        total=len(entries),
        counts=Counter(entry.key for entry in entries),
        environments=environments(shown, language),
        seeds=sorted({result.seed for result in shown.values()}),
        css=ours(style_sheet(FOLDER, "report.css", "dark.css")),
        script=ours(code),
        policy=policy(code),
    )
