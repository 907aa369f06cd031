"""Computes the exact logits of some queries of a call, from whatever was captured of it.

Shape legend: B batch, H query heads, K key heads, G = H / K, Q queries, L keys, R sampled queries,
D dims, E hidden units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.flexed import flex_logits
from regard.engines import plan
from regard.engines.reference import raw_scores
from regard.forms import Pairwise
from regard.precision import widened, working_dtype
from regard.problem import Problem

# Models write "hidden" as -inf, as the lowest number of a dtype (-65504 in fp16) or as -1e9; older
# models that write attention out use -1e4. Beside an ordinary logit all of these get the weight 0.
HIDING_BIAS, HIDDEN_LOGIT = -6e4, -5e3
# Stands for hidden in the logits here. Unlike -inf, its product with a weight of 0 is 0, not NaN.
HIDDEN = -1e30
# Hidden units of one tile of pairs, where no kernel can sum over them without storing them.
PAIRWISE_TILE = 2**22


class Size(NamedTuple):
    """The sizes of a call."""

    batch: int
    heads: int
    queries: int
    keys: int


def check(seen: Seen) -> None:
    """Raise unless the call has exactly one source of logits, with tensors that fit one another."""
    given = {
        "query and key": seen.query is not None or seen.key is not None,
        "pairwise": seen.pairwise is not None,
        "logits": seen.logits is not None,
    }
    found = [name for name, there in given.items() if there]
    if len(found) != 1 or (seen.query is None) != (seen.key is None):
        raise ValueError(
            "Seen must hold exactly one of: query and key, pairwise, logits; this one holds "
            f"{' and '.join(found) or 'none of them'}{' in part' if len(found) == 1 else ''}"
        )
    tensors = [seen.logits] if seen.logits is not None else list(query_and_key(seen))
    tensors += [] if seen.value is None else [seen.value]
    heads = tensors[0].shape[1] if tensors[0].ndim == 4 else 0
    for x in tensors:
        if x.ndim != 4 or (heads and (not x.shape[1] or heads % x.shape[1])):
            raise ValueError(
                "tensors in Seen must have the shape (batch, heads, length, width), and the heads "
                "of keys and values must divide those of queries; got shapes "
                f"{[tuple(x.shape) for x in tensors]}"
            )


def size_of(seen: Seen) -> Size:
    """The sizes of a call."""
    if seen.logits is not None:
        return Size(*seen.logits.shape)
    query, key = query_and_key(seen)
    batch = max(query.shape[0], key.shape[0])
    return Size(batch, query.shape[1], query.shape[2], key.shape[2])


def query_and_key(seen: Seen) -> tuple[Tensor, Tensor]:
    """The tensors with one row for each query and for each key."""
    if seen.pairwise is not None:
        return seen.pairwise.a, seen.pairwise.b
    assert seen.query is not None and seen.key is not None
    return seen.query, seen.key


def row_logits(seen: Seen, size: Size, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits (B, H, R, L) of the queries `rows`, as a new tensor, and which of them are hidden.

    Hidden pairs hold `HIDDEN`. The second result broadcasts to the logits; it is None where no pair
    can be hidden.
    """
    if seen.flex is not None:
        logits = seen.flex.logits
        if logits is None:
            logits = flex_logits(seen.flex, products(seen, size, rows), rows)
        # A score function may hide pairs by large negative numbers; without one only the mask
        # hides.
        low = logits <= (HIDDEN_LOGIT if seen.flex.changes else -torch.inf)
        return logits.masked_fill(low, HIDDEN), low
    logits = products(seen, size, rows)
    if seen.shift is not None:
        logits = logits.add_(shift_at(seen.shift, rows).unsqueeze(-1))
    if seen.softcap is not None:
        logits = logits.div_(seen.softcap).tanh_().mul_(seen.softcap)
    bias = None if seen.bias is None else widened(at_rows(seen.bias, rows))
    hidden = hidden_pairs(seen, size, rows, bias)
    if seen.logits is not None:  # these include the mask that the model has added
        low = logits <= HIDDEN_LOGIT
        hidden = low if hidden is None else hidden | low
    if bias is not None:
        logits = logits.add_(bias)
    return logits if hidden is None else logits.masked_fill_(hidden, HIDDEN), hidden


def products(seen: Seen, size: Size, rows: Tensor) -> Tensor:
    """`scale <query, key>`, or the scores of a pairwise form, or the logits that were captured.

    (B, H, R, L) for the queries `rows`, as a new tensor.
    """
    if seen.logits is not None:
        return widened(seen.logits.index_select(-2, rows))
    query, key = query_and_key(seen)
    query = query.index_select(-2, rows)
    if seen.pairwise is not None:
        scores = pairwise_scores(query, seen.pairwise, rows)
        return scores.expand(size.batch, size.heads, -1, -1).contiguous()
    # Query heads that share a key head are stacked as rows of one product, so no key is copied.
    logits = (query * seen.scale).unflatten(1, (key.shape[1], -1)).flatten(2, 3) @ key.mT
    return logits.view(size.batch, size.heads, rows.shape[0], size.keys)


def pairwise_scores(a: Tensor, form: Pairwise, rows: Tensor) -> Tensor:
    """Raw scores (B, H, R, L) of a pairwise form for the queries `rows`, whose side is `a`."""
    if form.v.shape[-2] == 1 and form.v.ndim == 3:
        return plan.scores(Problem(form.over(a, form.b, form.v), form.b))
    # With a temperature for each query, v differs by query, which no kernel supports.
    v = form.v if form.v.shape[-2] == 1 else form.v.index_select(-2, rows)
    length = max(1, PAIRWISE_TILE // max(1, a.numel()))
    parts = [
        raw_scores(form.over(a, b, v), working_dtype(a.dtype)) for b in form.b.split(length, -2)
    ]
    return torch.cat(parts, -1)


def shift_at(shift: Tensor, rows: Tensor) -> Tensor:
    """The entries of the queries `rows` in a tensor that broadcasts to (B, H, Q)."""
    shift = widened(shift)
    return shift if shift.shape[-1] == 1 else shift.index_select(-1, rows)


def hidden_pairs(seen: Seen, size: Size, rows: Tensor, bias: Tensor | None) -> Tensor | None:
    """Booleans that broadcast to (B, H, R, L), True = hidden; None where no pair can be hidden."""
    hidden = None if seen.visible is None else ~at_rows(seen.visible, rows)
    if bias is not None:
        low = bias <= HIDING_BIAS
        hidden = low if hidden is None else hidden | low
    if seen.causal:
        later = torch.arange(size.keys, device=rows.device) > rows[:, None]
        hidden = later[None, None] if hidden is None else hidden | later
    return hidden


def at_rows(x: Tensor, rows: Tensor) -> Tensor:
    """The rows of the queries `rows` in a tensor that broadcasts to (B, H, Q, L), with 4 dims."""
    x = x[(None,) * (4 - x.ndim)]
    return x if x.shape[-2] == 1 else x.index_select(-2, rows)


def with_one_key(seen: Seen, size: Size, index: Tensor) -> tuple[Seen, Size]:
    """The call with a single key, chosen for each sequence and head by its index (B, H)."""
    visible = None if seen.visible is None else last_at(seen.visible, size, index)
    if seen.causal:
        place = torch.arange(size.queries, device=index.device)[:, None]
        earlier = index[..., None, None] <= place
        visible = earlier if visible is None else visible & earlier
    bias = None if seen.bias is None else last_at(seen.bias, size, index)
    logits, query, key, form = seen.logits, seen.query, seen.key, seen.pairwise
    flex = seen.flex
    if flex is not None:
        some = None if flex.logits is None else last_at(flex.logits, size, index)
        flex = flex._replace(key=index, logits=some)
    if logits is not None:
        logits = last_at(logits, size, index)
    elif form is not None:
        form = form.over(form.a, length_at(form.b, size, index), form.v)
    elif key is not None:
        key = length_at(key, size, index)
    one = Seen(
        query,
        key,
        scale=seen.scale,
        bias=bias,
        visible=visible,
        logits=logits,
        pairwise=form,
        shift=seen.shift,
        softcap=seen.softcap,
        flex=flex,
    )
    return one, Size(size.batch, size.heads, size.queries, 1)


def last_at(x: Tensor, size: Size, index: Tensor) -> Tensor:
    """(B, H, Q or 1, 1): one key of each sequence and head in what broadcasts to (B, H, Q, L)."""
    x = x[(None,) * (4 - x.ndim)]
    if x.shape[-1] == 1:
        return x
    x = x.expand(size.batch, size.heads, -1, -1)
    return x.gather(-1, index[..., None, None].expand(*x.shape[:-1], 1))


def length_at(x: Tensor, size: Size, index: Tensor) -> Tensor:
    """(B, H, 1, D): one row of keys or values (B, K, L, D) for each sequence and query head."""
    grouped = x.unsqueeze(2).expand(size.batch, -1, size.heads // x.shape[1], -1, -1)
    place = index.view(*grouped.shape[:3], 1, 1).expand(*grouped.shape[:3], 1, x.shape[-1])
    return grouped.gather(3, place).flatten(1, 2)
