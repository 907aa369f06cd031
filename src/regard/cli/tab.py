"""What Tab runs: the words that may come next, from the real options, and without torch.

Run as a file by the script of `regard completion`, not imported: `import regard` loads torch, which
takes seconds: too long for a Tab.
"""

from __future__ import annotations

import os
import sys

from regard_command import without_torch


def main() -> int:
    """Print what fits; the exit code."""
    from click.shell_completion import shell_complete

    from regard.cli.app import group
    from regard.cli.completion import NAME, VARIABLE, register

    register()
    return shell_complete(group, {}, NAME, VARIABLE, os.environ.get(VARIABLE, ""))


if __name__ == "__main__":
    without_torch()
    sys.exit(main())
