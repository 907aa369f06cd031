"""Writes the options of every command into `docs/cli.md`: `python -m regard.cli.page docs/cli.md`.

They go between the marks `<!-- options: choose -->` and `<!-- end -->`. A test checks that the page is up
to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from regard.cli.app import group

BLOCK = re.compile(r"<!-- options: (?P<path>.+?) -->\n.*?<!-- end -->", re.DOTALL)


def commands(
    command: click.Command = group, parent: click.Context | None = None
) -> Iterator[click.Context]:
    """The contexts of all commands except the root."""
    ctx = click.Context(command, info_name=command.name if parent else "regard", parent=parent)
    if parent is not None:
        yield ctx
    if isinstance(command, click.Group):
        names = command.list_commands(ctx)
        # All recipes have the same commands: the page shows those of one.
        for name in names[:1] if getattr(command, "alike", False) else names:
            found = command.get_command(ctx, name)
            assert found is not None
            yield from commands(found, ctx)


def options(ctx: click.Context) -> str:
    """The options of a command as a Markdown list."""
    params = [x for x in ctx.command.get_params(ctx) if isinstance(x, click.Option)]
    records = [x.get_help_record(ctx) for x in params if "--help" not in x.opts]
    return "\n".join(f"- `{x[0]}`: {x[1]}" for x in records if x is not None)


def blocks() -> dict[str, str]:
    """The text between the marks, by command."""
    return {ctx.command_path: found for ctx in commands() if (found := options(ctx))}


def written(page: str) -> str:
    """The page with its lists of options replaced."""
    found = blocks()

    def anew(block: re.Match[str]) -> str:
        path = block["path"]
        return f"<!-- options: {path} -->\n\n{found[path]}\n\n<!-- end -->"

    return BLOCK.sub(anew, page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
