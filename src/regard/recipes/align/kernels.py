"""Hard DTW of many matrices of costs at once. aeon has it for series, tslearn for one matrix at a time."""

from __future__ import annotations

import numpy as np

from regard.engines.native import kernel


@kernel
def path_costs(costs: np.ndarray, allowed: np.ndarray, out: np.ndarray) -> None:
    """The cost of the cheapest path through each matrix (B, T, U), by cells where `allowed` (T, U) is true."""
    count, rows, columns = costs.shape
    before, now = np.empty(columns + 1), np.empty(columns + 1)
    for b in range(count):
        before[:] = np.inf
        before[0] = 0.0
        for t in range(rows):
            now[0] = np.inf
            for u in range(columns):
                least = min(before[u], before[u + 1], now[u])
                now[u + 1] = costs[b, t, u] + least if allowed[t, u] else np.inf
            before, now = now, before
        out[b] = before[columns]
