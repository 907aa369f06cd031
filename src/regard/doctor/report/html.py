"""The report as one self-contained HTML file: no network, no other file, no package.

The page holds the record as JSON, and the scripts in `page/` draw it. Names in the record may come from
a model file that is not trusted, so they only ever become text: they are escaped here, and the scripts
write no markup. The content security policy of the page allows only its own scripts and styles.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from regard.doctor.report.data import Record
from regard.doctor.report.terminal import summary_text
from regard.doctor.report.words import circumstances, headline, worst_of_all
from regard.measuring.files import write_atomic
from regard.page import policy, read, script, style_sheet

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("dom.js", "findings.js", "heat.js", "charts.js", "attacks.js", "table.js", "main.js")
# The stroke in the seal beside the verdict.
SEALS = {
    "failure": "M16 16l16 16M32 16L16 32",
    "warning": "M24 12v15M24 35v.2",
    "good": "M14 25l7 7.5L34.5 17",
    "none": "M18.5 19a5.6 5.6 0 1 1 8.4 4.8c-2 1.2-2.9 2.2-2.9 4.4M24 35v.2",
}
# Characters that could end the script element that holds the JSON; as escapes JSON reads them the same.
UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def write_html(record: Record, path: Path, *, attacks: str = "") -> Path:
    """Write the report; an existing one is replaced once the new one is complete.

    Args:
        record: the record to show.
        path: the file to write.
        attacks: the tables of `record.probe` in plain text, for readers without scripts.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomic(path, compose(record, attacks).encode("utf-8", "replace"))
    return path


def compose(record: Record, attacks: str = "") -> str:
    """The report as HTML."""
    sentence, tone = headline(record)
    worst = html.escape(worst_of_all(record))
    style = style_sheet(PAGE, "page.css", "dark.css")
    code = script(*(read(PAGE, name) for name in SCRIPTS))
    parts = {
        "title": html.escape(f"{record.model}: {sentence}"),
        "model": html.escape(record.model),
        "tone": tone,
        "seal": SEALS[tone],
        "verdict": html.escape(sentence),
        "circumstances": html.escape(circumstances(record)),
        "worst": worst and f"<br><bdi>{worst}</bdi>",
        "text": html.escape(summary_text(record) + (attacks and f"\n{attacks}\n")),
        "style": style,
        "script": code,
        "policy": policy(code, style),
        "record": record.to_text().translate(UNSAFE),
    }
    # In one pass, so that braces in an inserted name are not expanded again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read(PAGE, "page.html"))
