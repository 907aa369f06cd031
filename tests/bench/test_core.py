"""What `bench`, `choose` and the scripts of `benchmarks/` share: turns, sampled rows, limits, failures."""

from __future__ import annotations

import pytest
import torch

from regard.measuring import errors, turns
from regard.measuring.failures import first_line, out_of_memory

CPU = torch.device("cpu")


def test_a_round_goes_there_and_back() -> None:
    assert turns.there_and_back("abc") == list("abccba")


def test_a_drift_of_the_machine_cancels_in_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is one second slower than the one before; both candidates cost the same."""
    clock = iter(range(1, 1000))
    monkeypatch.setattr(turns, "clock", lambda run, calls, device: float(next(clock)))
    found = turns.compare(lambda: None, lambda: 0, rounds=5)
    assert found["ratio"] == found["ratio_low"] == found["ratio_high"] == 1.0
    assert found["difference_us"] == 0.0


def test_who_is_slower_has_the_larger_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (lambda: None), (lambda: 0)
    monkeypatch.setattr(turns, "clock", lambda run, calls, device: 3.0 if run is slow else 1.0)
    found = turns.compare(slow, fast, rounds=3)
    assert (found["ratio"], found["ours_ms"], found["other_ms"]) == (3.0, 3000.0, 1000.0)


@pytest.mark.parametrize(
    ("count", "length", "rows"), [(4, 10, [0, 3, 6, 9]), (1, 5, [0]), (9, 3, [0, 1, 2])]
)
def test_sampled_rows_reach_from_the_first_to_the_last(count, length, rows) -> None:
    assert errors.spread_rows(count, length, CPU).tolist() == rows


def test_a_limit_is_never_below_a_few_roundings() -> None:
    eps = torch.finfo(torch.float32).eps
    assert errors.allowed(0.0, 2.0, torch.float32, (0.5, 8.0)) == 8 * eps
    assert errors.allowed(1.0, 2.0, torch.float32, (0.5, 8.0)) == 2.0


def test_memory_that_runs_out_is_told_apart() -> None:
    cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    assert out_of_memory(cpu) and out_of_memory(torch.OutOfMemoryError("none left"))
    assert not out_of_memory(RuntimeError("a mistake"))
    assert first_line(RuntimeError("one\ntwo")) == "RuntimeError: one"
