"""c50: how much longer one key must be to capture half of the queries.

Key j with its norm multiplied by c has the logit `cap(c x_ij + a_i) + b_ij` for query i, with x its
scaled inner product, a and b what the query's own term and the bias add, and cap the soft cap, if
any. It takes more than half of the query's weight when that exceeds the log-sum-exp of everything
else, l_i. So the query falls at

    c_i = (uncap(l_i - b_ij) - a_i) / x_ij    where x_ij > 0,

at 0 where it is lost without the product, and else never; also never where the cap stays below.
The median of the c_i is the factor for half of the queries. One key is tried, the one that stands
best with the average query: what it needs is an upper bound on what the easiest key needs.

Shape legend: B batch, H query heads, K key heads, R queries, L keys, D dims.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.cheap import spread
from regard.doctor.vitals.logits import (
    HIDDEN,
    Size,
    at_rows,
    products,
    row_logits,
    shift_at,
    with_one_key,
)
from regard.doctor.vitals.weights import Rows, Sums

NEVER = 1e3


def c50(seen: Seen, size: Size, rows: Tensor, each: Rows, sums: Sums) -> Tensor:
    """(H,): the harmonic mean over sequences, at most `NEVER`; NaN where no row is sound."""
    place = loudest_key(seen, sums)
    one, single = with_one_key(seen, size, place)
    product = products(one, single, rows).squeeze(-1)
    logit = row_logits(one, single, rows)[0].squeeze(-1)
    others = (1 / each.top - (logit - each.peak).exp()).clamp(min=0)
    needed = each.peak + others.log()
    if one.bias is not None:
        needed = needed - at_rows(one.bias, rows).squeeze(-1)
    if seen.softcap is not None:
        needed = seen.softcap * (needed / seen.softcap).clamp(-1, 1).atanh()
    if seen.shift is not None:
        needed = needed - shift_at(seen.shift, rows)
    factor = torch.where(product > 0, needed / product, torch.inf)
    factor = torch.where(needed <= 0, 0, factor)
    seeing = each.sound & (logit > HIDDEN / 2)
    factor = torch.where(seeing, factor, torch.inf).sort(-1).values
    count = each.sound.sum(-1, keepdim=True)
    half = factor.gather(-1, ((count - 1) // 2).clamp(min=0))
    half = torch.where(count > 0, half, torch.nan).squeeze(-1)
    return (1 / (1 / half).nanmean(0)).clamp(max=NEVER)


def loudest_key(seen: Seen, sums: Sums) -> Tensor:
    """(B, H): the key of the largest mean inner product, times the share of queries that see it."""
    assert seen.query is not None and seen.key is not None
    # Of other queries too: chosen and judged by the same few, some key would always look dangerous.
    mean_query = seen.scale * spread(seen.query).mean(-2)
    grouped = mean_query.unflatten(1, (seen.key.shape[1], -1))
    mean = (grouped @ seen.key.mT).flatten(1, 2)
    return (mean * sums.seen_by).argmax(-1)
