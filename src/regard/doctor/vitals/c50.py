"""c50: how much longer one key must be to capture half of the queries.

Key j with its norm multiplied by c has the logit `cap(c x_ij + a_i) + b_ij` for query i. Here x is
the scaled inner product, a the query's own term, b the bias, and cap the soft cap, if any. The key
takes more than half of the query's weight when this logit exceeds l_i, the log-sum-exp of all other
outcomes. So the query is captured at

    c_i = (uncap(l_i - b_ij) - a_i) / x_ij    where x_ij > 0,

at 0 where it is captured even without the product, and otherwise never; also never where the cap
keeps the logit below l_i. Where a function of FlexAttention makes the logit from the product, c_i
is searched on a grid and interpolated linearly between two of its points, which is exact where the
function adds something to the product.

The median of the c_i is the factor for half of the queries. Only one key is tried, the one with the
largest inner product with the average query; its factor is an upper bound on that of the easiest
key.

Shape legend: B batch, H query heads, K key heads, R queries, L keys, D dims.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.doctor.seen import Seen, SeenFlex
from regard.doctor.vitals.cheap import spread
from regard.doctor.vitals.flexed import flex_logits
from regard.doctor.vitals.logits import (
    HIDDEN,
    Size,
    at_rows,
    products,
    row_logits,
    shift_at,
    with_one_key,
)
from regard.doctor.vitals.weights import RowReadings, Sums

NEVER = 1e3
# Points of the grid: 0, and then from 0.1 to `NEVER`, each a third above the one before.
GRID = 33


def c50(seen: Seen, size: Size, rows: Tensor, each: RowReadings, sums: Sums) -> Tensor:
    """(H,): the harmonic mean over sequences, at most `NEVER`; NaN where no row is sound."""
    place = loudest_key(seen, sums)
    one, single = with_one_key(seen, size, place)
    product = products(one, single, rows).squeeze(-1)
    logit = row_logits(one, single, rows)[0].squeeze(-1)
    # Relative to the peak, exp of the logits sums to 1 / top. Without this key it is what to
    # exceed.
    others = (1 / each.top - (logit - each.peak).exp()).clamp(min=0)
    needed = each.peak + others.log()
    if one.flex is not None and one.flex.score is not None:
        factor = reached(one.flex, product, rows, needed)
    else:
        factor = solved(seen, one, product, rows, needed)
    seeing = each.sound & (logit > HIDDEN / 2)
    factor = torch.where(seeing, factor, torch.inf).sort(-1).values
    count = each.sound.sum(-1, keepdim=True)
    half = factor.gather(-1, ((count - 1) // 2).clamp(min=0))
    half = torch.where(count > 0, half, torch.nan).squeeze(-1)
    return (1 / (1 / half).nanmean(0)).clamp(max=NEVER)


def solved(seen: Seen, one: Seen, product: Tensor, rows: Tensor, needed: Tensor) -> Tensor:
    """(B, H, R): the factor on a product at which its logit reaches `needed`; inf for never."""
    if one.bias is not None:
        needed = needed - at_rows(one.bias, rows).squeeze(-1)
    if seen.softcap is not None:
        needed = seen.softcap * (needed / seen.softcap).clamp(-1, 1).atanh()
    if seen.shift is not None:
        needed = needed - shift_at(seen.shift, rows)
    factor = torch.where(product > 0, needed / product, torch.inf)
    return torch.where(needed <= 0, 0, factor)


def reached(flex: SeenFlex, product: Tensor, rows: Tensor, needed: Tensor) -> Tensor:
    """The same as `solved` where a function of FlexAttention makes the logit from the product."""
    steps = torch.linspace(-1, math.log10(NEVER), GRID - 1, device=product.device)
    grid = torch.cat([steps.new_zeros(1), 10**steps]).to(product.dtype)
    factors = grid.view(-1, 1, 1, 1, 1)
    logits = flex_logits(flex, factors * product.unsqueeze(-1), rows).squeeze(-1)
    enough = logits >= needed
    first = enough.to(torch.int8).argmax(0, keepdim=True)
    before = (first - 1).clamp(min=0)
    low, high = logits.gather(0, before), logits.gather(0, first)
    share = ((needed - low) / (high - low)).nan_to_num(nan=1.0).clamp(0, 1)
    factor = torch.lerp(grid[before], grid[first], share)
    return torch.where(enough.any(0, keepdim=True), factor, torch.inf).squeeze(0)


def loudest_key(seen: Seen, sums: Sums) -> Tensor:
    """(B, H): the key with the largest mean inner product, times how many queries see it."""
    assert seen.query is not None and seen.key is not None
    # The mean is over other queries too: if the same few queries chose the key and then judged it,
    # some key would always look dangerous.
    mean_query = seen.scale * spread(seen.query).mean(-2)
    grouped = mean_query.unflatten(1, (seen.key.shape[1], -1))
    mean = (grouped @ seen.key.mT).flatten(1, 2)
    return (mean * sums.seen_by).argmax(-1)
