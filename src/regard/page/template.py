"""Pages made with jinja2: every text that is put into them is escaped."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

# An option such as --quick or --steps 600, after whose hyphens a browser would break the line.
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?: \d+)?", re.ASCII)


def template(folder: Path, name: str) -> Template:
    """The template of that name, with the filters `prose` and `both`."""
    found = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"prose": prose, "both": both}
    return found.get_template(name)


def ours(text: str) -> Markup:
    """A style sheet or script of the library, which is not escaped."""
    return Markup(text)  # noqa: S704 - our own file


def prose(text: str) -> Markup:
    """The text escaped, with backticks as code elements and command options kept on one line."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', text))  # noqa: S704 - escaped


def both(text: tuple[str, str]) -> Markup:
    """The text as `prose` in English and Chinese, of which the page shows one; once if they agree."""
    en, zh = map(prose, text)
    if en == zh:
        return en
    return Markup(
        '<span class="en" lang="en">{}</span><span class="zh" lang="zh-Hans">{}</span>'
    ).format(en, zh)
