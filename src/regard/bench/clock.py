"""One sample of a time: by events on a GPU, by the wall on the CPU.

On a GPU there are two times: that of the GPU's own work (`sample`, of a recorded call that is
replayed), and what a caller waits for, Python and launches included (`eager`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch

from regard.measuring.clock import clock

# A sample covers at least this many seconds, in several calls where one is shorter.
SAMPLE_SECONDS = 0.005
MOST_CALLS = 200
# More than the second-level cache of any GPU so far.
FLUSH_BYTES = 2**28


class Stopwatch:
    """Times calls on a device.

    Args:
        small: calls follow one another with caches as they leave them, and the eager time is by the
            wall; else the cache is emptied before each call, and it is by events.
    """

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device, self.small = device, small
        self.on_gpu = device.type == "cuda"
        size = FLUSH_BYTES if self.on_gpu and not small else 0
        self.flush = torch.empty(size, dtype=torch.int8, device=device)

    def first(self, run: Callable[[], object]) -> float:
        """Seconds of one call, for planning."""
        return clock(run, 1, self.device)

    def sample(self, run: Callable[[], object], expected: float) -> float:
        """Seconds of a call: the device's on a GPU."""
        calls = how_many(expected)
        return self.by_events(run, calls) if self.on_gpu else clock(run, calls, self.device)

    def eager(self, run: Callable[[], object], expected: float) -> float:
        """Seconds that a caller waits for a call."""
        calls = how_many(expected)
        return clock(run, calls, self.device) if self.small else self.by_events(run, calls)

    def by_events(self, run: Callable[[], object], calls: int) -> float:
        """The mean of calls in a row, or the median of calls with an empty cache."""
        each = calls if self.small else 1
        pairs = []
        for _ in range(calls // each):
            # Filling the cache also keeps the GPU busy until the call is launched.
            self.flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(each):
                run()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize(self.device)
        return statistics.median(1e-3 * start.elapsed_time(end) / each for start, end in pairs)


def how_many(expected: float) -> int:
    """Calls in one sample."""
    return min(max(math.ceil(SAMPLE_SECONDS / max(expected, 1e-7)), 1), MOST_CALLS)
