"""The cheap level: norms, means and Gram matrices of queries and keys, in O(length dims²).

Masks and bias are ignored: counting what they hide would cost the Q x L pass that this level
avoids. The sampled level measures their effect.

Shape legend: B batch, H query heads, K key heads, Q queries, L keys, D dims.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.engines.gpu import HAS_TRITON
from regard.forms import Pairwise
from regard.precision import widened

# Mean and Gram matrix of the queries are taken over about this many of them, between two thirds and
# twice as many; those of the keys over all. They estimate the mean of q'Cq over queries. Its
# relative standard error is the coefficient of variation over the root of the number of queries:
# below 1% for Gaussian queries of 64 dims.
GRAM_QUERIES = 1024
# Limit of the kernels: a Gram matrix above 128 x 128 does not fit into the registers of a program.
MOST_DIMS = 128


def cheap(seen: Seen, heads: int) -> dict[str, Tensor]:
    """The vitals of the cheap level, each (H,); none where only logits were captured."""
    if seen.pairwise is not None:
        query, key = widened(seen.pairwise.a), widened(seen.pairwise.b)
    elif seen.query is not None and seen.key is not None:
        query, key = seen.query, seen.key
    else:
        return {}
    found, largest_query = norms(query, "query", heads)
    of_keys, largest_key = norms(key, "key", heads)
    found.update(of_keys)
    if seen.pairwise is not None:
        found.update(pairwise_bound(seen.pairwise, largest_query, largest_key))
    else:
        found["logit_bound"] = abs(seen.scale) * (largest_query * largest_key).amax(0)
        found.update(logit_moments(query, key, seen.scale))
    return adjusted(found, seen, heads)


def kernels_fit(seen: Seen) -> bool:
    """Whether the kernels of `cheap_kernels.py`, which read all queries, can measure this call.

    Pairwise forms, for which this level has norms alone, and calls with a shift are left to
    `cheap`.
    """
    query, key = seen.query, seen.key
    return (
        query is not None
        and key is not None
        and query.is_cuda
        and HAS_TRITON
        and query.ndim == key.ndim == 4
        and query.shape[0] == key.shape[0]
        and 0 not in query.shape
        and 0 not in key.shape
        and query.shape[1] % key.shape[1] == 0
        and seen.shift is None
        and query.dtype == key.dtype
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and query.shape[-1] <= MOST_DIMS
        and query.stride(-1) == key.stride(-1) == 1
        and not torch.compiler.is_compiling()
    )


def adjusted(found: dict[str, Tensor], seen: Seen, heads: int) -> dict[str, Tensor]:
    """The vitals with the query's own term added and the soft cap applied to the bound."""
    if seen.shift is not None and "logit_bound" in found:
        shift = widened(seen.shift)
        shift = shift.expand(-1, heads, -1) if shift.ndim == 3 else shift.expand(1, heads, -1)
        found["logit_bound"] = found["logit_bound"] + shift.abs().amax((0, 2))
        if "logit_mean" in found:
            found["logit_mean"] = found["logit_mean"] + shift.mean((0, 2))
    if seen.softcap is not None and "logit_bound" in found:
        found["logit_bound"] = found["logit_bound"].clamp(max=seen.softcap)
    return found


def norms(x: Tensor, side: str, heads: int) -> tuple[dict[str, Tensor], Tensor]:
    """Norm, spread and counts of broken entries of (B, K, T, D); also the largest norms (B, H).

    With s the root of the summed squares of all norms and m the largest norm, the root mean square
    of the others is `sqrt((s² - m²) / (T - 1))`.
    """
    length = torch.linalg.vector_norm(x, dim=-1)
    total, peak = torch.linalg.vector_norm(length, dim=-1), length.amax(-1)
    ratio = (total / peak).square_().sub_(1).clamp_(min=0).rsqrt_().amax(0) * (
        x.shape[-2] - 1
    ) ** 0.5
    plural = "queries" if side == "query" else "keys"
    found = {
        f"{side}_norm": torch.linalg.vector_norm(total, dim=0) / (x.shape[0] * x.shape[-2]) ** 0.5,
        f"{side}_spread": ratio,
        f"nan_{plural}": (length != length).sum((0, 2), dtype=torch.float32),
        f"inf_{plural}": (length == torch.inf).sum((0, 2), dtype=torch.float32),
    }
    return {name: per_head(v, heads, 0) for name, v in found.items()}, per_head(peak, heads, 1)


def pairwise_bound(form: Pairwise, largest_query: Tensor, largest_key: Tensor) -> dict[str, Tensor]:
    """Bound |v|_1 for tanh, |v| (|a| + |b|) for LeakyReLU of slope at most 1; none for others."""
    v = widened(form.v)  # (H, 1, E), or with a batch and queries in front and in the middle
    if form.activation == "tanh":
        size = v.abs().sum(-1)
    elif form.activation == "leaky_relu" and abs(form.parameter) <= 1:
        size = torch.linalg.vector_norm(v, dim=-1)
        size = size * (largest_query + largest_key).amax(0).unsqueeze(-1)
    else:
        return {}
    size = size.amax(-1)
    bound = size if size.ndim == 1 else size.amax(0)
    return {"logit_bound": bound.expand(largest_query.shape[-1])}


def logit_moments(query: Tensor, key: Tensor, scale: float) -> dict[str, Tensor]:
    """Mean and variance of all logits, and how many directions carry the variance.

    With C the covariance of the keys and G the mean of q q', the logits of a query have the
    variance `scale² q'Cq` over the keys, on average `scale² tr(G C)`. The eigenvalues of G C are
    the energies of the directions in which queries and keys interact, and they sum to tr(G C). C is
    computed as the Gram matrix minus that of the mean key, with an error of about 1e-7 of the
    mean's square: it is lost for keys whose mean is a thousand times their spread.
    """
    heads, keys = query.shape[1], key.shape[-2]
    center = key.mean(-2, keepdim=True)
    covariance = per_head(torch.sub(key.mT @ key, center.mT @ center, alpha=keys), heads, 1)
    some = spread(query)
    gram = some.mT @ some
    mean_query = some.mean(-2, keepdim=True)
    pairs = keys * some.shape[-2]
    rank, top = concentration(gram.sum(0), covariance.sum(0))
    return {
        "logit_mean": scale * inner(mean_query, per_head(center, heads, 1).mT).mean(0),
        "logit_var": scale**2 / pairs * inner(gram, covariance).clamp(min=0).mean(0),
        "map_rank": rank,
        "map_top": top,
    }


def spread(query: Tensor) -> Tensor:
    """About `GRAM_QUERIES` of the queries (B, H, Q, D), evenly spaced, as a view."""
    # For images, an odd stride visits every column of the grid, whose width is mostly even.
    return query[..., :: query.shape[-2] // GRAM_QUERIES | 1, :]


def concentration(gram: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Effective number of eigenvalues of a product (H, D, D), and the share of the largest.

    They are real and not negative, because both factors are symmetric and positive semidefinite.
    The mean of all, weighted by their 32nd powers, stands for the largest: it is never above it,
    and at most 7% below with 64 directions, 10% with 256. This avoids an eigenvalue solver, which
    would make the host wait.
    """
    share = gram @ covariance / inner(gram, covariance)[..., None, None]
    power = share
    for _ in range(3):
        power = power @ power
    # The result does not depend on the scale. Rescaling halfway keeps all powers in fp32's range.
    power = power / inner(power, power).sqrt()[..., None, None]
    power = power @ power
    top = inner(power @ power, share) / inner(power, power)
    return inner(share, share).reciprocal(), top


def inner(x: Tensor, y: Tensor) -> Tensor:
    """tr(x y) over the last two dims."""
    return (x * y.mT).sum((-2, -1))


def per_head(x: Tensor, heads: int, dim: int) -> Tensor:
    """A tensor of key heads with each repeated for all query heads that share it."""
    group = heads // x.shape[dim]
    return x if group == 1 else x.repeat_interleave(group, dim)
