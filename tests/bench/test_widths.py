"""The script that measures what cuDNN's attention costs by width: on the CPU, at tiny sizes."""

import ast
import importlib
from pathlib import Path

import pytest
import torch

from regard.engines.sine_features.widths import COST

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("widths")


def test_it_measures_the_table_that_calls_are_planned_by(script):
    rows = script.measured(torch.device("cpu"), (1, 1, 4), turns=2)
    assert all(0 < row["low"] <= row["ms"] <= row["high"] for row in rows)
    assert [row["widths"] for row in rows[::2]] == [*COST, *script.BETWEEN]
    text = script.table(rows).removeprefix("COST = ")
    found = ast.literal_eval(text[: text.index("between:")])
    assert list(found) == list(COST) and all(len(times) == 2 for times in found.values())


def test_without_a_gpu_it_says_so(script, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["widths.py"])
    with pytest.raises(SystemExit, match="no GPU is visible"):
        script.main()
