"""What the HTML pages of the library share: looks, light and dark, copying, and their policy.

Every page is one file that needs nothing else and opens from disk. The doctor makes its page with the
standard library alone, so this file imports nothing more; `template.py` is for pages by jinja2,
`drawing.py` for drawings by matplotlib inside a page.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent


def read(folder: Path, name: str) -> str:
    """A source of a page."""
    return (folder / name).read_text(encoding="utf-8")


def style_sheet(folder: Path, name: str, dark: str | None = None) -> str:
    """The shared sheet and a page's own; dark where the reader or the system wants it, light on paper.

    Args:
        folder: of the page's sources.
        name: of its sheet.
        dark: the file with what the page adds to the dark colours.
    """
    night = read(FOLDER, "dark.css") + ("" if dark is None else read(folder, dark))
    wish = f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {night} }} }}\n'
    choice = f'@media screen {{ :root[data-theme="dark"] {{ {night} }} }}\n'
    return read(FOLDER, "base.css") + read(folder, name) + wish + choice


def script(*parts: str) -> str:
    """The shared script and a page's own, in a scope that leaves no name behind."""
    return '"use strict";\n(() => {\n' + read(FOLDER, "base.js") + "".join(parts) + "})();\n"


def policy(script: str, style: str | None = None) -> str:
    """What the page may do: run this script, use this style or any inside it, and fetch nothing."""
    looks = "'unsafe-inline'" if style is None else digest(style)
    return (
        f"default-src 'none'; style-src {looks}; script-src {digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """By which a policy knows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
