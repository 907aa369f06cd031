"""Vitals: what is measured of an attention call, for each head, without its L x L matrix.

Here belong the table of all vitals and the functions from a `Seen` to numbers. Thresholds and judgements
are in `findings`.

Everything stays on the device: no number is read by the host, no shape depends on data, and it
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
        level: how much it may cost, a `Level` or its name.
        rows: for the sampled level, places of the queries to read, from `pick_rows`.
        turn: where a batch is too large to be sampled whole, whose turn it is: counts up.
    """
    if not isinstance(level, Level):
        level = Level(level)
    check(seen)
    size = size_of(seen)
    source = seen.logits if seen.logits is not None else query_and_key(seen)[0]
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
    """Query, key and value in one dtype, fp32 at least: autocast lets them come in several.

    Once for all that is measured. Logits stay as they are: only rows of them are read.
    """
    given = (seen.query, seen.key, seen.value if with_value else None)
    dtype = torch.float32
    for x in given:
        dtype = dtype if x is None else torch.promote_types(dtype, x.dtype)
    query, key, value = (None if x is None else x.to(dtype) for x in given)
    # Neither `_replace` nor a slice of `seen` itself: compilers of older releases trace neither.
    rest: Any = (*seen,)[3:]
    return Seen(query, key, value, *rest)
