"""`WindowNet`: windows of a series attend to other windows of it.

Shape legend: B windows that are judged, M windows of the memory, W points of a window, C channels, N = W * C numbers of
a window, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import regard
from regard import Mask, Projected, Score
from regard.recipes.equal import MEAN, EqualWeights
from regard.scores.lookup import make_score

Reading = Literal["reconstruction", "forecast", "density"]
Asking = Literal["context", "global"]
READINGS = ("reconstruction", "forecast", "density")
ASKINGS = ("context", "global")
AHEAD = 4  # a forecast sees all of a window but the last W / AHEAD points, which it predicts


@dataclass(frozen=True)
class NetShape:
    """Sizes of a network.

    Attributes:
        window: points of a window.
        channels: of the series.
        width: of the projections of each head.
        heads: whose outputs are averaged.
        sharpness: factor on the projections at the start.
        reading: what the weights are used for.
        asking: where the query comes from.
    """

    window: int
    channels: int
    width: int
    heads: int
    sharpness: float
    reading: Reading
    asking: Asking

    @property
    def ahead(self) -> int:
        """Points at the end of a window that queries and keys do not see."""
        return max(self.window // AHEAD, 1) if self.reading == "forecast" else 0

    @property
    def seen(self) -> int:
        """Numbers of a window that queries and keys see."""
        return (self.window - self.ahead) * self.channels


class WindowNet(nn.Module):
    """Attention of windows over a memory of windows; the value of a window is the window itself.

    A query made from the window that is judged depends on its context; a global query is one learned vector, the same
    for all windows. Projections of queries and keys start equal, as a random rotation: at the start alike windows
    attend to one another, and without training a Gaussian score is kernel regression.

    Args:
        score: a name, a `Score`, None for scaled dot, or "mean" for equal weights.
        shape: sizes.
        kept: windows of the training that live data attend to.

    Attributes:
        memory, places: these windows (M, N) and the places (M,) of their first points.
    """

    def __init__(self, score: str | Score | None, shape: NetShape, kept: int) -> None:
        super().__init__()
        self.shape = shape
        inner = EqualWeights() if score == MEAN else make_score(score, shape.width, shape.heads)
        width = shape.width if inner.width is None else None
        self.score = Projected(inner, shape.seen, shape.seen, width=width, heads=shape.heads)
        start = nn.init.orthogonal_(torch.empty_like(self.score.key_weight))
        with torch.no_grad():
            for weight in (self.score.query_weight, self.score.key_weight):
                weight.copy_(shape.sharpness * start)
        self.question = None
        if shape.asking == "global":
            self.question = nn.Parameter(torch.zeros(1, shape.seen))
        self.register_buffer("memory", torch.zeros(kept, shape.window * shape.channels))
        self.register_buffer("places", torch.zeros(kept, dtype=torch.int64))

    memory: Tensor
    places: Tensor

    def sides(self, windows: Tensor) -> Tensor:
        """What queries and keys see of windows (B, N): (1, 1, B, seen)."""
        return windows[:, : self.shape.seen][None, None]

    def queries(self, windows: Tensor) -> Tensor:
        """The queries of windows (1, 1, B, seen): of themselves, or the global one."""
        if self.question is None:
            return self.sides(windows)
        return self.question.expand(len(windows), -1)[None, None]

    def forward(self, windows: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        """The squared residual (B, points, C) of each window: what its attended neighbours do not explain.

        Args:
            windows: (B, N) to judge.
            memory: (M, N) to attend to.
            allowed: (B, M) which windows of the memory each may see; None for all.
        """
        mask = None if allowed is None else Mask.dense(allowed).over_finite()
        first = self.shape.seen if self.shape.ahead else 0
        value = memory[:, first:].expand(1, self.shape.heads, -1, -1)
        out = regard.attention(
            self.queries(windows), self.sides(memory), value, self.score, mask=mask
        )
        residual = (out.mean((0, 1)) - windows[:, first:]) ** 2
        return residual.unflatten(1, (-1, self.shape.channels))

    def logits(self, windows: Tensor, memory: Tensor) -> Tensor:
        """The scores (H, B, M) before the softmax."""
        return regard.score(self.queries(windows), self.sides(memory), self.score)[0]

    def weights(self, windows: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        """The weights (B, M) of the memory, the mean over heads."""
        logits = self.logits(windows, memory)
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        return logits.softmax(-1).mean(0)

    def received(
        self, windows: Tensor, memory: Tensor, totals: Tensor, allowed: Tensor | None
    ) -> Tensor:
        """The logarithm of the mean weight (B,) that the memory would give to each window, if it joined the keys.

        Args:
            windows: (B, N) to judge, as keys.
            memory: (M, N), as queries.
            totals: (H, M) the logarithm of the softmax' sum of each window of the memory.
            allowed: (B, M) which windows of the memory are asked.
        """
        logits = self.logits(memory, windows)
        shares = logits - torch.logaddexp(totals.unsqueeze(-1), logits)
        count = torch.tensor(float(len(memory)))
        if allowed is not None:
            shares = shares.masked_fill(~allowed.T, -torch.inf)
            count = allowed.sum(1).clamp(min=1).to(shares)
        return shares.logsumexp(-2).mean(0) - count.log().to(shares)
