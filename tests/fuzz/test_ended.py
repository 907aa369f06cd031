"""A fuzzer that is ended takes its workers with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
def test_a_fuzzer_that_is_ended_leaves_no_worker() -> None:
    command = [sys.executable, "-m", "regard.testing.fuzz", "--calls", "1000000", "--jobs", "1"]
    fuzzer = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        wait_for(
            lambda: len(children(fuzzer.pid)) >= 2
        )  # the worker, and Python's tracker of resources
        fuzzer.send_signal(signal.SIGTERM)
        assert fuzzer.wait(60) == 128 + signal.SIGTERM
        wait_for(lambda: not group_lives(fuzzer.pid))
    finally:
        if group_lives(fuzzer.pid):
            os.killpg(fuzzer.pid, signal.SIGKILL)
        fuzzer.wait()


def children(process: int) -> list[str]:
    """The numbers of the processes that a process started."""
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    except FileNotFoundError:
        return []


def group_lives(group: int) -> bool:
    """Whether a process of this group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(is_so, seconds: float = 120.0) -> None:
    """Return as soon as it is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
