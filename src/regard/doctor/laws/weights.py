"""`SiteFacts`: what the weights of one attention call say, read in the base pass.

Shape legend: B samples, H heads, Q queries, L keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.doctor.laws.following import Summed, keys_last
from regard.doctor.laws.passes import SiteCall
from regard.doctor.probing.looking import weights_of
from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import size_of

MOST_QUERIES = 256
LARGEST_MAP = 256  # queries and keys of a map that is kept
ONE = 1e-3  # sums that are off by less are one, in half precision by 30 times that
TINY = 1e-30


class Sums(NamedTuple):
    """Sums of weights that were written out.

    Attributes:
        off: the largest distance of a query's sum over the keys from 1.
        share: the share of queries whose sum is off.
        elsewhere: whether sums over another axis are all 1.
        erased: whether weights that the softmax had given were set to zero afterwards.
        exempt: whether they may sum to something else on purpose.
        keys: number of keys.
    """

    off: float
    share: float
    elsewhere: bool
    erased: bool
    exempt: bool
    keys: int


class SiteFacts(NamedTuple):
    """What is known of one call.

    Attributes:
        call: where it is made.
        sums: of weights that were written out; None for fused attention, where they are right.
        shape: (Q, L).
        picture: (Q, L), the mean weight over samples and heads; None where it is too large.
        keys_vary: how far weights of one query differ among the keys that it sees, over their mean.
        queries_vary: how far the weights of queries differ, over their mean.
        precision: the rounding of the weights' dtype.
        visible: whether some query sees at least 2 keys.
    """

    call: SiteCall
    sums: Sums | None
    shape: tuple[int, int]
    picture: Tensor | None
    keys_vary: float
    queries_vary: float
    precision: float
    visible: bool


def facts_of(call: SiteCall, seen: Seen | None, summed: Summed | None) -> SiteFacts | None:
    """The facts of a call; None where its weights cannot be read."""
    if summed is not None:
        weights, sums = keys_last(summed), sums_of(summed)
    elif seen is not None:
        try:
            weights, sums = weights_of(seen, MOST_QUERIES).weights, None
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
    else:
        return None
    read, keys = weights.shape[-2] if weights.ndim > 1 else 1, weights.shape[-1]
    if weights.ndim == 2:  # pooling: one query for each sample
        weights, read = weights.unsqueeze(-2), 1
    w = weights.detach().double()
    # Of a long call only some queries are read.
    rows = read if seen is None else size_of(seen).queries
    small = max(rows, keys) <= LARGEST_MAP and rows == read
    picture = w.reshape(-1, rows, keys).mean(0).cpu() if small else None
    precision = torch.finfo(weights.dtype).eps
    vary = variation(w)
    return SiteFacts(
        call, sums, (rows, keys), picture, *vary, precision, bool((w > TINY).sum(-1).max() > 1)
    )


def variation(w: Tensor) -> tuple[float, float]:
    """How far weights vary over keys, and over queries that see the same keys; inf if not known.

    A weight over the mean weight of the visible keys: differences are relative, so that few keys and
    many are alike.
    """
    w = w[torch.isfinite(w).all(-1).all(-1)] if w.ndim > 2 else w
    seen = w > TINY
    count = seen.sum(-1, keepdim=True)
    if not w.numel() or int(count.max()) < 2:
        return float("inf"), float("inf")
    relative = torch.where(seen, w * count / w.sum(-1, keepdim=True).clamp(min=TINY), 1.0)
    over_keys = float((relative.amax(-1) - relative.amin(-1)).max())
    if w.shape[-2] < 2:
        return over_keys, float("inf")
    # Neighbours under a causal mask see almost the same keys: compare logs up to a constant.
    logs = torch.where(seen, w.clamp(min=TINY).log(), torch.nan)
    step = logs[..., 1:, :] - logs[..., :-1, :]
    step = step - step.nanmean(-1, keepdim=True)
    both = (seen[..., 1:, :] & seen[..., :-1, :]).sum(-1) > 1
    moved = step.abs().nan_to_num(0.0).amax(-1)[both]
    return over_keys, float(moved.max()) if moved.numel() else float("inf")


def sums_of(found: Summed) -> Sums:
    """Whether weights are a distribution over the keys, and if not, over what."""
    w = keys_last(found).double()
    near = ONE if found.weights.dtype in (torch.float32, torch.float64) else 30 * ONE
    sums = w.sum(-1)
    # A query that sees nothing has weights of zero, or NaN.
    sums = sums[torch.isfinite(sums) & (sums != 0)]
    off = (sums - 1).abs()
    elsewhere = any(is_one(w.sum(dim), near) for dim in range(w.ndim - 1) if w.shape[dim] > 1)
    # Pooling has the width of the weights, 1, as an axis: over it each weight of 1 is a sum.
    elsewhere = elsewhere or is_one(w, near)
    before = found.tag.softmax
    erased = False
    if before is not None and before.numel() == found.weights.numel():
        erased = bool(((found.weights.reshape(before.shape) == 0) & (before > near)).any())
    share = float((off > near).double().mean()) if len(off) else 0.0
    return Sums(
        float(off.max()) if len(off) else 0.0,
        share,
        elsewhere,
        erased,
        found.tag.exempt,
        w.shape[-1],
    )


def is_one(sums: Tensor, near: float) -> bool:
    """Whether all sums are 1, but for those of nothing, which are 0 or NaN."""
    sums = sums[torch.isfinite(sums) & (sums != 0)]
    return len(sums) > 0 and bool(((sums - 1).abs() < near).all())
