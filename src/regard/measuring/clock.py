"""Wall-clock time of a call, as its caller waits for it."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import torch

# A sample covers at least this many seconds, in several calls where one is shorter: the timer and
# the scheduler of the system disturb shorter ones by more than a percent.
SAMPLE_SECONDS = 0.005
MOST_CALLS = 200


def calls_per_sample(expected: float, least: float = SAMPLE_SECONDS, most: int = MOST_CALLS) -> int:
    """How many calls of `expected` seconds make a sample of at least `least` seconds."""
    return min(max(math.ceil(least / max(expected, 1e-7)), 1), most)


def clock(run: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Seconds for one of `calls` calls."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize(device)
        return (time.perf_counter() - began) / calls
    finally:
        if collecting:
            gc.enable()


def synchronize(device: torch.device) -> None:
    """Wait for a device that runs beside the program."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
