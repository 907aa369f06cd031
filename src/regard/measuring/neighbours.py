"""A load beside a measurement: how calls fare when other programs want the same cores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It ends with the process that started it, also where that one is killed.
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Other processes, as many as `count`, that do nothing but keep a core busy each."""
    command = [sys.executable, "-c", BUSY]
    busy = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603 # the text above
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
