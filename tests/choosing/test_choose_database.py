"""One study in a real database, shared by two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .known import small, trials

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from known import small
small(sys.argv[2], resume=True, seeds=3)
"""


@pytest.mark.slow
def test_postgresql_on_the_loopback(tmp_path: Path) -> None:
    pgserver = pytest.importorskip("pgserver")
    server = pgserver.get_server(tmp_path / "database")
    try:
        url = server.get_uri()
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), url]
        # One after the other to make the tables, then both at once.
        first = small(url, resume=True, seeds=3, name="first")
        assert first.seeds == [1, 2, 3]
        other = subprocess.Popen(command, stderr=subprocess.PIPE)
        verdict = small(url, resume=True, seeds=3, jobs=2)
        _, said = other.communicate(timeout=300)
        assert other.returncode == 0, said.decode()
        assert verdict.seeds == [1, 2, 3]
        done = [t for t in trials(url, "choose/final") if t.state.name == "COMPLETE"]
        cells = [(t.params["candidate"], t.params["seed"]) for t in done]
        assert len(cells) == len(set(cells)) == 6
        again = small(url, resume=True, seeds=3)
        assert [row.quality for row in again.rows] == [row.quality for row in verdict.rows]
    finally:
        server.cleanup()
