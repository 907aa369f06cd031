"""Cuts a call down to some batch entries, or into groups of heads that fit into a CPU's cache.

Shape legend: B batch, H query heads, K key heads, Q queries, L keys, R sampled queries.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import Size

# Logits of one part: 2 MiB in fp32. With 8 heads, 64 rows and 4096 keys, parts of this size take a
# fifth less time than one pass over all heads, which waits for memory and for its allocation.
CACHED = 2**19
# Sampled logits of all heads and batch entries together: 32 MiB in fp32. In larger calls, each
# sampled step reads other entries of the batch.
MOST_LOGITS = 2**23


def parts_of(seen: Seen, size: Size, rows: Tensor) -> list[tuple[Seen, Size]]:
    """The call in parts of some heads; one part on a GPU, in a compiler, or if it is small."""
    whole = [(seen, size)]
    if rows.device.type != "cpu" or torch.compiler.is_compiling():
        return whole
    # Query heads that share a key or value head stay in one part.
    unit = math.lcm(*(size.heads // x.shape[1] for x in shared(seen) if x.shape[1] > 1))
    count = CACHED // (size.batch * rows.shape[0] * size.keys) // unit * unit or unit
    if count >= size.heads:
        return whole
    starts = range(0, size.heads, count)
    return [part_of(seen, size, start, min(start + count, size.heads)) for start in starts]


def some_entries(seen: Seen, size: Size, rows: int, turn: int) -> tuple[Seen, Size]:
    """As many batch entries as `MOST_LOGITS` allows, at least two; other entries at each turn."""
    # At least two, because `place_share` and `value_place` compare sequences with one another.
    count = max(2, MOST_LOGITS // (rows * size.heads * size.keys))
    if count >= size.batch:
        return seen, size
    start = min(turn * count % size.batch, size.batch - count)

    def cut(x: Tensor | None, dims: int) -> Tensor | None:
        return x if x is None or x.ndim < dims or x.shape[0] == 1 else x.narrow(0, start, count)

    form = seen.pairwise
    if form is not None:
        a, b, v = (cut(x, 4) for x in (form.a, form.b, form.v))
        assert a is not None and b is not None and v is not None
        form = form.over(a, b, v)
    flex = seen.flex
    if flex is not None:
        flex = flex._replace(entry=flex.entry + start, logits=cut(flex.logits, 4))
    made_of = seen.made_of
    if made_of is not None:
        query, key = (cut(x, 4) for x in made_of)
        assert query is not None and key is not None
        made_of = query, key
    some = seen._replace(
        query=cut(seen.query, 4), key=cut(seen.key, 4), value=cut(seen.value, 4),
        bias=cut(seen.bias, 4), visible=cut(seen.visible, 4), logits=cut(seen.logits, 4),
        shift=cut(seen.shift, 3), sink=cut(seen.sink, 3), pairwise=form,
        flex=flex, made_of=made_of,
    )  # fmt: skip
    return some, Size(count, size.heads, size.queries, size.keys)


def shared(seen: Seen) -> list[Tensor]:
    """The tensors that may have fewer heads than the queries."""
    key = seen.key if seen.pairwise is None else seen.pairwise.b
    return [x for x in (key, seen.value) if x is not None]


def part_of(seen: Seen, size: Size, start: int, stop: int) -> tuple[Seen, Size]:
    """The part of a call with the query heads from `start` to `stop`, as views."""

    def cut(x: Tensor | None, dim: int) -> Tensor | None:
        if x is None or x.ndim < -dim or x.shape[dim] == 1:
            return x
        group = size.heads // x.shape[dim]
        return x.narrow(dim, start // group, (stop - start) // group)

    form = seen.pairwise
    if form is not None:
        a, b, v = (cut(x, -3) for x in (form.a, form.b, form.v))
        assert a is not None and b is not None and v is not None
        form = form.over(a, b, v)
    query, key, value, bias, visible, logits = (
        cut(x, -3) for x in (seen.query, seen.key, seen.value, seen.bias, seen.visible, seen.logits)
    )
    shift, sink = cut(seen.shift, -2), cut(seen.sink, -2)
    flex = seen.flex
    if flex is not None:
        flex = flex._replace(head=flex.head + start, logits=cut(flex.logits, -3))
    part = Seen(
        query,
        key,
        value,
        seen.scale,
        bias,
        visible,
        seen.causal,
        logits,
        form,
        shift,
        seen.softcap,
        sink,
        flex,
    )
    return part, Size(size.batch, stop - start, size.queries, size.keys)
