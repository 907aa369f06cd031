"""The command line `regard`: arguments, help, completion and exit codes.

click, rich and matplotlib are an extra. This module needs only the standard library, and says how to
install them if they are missing.

A verb is a row in `app.VERBS` and a file of its name here. Its work is done in the package that it calls.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from regard.cli.streams import outlive_readers

if TYPE_CHECKING:
    import click

NEEDS = ("click", "rich", "matplotlib")
INSTALL = "pip install 'regard[cli]'"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the entry point of `regard`."""
    try:
        group = load()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    outlive_readers()
    group.main(args=arguments, prog_name="regard")


def load() -> click.Group:
    """The root command; exits with one sentence if a package that it needs is missing."""
    for package in NEEDS:
        if importlib.util.find_spec(package) is None:
            print(f"regard: the command line needs {package}: {INSTALL}", file=sys.stderr)
            raise SystemExit(1)
    from regard.cli.app import group

    return group
