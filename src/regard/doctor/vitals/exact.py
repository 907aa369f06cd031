"""The exact level: reads all queries, in blocks of rows so that memory stays small.

Shape legend: B batch, H query heads, Q queries, L keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import Size
from regard.doctor.vitals.weights import RowReadings, Sums, read_rows

# Logits of one block; a few tensors of this size are alive at a time. 2^22 floats are 16 MiB.
BLOCK = 2**22


def read_all(seen: Seen, size: Size, device: torch.device) -> tuple[Tensor, RowReadings, Sums]:
    """Every query of the call: their places, and what `read_rows` keeps of them."""
    rows = torch.arange(size.queries, device=device)
    length = max(1, BLOCK // (size.batch * size.heads * size.keys))
    parts = [read_rows(seen, size, part, length) for part in rows.split(length)]
    each = [torch.cat(fields, 2) for fields in zip(*(part[0] for part in parts), strict=True)]
    sums = [torch.stack(fields).sum(0) for fields in zip(*(part[1] for part in parts), strict=True)]
    return rows, RowReadings(*each), Sums(*sums)
