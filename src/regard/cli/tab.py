"""Prints the completions for a press of Tab, from the commands' own options, without torch.

The script of `regard completion` runs this file by its path. Importing it as `regard.cli.tab` would first
import `regard` and with it torch, which takes seconds.
"""

from __future__ import annotations

import os
import sys

from regard_command import without_torch


def main() -> int:
    """Print the completions; return the exit code."""
    from click.shell_completion import shell_complete

    from regard.cli.app import group
    from regard.cli.completion import NAME, VARIABLE, register

    register()
    return shell_complete(group, {}, NAME, VARIABLE, os.environ.get(VARIABLE, ""))


if __name__ == "__main__":
    without_torch()
    sys.exit(main())
