"""The Gaussian kernel: attention as Nadaraya-Watson smoothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.arguments import check_positive, check_sizes
from regard.forms import Form, InnerKey, InnerQuery
from regard.precision import widened
from regard.scores.base import InnerScore, check_dim, per_head

# Number of keys whose median is the origin. It is odd, so that each median is an entry of a key.
SAMPLE = 31


def middle_key(k: Tensor, real: Tensor | None) -> Tensor:
    """A point among the keys, (*, K, 1, d), without gradient: the median of 31 of them.

    One distant key would move a mean far away from all the others; it hardly moves a median.
    """
    k, step = k.detach(), torch.linspace(0, 1, SAMPLE, device=k.device)
    if real is None:
        # The nearest key, not the one before: of few keys the first would be half of the sample.
        index = (step * (k.shape[-2] - 1) + 0.5).long().clamp(max=k.shape[-2] - 1)
        sample = k.index_select(-2, index)
    else:
        # Evenly spaced among the real keys. The n-th real key is where their running count reaches n.
        rank = real.long().cumsum(-1)
        wanted = 1 + (step * (rank[..., -1:] - 1).clamp(min=0) + 0.5).long()
        index = torch.searchsorted(rank, wanted).clamp(max=k.shape[-2] - 1)
        index = index.unsqueeze(-1).expand(*k.shape[:-2], SAMPLE, k.shape[-1])
        sample = k.gather(-2, index)
    middle = sample.sort(-2).values[..., SAMPLE // 2, :].unsqueeze(-2)
    return torch.where(middle.isfinite(), middle, 0)


class Gaussian(InnerScore):
    """The logarithm of a Gaussian kernel of bandwidth h.

    Formula: `s(q, k) = -|q - k|^2 / (2 h^2)`
    lowered as `<q, k> / h^2 - |q|^2 / (2 h^2) - |k|^2 / (2 h^2)`.

    Args:
        bandwidth: h; default `d ** 0.25`, for which unit vectors get the scores of scaled dot plus a
            constant.
        heads: number of key heads, each of which learns a factor on h; None for no parameters.

    Parameters: heads (factors, as logarithms starting at 0). Dims: query dim == key dim.
    Cost for each pair: d multiply-adds, as a matrix product.

    Far from the origin the three terms cancel and lose precision. So a point among the keys is
    subtracted from queries and keys first, which leaves `q - k` as it is. Keys that are lowered ahead of a
    call carry this point as their `origin`.
    """

    name = "gaussian"

    def __init__(self, bandwidth: float | None = None, heads: int | None = 1) -> None:
        super().__init__()
        check_positive(optional=True, bandwidth=bandwidth)
        check_sizes(heads=heads)
        self.bandwidth, self.key_heads = bandwidth, heads
        self.log_factor = None if heads is None else nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factors to 1."""
        if self.log_factor is not None:
            nn.init.zeros_(self.log_factor)

    @classmethod
    def without_parameters(cls) -> Gaussian:
        """The kernel without learned factors."""
        return cls(heads=None)

    @classmethod
    def for_width(cls, width: int, heads: int, key_heads: int) -> Gaussian:
        """A factor for each key head."""
        return cls(heads=key_heads)

    def arguments(self) -> dict[str, object]:
        """Bandwidth and heads."""
        return {"bandwidth": self.bandwidth, "heads": self.key_heads}

    def precision(self, x: Tensor, side: str) -> Tensor | float:
        """`1 / h^2`: a number, or (heads, 1, 1) if it is learned."""
        width = self.bandwidth or max(x.shape[-1], 1) ** 0.25
        if self.log_factor is None:
            return width**-2
        return torch.exp(-2 * per_head(self.log_factor, x.shape[-3], side, self)) * width**-2

    def half_square(self, x: Tensor, precision: Tensor | float) -> Tensor:
        """`-|x|^2 / (2 h^2)`, in fp32 for half-precision inputs, whose squares overflow."""
        work = widened(x)
        return (-0.5 * precision * work.square().sum(-1, keepdim=True)).squeeze(-1)

    def query(self, q: Tensor) -> InnerQuery:
        """`phi = q / h^2` and the square of the query."""
        precision = self.precision(q, "query")
        alpha = self.half_square(q, precision)
        if isinstance(precision, float):
            return InnerQuery(q, alpha, scale=precision)
        return InnerQuery(q * precision.to(q.dtype), alpha)

    def query_at(self, q: Tensor, origin: Tensor) -> InnerQuery:
        """As `query`, with the origin subtracted."""
        groups = q.shape[-3] // max(origin.shape[-3], 1)
        if q.shape[-1] != origin.shape[-1] or groups * origin.shape[-3] != q.shape[-3]:
            return self.query(q)  # the shapes do not fit: `join` raises the error
        return self.query(q - origin.repeat_interleave(groups, -3))

    def key(self, k: Tensor) -> InnerKey:
        """The key and its square, with a point among the keys subtracted."""
        return self.key_at(k, middle_key(k, None) if k.shape[-2] else None)

    def key_at(self, k: Tensor, origin: Tensor | None) -> InnerKey:
        """The key and its square, with a given point subtracted."""
        if origin is not None:
            check_dim(
                k, origin.shape[-1], "key", self, "the origin belongs to keys of another layer"
            )
        k = k if origin is None else k - origin
        return InnerKey(k, self.half_square(k, self.precision(k, "key")), origin)

    def lower(self, q: Tensor, k: Tensor, real: Tensor | None = None) -> Form:
        """The form, with a point among the visible keys subtracted from both sides."""
        if k.shape[-2] == 0 or k.shape[-3] == 0:
            return self.join(self.query(q), self.key_at(k, None))
        origin = middle_key(k, real)
        return self.join(self.query_at(q, origin), self.key_at(k, origin))

    @torch.no_grad()
    def rescale_(self, factor: Tensor) -> None:
        """Divide h by the square root of the factor: logits are proportional to `h^-2`."""
        if self.log_factor is None or self.log_factor.shape != factor.shape:
            super().rescale_(factor)
        else:
            self.log_factor.sub_(0.5 * factor.log())
