"""Shared parts of the library's HTML pages: style, light and dark, scripts, and the security policy.

Every page is one file that opens from disk and fetches nothing. The doctor makes its page with the standard
library alone, so this file imports nothing else. `template.py` is for pages made with jinja2, `drawing.py`
for drawings by matplotlib inside a page. `markdown.py` is for pages of docs/.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent


def read(folder: Path, name: str) -> str:
    """The text of a source file of a page."""
    return (folder / name).read_text(encoding="utf-8")


def style_sheet(folder: Path, name: str, dark: str | None = None) -> str:
    """The shared style sheet followed by the page's own.

    The page is dark if the reader or the system chose that, and always light in print.

    Args:
        folder: of the page's sources.
        name: of its style sheet.
        dark: the file with the page's own dark colours, if it has any.
    """
    night = read(FOLDER, "dark.css") + ("" if dark is None else read(folder, dark))
    wish = f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {night} }} }}\n'
    choice = f'@media screen {{ :root[data-theme="dark"] {{ {night} }} }}\n'
    return read(FOLDER, "base.css") + read(folder, name) + wish + choice


def script(*parts: str) -> str:
    """The shared script followed by the page's own, in a function, so that no global names remain."""
    return '"use strict";\n(() => {\n' + read(FOLDER, "base.js") + "".join(parts) + "})();\n"


def policy(script: str, style: str | None = None) -> str:
    """The content security policy: run this script, use this style (None: any inline), fetch nothing."""
    looks = "'unsafe-inline'" if style is None else digest(style)
    return (
        f"default-src 'none'; style-src {looks}; script-src {digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """The hash by which a content security policy allows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
