"""The report as one HTML file that needs nothing else: no network, no other file, no package.

The record is in the page as JSON, and the scripts in `page/` draw it. What names hold, whoever gave
them, becomes text: here it is escaped, and the scripts write no markup. The page's own policy lets
no script or style run but ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

from regard.doctor.report.data import Record
from regard.doctor.report.terminal import summary_text
from regard.doctor.report.words import circumstances, headline, worst_of_all
from regard.measuring.files import write_atomic

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("dom.js", "findings.js", "heat.js", "charts.js", "table.js", "main.js")
# The stroke in the seal beside the verdict.
SEALS = {
    "failure": "M16 16l16 16M32 16L16 32",
    "warning": "M24 12v15M24 35v.2",
    "good": "M14 25l7 7.5L34.5 17",
    "none": "M18.5 19a5.6 5.6 0 1 1 8.4 4.8c-2 1.2-2.9 2.2-2.9 4.4M24 35v.2",
}
# In the middle of a script element these could end it.
UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


def write_html(record: Record, path: Path) -> Path:
    """Write the report; one that is there is replaced once the new one is whole.

    Raises:
        OSError: it cannot be written there.
    """
    write_atomic(path, compose(record).encode("utf-8", "replace"))
    return path


def compose(record: Record) -> str:
    """The report as HTML."""
    sentence, tone = headline(record)
    worst = html.escape(worst_of_all(record))
    style, script = style_sheet(), "(() => {\n" + "".join(map(read, SCRIPTS)) + "})();\n"
    parts = {
        "title": html.escape(f"{record.model}: {sentence}"),
        "model": html.escape(record.model),
        "tone": tone,
        "seal": SEALS[tone],
        "verdict": html.escape(sentence),
        "circumstances": html.escape(circumstances(record)),
        "worst": worst and f"<br><bdi>{worst}</bdi>",
        "text": html.escape(summary_text(record)),
        "style": style,
        "style_hash": digest(style),
        "script": script,
        "script_hash": digest(script),
        "record": record.to_text().translate(UNSAFE),
    }
    # One pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read("page.html"))


def style_sheet() -> str:
    """Light, and dark where the reader or the system wants it; on paper it is light."""
    dark = read("dark.css")
    return read("page.css") + (
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) '
        f'{{ {dark} }} }}\n@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}\n'
    )


def read(name: str) -> str:
    """A file of the page."""
    return (PAGE / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """By which the page's policy knows a script or style."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
