"""The script that measures the series through the wide kernels: on the CPU, at tiny sizes."""

import importlib
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU, SIZES = torch.device("cpu"), (2, 2, 16)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = importlib.import_module("wide")
    monkeypatch.setattr(found, "ROUNDS", 1)
    return found


def test_every_row_is_measured_and_a_failure_is_a_row(script, monkeypatch):
    rows = {name: script.ROWS[name] for name in ("fast, 64 units", "unasked, 16 units, lengths")}
    rows["unasked, 16 units"] = script.ROWS["unasked, 16 units"]._replace(hidden=0)
    monkeypatch.setattr(script, "ROWS", rows)
    results = script.all_rows(CPU, SIZES)["results"]
    good = results["fast, 64 units"]
    assert good["engine"] == "sine" and max(good["errors"].values()) < 0.02
    assert good["over dot: forward, eager"] > 0
    assert "failed" in results["unasked, 16 units"]
    lines = script.table(results).splitlines()
    assert len(lines) == 1 + len(results) and "failed: " in lines[-1]


def test_errors_are_against_fp64(script):
    call = script.Call(script.Row(16, causal=True, lengths=True), CPU, SIZES)
    found = call.errors()
    assert set(found) == {"output", "a", "b", "value"} and all(0 < x < 0.01 for x in found.values())
    seen = call.seen(16)
    assert not seen.triu(1).any() and not seen[12:].any() and seen[5, :6].all()


def test_without_a_gpu_it_says_so(script, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["wide.py"])
    with pytest.raises(SystemExit, match="no GPU is visible"):
        script.main()
