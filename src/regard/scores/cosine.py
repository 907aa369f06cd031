"""The cosine of the angle between query and key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import check_positive, check_sizes
from regard.forms import InnerKey, InnerQuery
from regard.precision import widened
from regard.scores.base import InnerScore, per_head


def unit(x: Tensor, eps: float = 0.0) -> Tensor:
    """`x / max(|x|, eps)` along the last dim, correct for norms from 1e-38 to 1e38, and 0 at 0.

    `x` is divided by its largest entry before its norm is taken, so that squares neither overflow nor
    underflow (`torch.nn.functional.normalize` gives a norm of 0 at 1e20 and of 1e-18 at 1e-30). At the
    zero vector value and gradient are 0. Near it the gradient grows as 1 / |x|, unless `eps` bounds it.
    """
    work = widened(x)
    peak = work.detach().abs().amax(-1, keepdim=True) if x.shape[-1] else work.new_ones(())
    zero = peak < torch.finfo(work.dtype).tiny
    # Two factors: 1 / peak itself may overflow where peak is tiny.
    scaled = work / torch.where(zero, 1.0, peak)
    norm = scaled.square().sum(-1, keepdim=True)
    norm = torch.where(zero, 1.0, norm).sqrt()
    if eps:
        norm = torch.maximum(norm, eps / torch.where(zero, 1.0, peak))
    return torch.where(zero, 0.0, scaled / norm).to(x.dtype)


class Cosine(InnerScore):
    """The cosine between query and key, times a scale.

    Formula: `s(q, k) = gain_h * scale * <q, k> / (|q| |k|)`

    Args:
        heads: number of query heads, each of which learns a gain; None for no parameters.
        scale: default `sqrt(d)`, which gives scores of variance 1 for isotropic inputs.
        eps: the smallest norm to divide by; with 0 the score does not depend on norms at all.

    Parameters: heads (the gains, starting at 1). Dims: query dim == key dim.
    Cost for each pair: d multiply-adds, as a matrix product.
    """

    name = "cosine"

    def __init__(self, heads: int | None = 1, scale: float | None = None, eps: float = 0.0) -> None:
        super().__init__()
        check_sizes(heads=heads)
        check_positive(optional=True, scale=scale)
        if eps < 0:
            raise ValueError(f"eps must be 0 or more, got {eps!r}")
        self.scale, self.eps, self.heads = scale, eps, heads
        self.gain = None if heads is None else nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gains to 1."""
        if self.gain is not None:
            nn.init.ones_(self.gain)

    @classmethod
    def without_parameters(cls) -> Cosine:
        """The cosine without gains."""
        return cls(heads=None)

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> Cosine:
        """A gain for each query head."""
        return cls(heads)

    def arguments(self) -> dict[str, object]:
        """Heads, scale and eps."""
        return {"heads": self.heads, "scale": self.scale, "eps": self.eps}

    def query(self, q: Tensor) -> InnerQuery:
        """The unit query times its head's gain."""
        phi = unit(q, self.eps)
        if self.gain is not None:
            phi = phi * per_head(self.gain, q.shape[-3], "query", self).to(q.dtype)
        return InnerQuery(phi, scale=self.scale or max(q.shape[-1], 1) ** 0.5)

    def key(self, k: Tensor) -> InnerKey:
        """The unit key."""
        return InnerKey(unit(k, self.eps))

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Logits are linear in the gain."""
        if self.gain is None:
            super().rescale_(factor)
        else:
            self.gain.mul_(factor)
