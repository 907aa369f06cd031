"""The README's numbers are those of the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_tables_are_up_to_date():
    command = [sys.executable, str(ROOT / "benchmarks" / "readme.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run `make bench`, or the script"
