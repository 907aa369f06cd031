"""Wall-clock time of a call: what its caller waits for, Python overhead included. Also time that was worked."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")
# Shortest sample. Timer resolution and the operating system's scheduler disturb shorter samples by more
# than 1%, so a call that is shorter is repeated until the sample is this long.
SAMPLE_SECONDS = 0.005
# Most calls in one sample, so that a very short call does not make a sample of 50,000 calls.
MOST_CALLS = 200


def calls_per_sample(expected: float, least: float = SAMPLE_SECONDS, most: int = MOST_CALLS) -> int:
    """Number of calls, each of `expected` seconds, that make a sample of at least `least` seconds."""
    return min(max(math.ceil(least / max(expected, 1e-7)), 1), most)


def clock(run: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Mean seconds of one call over `calls` calls in a row."""
    # A garbage collection in the middle of a sample would be charged to the candidate that it hits.
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
    """Wait until a CUDA device has finished its queue; its calls return before their work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def worked(device: torch.device = CPU) -> float:
    """Seconds on a clock that counts this thread's work where it works alone, on a CPU with one thread; else all time.

    Comparisons run one such process for each core. By the wall, a row would be charged for whatever else ran beside it.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time() if alone else time.perf_counter()
