"""A few thousand random calls, others every day: no wrong number, no unclear error."""

from __future__ import annotations

import datetime

import pytest

from regard.testing.fuzz.runner import NUMBERS, run_cases

SEED = int(datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))
CALLS, CHUNKS = 2000, 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_calls_of_the_day_are_right(chunk: int) -> None:
    """The seed is the day: a failure names the case, which any other day runs again."""
    size = CALLS // CHUNKS
    first = SEED * NUMBERS + chunk * size
    tally = run_cases(range(first, first + size))
    assert tally.calls == size
    told = [
        f"python -m regard.testing.fuzz --case {failure['case']}: {failure['smaller']} "
        f"{failure['still']}"
        for failure in tally.failures
    ]
    assert not told, "\n".join(told)
