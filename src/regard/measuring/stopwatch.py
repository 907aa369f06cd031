"""One sample of a time: from events on a GPU, from the wall clock on the CPU.

A GPU has two times: that of the GPU's own work (`sample`, of a recorded call that is replayed), and
the time a caller waits, Python and launches included (`eager`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from regard.measuring.clock import calls_per_sample, clock

# Larger than the L2 cache of any GPU so far (50 MB on an H200), so that zeroing it evicts the inputs.
FLUSH_BYTES = 2**28


class Stopwatch:
    """Times calls on a device.

    Args:
        small: calls follow one another with warm caches, and the eager time is wall-clock time.
            Otherwise the L2 cache is flushed before each call, and the eager time is from events.
    """

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device, self.small = device, small
        self.on_gpu = device.type == "cuda"
        size = FLUSH_BYTES if self.on_gpu and not small else 0
        self.flush = torch.empty(size, dtype=torch.int8, device=device)

    def first(self, run: Callable[[], object]) -> float:
        """Seconds of one call, to plan rounds by."""
        return clock(run, 1, self.device)

    def sample(self, run: Callable[[], object], expected: float) -> float:
        """Seconds of a call; on a GPU, of its own work."""
        calls = calls_per_sample(expected)
        return self.by_events(run, calls) if self.on_gpu else clock(run, calls, self.device)

    def eager(self, run: Callable[[], object], expected: float) -> float:
        """Seconds that a caller waits for a call."""
        calls = calls_per_sample(expected)
        return clock(run, calls, self.device) if self.small else self.by_events(run, calls)

    def by_events(self, run: Callable[[], object], calls: int) -> float:
        """Seconds of a call from CUDA events: the mean of calls in a row, or the median after flushes."""
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
