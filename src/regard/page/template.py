"""Pages by jinja2: everything put into them is escaped."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

# Such as --quick or --steps 600: a browser would end a line behind the hyphens.
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?: \d+)?", re.ASCII)


def template(folder: Path, name: str) -> Template:
    """A template of ours; the filters `prose` and `both` write text into it."""
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
    """A style sheet or script of ours, as it is."""
    return Markup(text)  # noqa: S704 - our own file


def prose(text: str) -> Markup:
    """Escaped, with what stands between backticks as code, and options of commands in one piece."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', text))  # noqa: S704 - escaped


def both(text: tuple[str, str]) -> Markup:
    """English and Chinese as `prose`, of which the page shows one; once where they are the same."""
    en, zh = map(prose, text)
    if en == zh:
        return en
    return Markup(
        '<span class="en" lang="en">{}</span><span class="zh" lang="zh-Hans">{}</span>'
    ).format(en, zh)
