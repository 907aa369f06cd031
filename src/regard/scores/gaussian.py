"""The Gaussian kernel: attention as Nadaraya-Watson smoothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.forms import Form, InnerKey, InnerQuery
from regard.mask import Mask
from regard.scores.base import InnerScore, check_positive, per_head


def mean_key(k: Tensor, mask: Mask | None) -> Tensor:
    """The mean of the finite keys that are not padding, (*, K, 1, d), without gradient."""
    work = k.detach()
    seen = work.isfinite().all(-1, keepdim=True)
    if mask is not None:
        seen = seen & mask.real_keys(k.shape[-2], k.device).unsqueeze(-1)
    work = torch.where(seen, work, 0).to(torch.float64 if k.dtype.itemsize > 4 else torch.float32)
    return (work.sum(-2, keepdim=True) / seen.sum(-2, keepdim=True).clamp(min=1)).to(k.dtype)


class Gaussian(InnerScore):
    """The logarithm of a Gaussian kernel of bandwidth h.

    Formula: `s(q, k) = -|q - k|^2 / (2 h^2)`
    lowered as `<q, k> / h^2 - |q|^2 / (2 h^2) - |k|^2 / (2 h^2)`.

    Args:
        bandwidth: h; default `d ** 0.25`, at which unit vectors score as scaled dot does, up to a
            constant.
        heads: key heads that learn a factor on h each; None for no parameters.

    Parameters: heads (factors, as logarithms starting at 0). Dims: query dim == key dim.
    Cost for each pair: d multiply-adds, as a matrix product.

    The squares cancel badly far from the origin, so `lower` subtracts the mean of the visible keys
    from both sides first: the score is of the difference alone.
    """

    name = "gaussian"

    def __init__(self, bandwidth: float | None = None, heads: int | None = 1) -> None:
        super().__init__()
        if bandwidth is not None:
            check_positive(bandwidth=bandwidth)
        self.bandwidth = bandwidth
        self.log_factor = None if heads is None else nn.Parameter(torch.zeros(heads))

    def precision(self, x: Tensor, side: str) -> Tensor | float:
        """`1 / h^2`, for each head (heads, 1, 1) where it is learned."""
        width = self.bandwidth or max(x.shape[-1], 1) ** 0.25
        if self.log_factor is None:
            return width**-2
        return torch.exp(-2 * per_head(self.log_factor, x.shape[-3], side, self)) * width**-2

    def half_square(self, x: Tensor, precision: Tensor | float) -> Tensor:
        """`-|x|^2 / (2 h^2)`, in fp32 for half-precision inputs, whose squares overflow."""
        work = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return (-0.5 * precision * work.square().sum(-1, keepdim=True)).squeeze(-1)

    def query(self, q: Tensor) -> InnerQuery:
        """`phi = q / h^2` and the square of the query."""
        precision = self.precision(q, "query")
        alpha = self.half_square(q, precision)
        if isinstance(precision, float):
            return InnerQuery(q, alpha, scale=precision)
        return InnerQuery(q * precision.to(q.dtype), alpha)

    def key(self, k: Tensor) -> InnerKey:
        """The key and its square."""
        return InnerKey(k, self.half_square(k, self.precision(k, "key")))

    def lower(self, q: Tensor, k: Tensor, mask: Mask | None = None) -> Form:
        """Move the origin to the mean of the visible keys, then lower."""
        if q.shape[-1] == k.shape[-1]:
            center = mean_key(k, mask)
            group = max(q.shape[-3] // k.shape[-3], 1)
            q, k = q - center.repeat_interleave(group, -3), k - center
        return super().lower(q, k)

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Logits grow with `h^-2`."""
        if self.log_factor is None or self.log_factor.shape != factor.shape:
            super().rescale_(factor)
        else:
            self.log_factor.sub_(0.5 * factor.log())
