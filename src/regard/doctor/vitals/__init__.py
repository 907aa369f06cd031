"""Vitals: numbers measured for each head of an attention call, without its L x L matrix.

The table of all vitals and the functions from a `Seen` to numbers belong here. Thresholds and
judgements are in `findings`.

Everything stays on the device: the host reads no number, no shape depends on data, and all of it
traces under `torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.cheap import cheap, kernels_fit
from regard.doctor.vitals.exact import read_all
from regard.doctor.vitals.logits import check, query_and_key, size_of
from regard.doctor.vitals.parts import some_entries
from regard.doctor.vitals.rows import pick_rows
from regard.doctor.vitals.sampled import summarise
from regard.doctor.vitals.table import INDEX, VITALS, Level, Merge, SeenForm, Vital, columns
from regard.doctor.vitals.weights import read_rows
from regard.engines.gpu import device_current

__all__ = [
    "DEFAULT_ROWS",
    "INDEX",
    "VITALS",
    "Level",
    "Merge",
    "SeenForm",
    "Vital",
    "measure",
    "pick_rows",
]

DEFAULT_ROWS = 64


def measure(seen: Seen, level: Level | str, rows: Tensor | None = None, turn: int = 0) -> Tensor:
    """The vitals of one call: (H, count) in fp32, columns as in `VITALS`.

    NaN where a vital is not measured at this level, or not defined for this call.

    Args:
        seen: the call.
        level: how much the measurement may cost, a `Level` or its name.
        rows: for the sampled level, places of the queries to read, from `pick_rows`.
        turn: a count of sampled steps, which selects entries of a batch that is too large to be
            sampled whole.
    """
    if not isinstance(level, Level):
        level = Level(level)
    check(seen)
    size = size_of(seen)
    source = seen.logits if seen.logits is not None else query_and_key(seen)[0]
    # In a compiled graph only these rows of FlexAttention have logits, even at the exact level.
    if level is not Level.CHEAP and seen.flex is not None and seen.flex.rows is not None:
        level, rows = Level.SAMPLED, seen.flex.rows
    with torch.no_grad(), torch.autocast(source.device.type, enabled=False):
        if 0 in size:
            return columns({}, size.heads, source.device)
        if level is Level.CHEAP and kernels_fit(seen):
            from regard.doctor.vitals.cheap_kernels import cheap_row

            assert seen.query is not None and seen.key is not None
            with device_current(seen.query.device):
                return cheap_row(seen.query, seen.key, seen.scale, seen.softcap, len(VITALS))
        seen = widen(seen, with_value=level is not Level.CHEAP)
        found = cheap(seen, size.heads)
        if level is Level.SAMPLED:
            if rows is None:
                rows = pick_rows(size.queries, DEFAULT_ROWS, 0, source.device)
            seen, size = some_entries(seen, size, rows.shape[0], turn)
            found.update(summarise(seen, size, rows, *read_rows(seen, size, rows)))
        elif level is Level.EXACT:
            found.update(summarise(seen, size, *read_all(seen, size, source.device)))
        return columns(found, size.heads, source.device)


def widen(seen: Seen, *, with_value: bool) -> Seen:
    """Query, key and value in one dtype, at least fp32: under autocast their dtypes can differ.

    Done once for all vitals. Logits keep their dtype, because only some of their rows are read.
    """
    given = (seen.query, seen.key, seen.value if with_value else None)
    dtype = torch.float32
    for x in given:
        dtype = dtype if x is None else torch.promote_types(dtype, x.dtype)
    query, key, value = (None if x is None else x.to(dtype) for x in given)
    # Not `_replace`, nor a slice of `seen` itself: the compiler of older releases traces neither.
    rest: Any = (*seen,)[3:]
    return Seen(query, key, value, *rest)
