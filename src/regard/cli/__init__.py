"""The command line. `regard --help` says what there is.

click, rich and matplotlib are an extra: this module needs only the standard library, and says how
to install the rest where it is missing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

NEEDS = ("click", "rich", "matplotlib")
INSTALL = "pip install 'regard[cli]'"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the entry point of `regard`."""
    try:
        group = load()
    except KeyboardInterrupt:  # loading torch takes a second
        raise SystemExit(130) from None
    group.main(args=arguments, prog_name="regard")


def load() -> click.Group:
    """The root of all commands, or one sentence about the package that it lacks."""
    try:
        for package in NEEDS:
            importlib.import_module(package)
    except ImportError as error:
        missing = error.name or "a package"
        print(f"regard: the command line needs {missing}: {INSTALL}", file=sys.stderr)
        raise SystemExit(1) from None
    from regard.cli.app import group

    return group
