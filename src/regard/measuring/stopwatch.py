"""Single samples of the time of a call: from CUDA events on a GPU, from the wall clock on the CPU.

A call on a GPU has two times: that of the GPU's own work (`sample`, taken from a replayed recording), and
the time its caller waits, including Python and kernel launches (`eager`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from regard.measuring.clock import calls_per_sample, clock

# 256 MiB, more than the L2 cache of current GPUs (50 MB on an H200), so zeroing it evicts the inputs.
FLUSH_BYTES = 2**28


class Stopwatch:
    """Times calls on a device.

    Args:
        device: where the calls run.
        small: if true, calls follow one another with warm caches, and the eager time is wall-clock
            time. If false, the L2 cache is flushed before each call, and the eager time comes from
            events.
    """

    def __init__(self, device: torch.device, small: bool) -> None:
        self.device, self.small = device, small
        self.on_gpu = device.type == "cuda"
        size = FLUSH_BYTES if self.on_gpu and not small else 0
        self.flush = torch.empty(size, dtype=torch.int8, device=device)

    def first(self, run: Callable[[], object]) -> float:
        """Seconds of one call: an estimate for choosing the number of calls and rounds."""
        return clock(run, 1, self.device)

    def sample(self, run: Callable[[], object], expected: float) -> float:
        """Seconds of a call; on a GPU those of the GPU's work alone."""
        calls = calls_per_sample(expected)
        return self.by_events(run, calls) if self.on_gpu else clock(run, calls, self.device)

    def eager(self, run: Callable[[], object], expected: float) -> float:
        """Seconds that the caller waits for a call."""
        calls = calls_per_sample(expected)
        return clock(run, calls, self.device) if self.small else self.by_events(run, calls)

    def by_events(self, run: Callable[[], object], calls: int) -> float:
        """Seconds of a call from CUDA events.

        For small calls the mean over calls in a row; otherwise the median over calls after a flush each.
        """
        each = calls if self.small else 1
        pairs = []
        for _ in range(calls // each):
            # Zeroing the buffer also keeps the GPU busy until the call is launched, so that the time
            # between the events does not include the launch.
            self.flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(each):
                run()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize(self.device)
        return statistics.median(1e-3 * start.elapsed_time(end) / each for start, end in pairs)
