"""Scores of windows by a network and a memory of windows; the memory of a series.

Shape legend: M windows of the memory, N numbers of a window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.recipes.anomaly.net import WindowNet
from regard.recipes.anomaly.windows import judged, rows_of, windows_of

AT_ONCE = 1024  # windows in a call


@dataclass(frozen=True)
class Memory:
    """Windows that others attend to.

    Attributes:
        windows: (M, N).
        places: (M,) of their first points; windows nearer than their own length share points and do not attend to
            one another.
    """

    windows: Tensor
    places: Tensor

    @classmethod
    def of(cls, windows: Tensor, most: int) -> Memory:
        """At most so many of the windows (M, W, C) of one series, evenly spaced."""
        places = torch.linspace(0, len(windows) - 1, min(most, len(windows))).round().long()
        return cls(rows_of(windows, places), places.to(windows.device))

    def allowed(self, places: Tensor, width: int) -> Tensor:
        """Which windows of the memory those at these places may see."""
        return (places[:, None] - self.places).abs() >= width


def joined(series: list[Tensor], width: int, most: int) -> Memory:
    """One memory of several series (T, C), each with a part in proportion to its length.

    Places go on from series to series with a gap, so that windows of different series are never too near.
    """
    each = [windows_of(one, width) for one in series]
    starts = np.concatenate([[0], np.cumsum([len(one) + width for one in each])])
    every = np.concatenate(
        [start + np.arange(len(one)) for start, one in zip(starts, each, strict=False)]
    )
    kept = every[np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(np.int64)]
    parts = [
        rows_of(one, torch.from_numpy(kept[(kept >= start) & (kept < start + len(one))] - start))
        for start, one in zip(starts, each, strict=False)
    ]
    return Memory(torch.cat(parts), torch.from_numpy(kept).to(series[0].device))


def fitted(net: WindowNet) -> Memory:
    """The windows that a trained network keeps."""
    return Memory(net.memory, net.places)


@torch.no_grad()
def window_scores(net: WindowNet, values: Tensor, memory: Memory, start: int | None) -> np.ndarray:
    """The scores (T - W + 1,) of all windows of a standardised series (T, C): greater is stranger.

    Windows between those that are judged get interpolated scores.

    Args:
        net: gives residuals or weights.
        values: the series.
        memory: what its windows attend to.
        start: place of the series' first point among those of the memory; None for a series that is not in it.
    """
    width = net.shape.window
    windows = windows_of(values, width)
    chosen = judged(len(windows), width)
    totals = softmax_sums(net, memory) if net.shape.reading == "density" else None
    found = []
    for index in torch.from_numpy(chosen).to(values.device).split(AT_ONCE):
        allowed = None if start is None else memory.allowed(index + start, width)
        if totals is None:
            found.append(net(rows_of(windows, index), memory.windows, allowed).mean((1, 2)))
        else:
            found.append(-net.received(rows_of(windows, index), memory.windows, totals, allowed))
    scores = torch.cat(found).double().cpu().numpy()
    return np.interp(np.arange(len(windows)), chosen, scores)


@torch.no_grad()
def softmax_sums(net: WindowNet, memory: Memory) -> Tensor:
    """For each head and window of the memory the logarithm of the sum in its softmax over the others (H, M)."""
    allowed = memory.allowed(memory.places, net.shape.window)
    logits = net.logits(memory.windows, memory.windows)
    return logits.masked_fill(~allowed, -torch.inf).logsumexp(-1)
