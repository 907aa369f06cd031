"""What is known of an attention call without reading a number of its tensors."""

from __future__ import annotations

from typing import NamedTuple

from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import query_and_key, size_of
from regard.doctor.vitals.table import SeenForm


class Facts(NamedTuple):
    """Sizes and options of one call.

    Attributes:
        kind: what was seen of it.
        batch, queries, keys: its sizes.
        dims: of a query, or the hidden units of a pairwise score; of a value where only logits were
            seen, None where not even that.
        scale: of the inner product; None where there is none.
        biased: whether numbers are added to the logits.
        rescored: whether a function of the user's makes the logits of the inner products, of which
            then neither the scale nor a bound is known.
    """

    kind: SeenForm
    batch: int
    queries: int
    keys: int
    dims: int | None
    scale: float | None
    biased: bool
    rescored: bool = False


def facts_of(seen: Seen) -> Facts:
    """The facts of a call."""
    batch, _, queries, keys = size_of(seen)
    biased = seen.bias is not None
    if seen.logits is not None:
        dims = None if seen.value is None else seen.value.shape[-1]
        return Facts(SeenForm.LOGITS, batch, queries, keys, dims, None, biased)
    dims = query_and_key(seen)[0].shape[-1]
    if seen.pairwise is not None:
        return Facts(SeenForm.PAIRWISE, batch, queries, keys, dims, None, biased)
    rescored = seen.flex is not None and seen.flex.changes
    return Facts(SeenForm.INNER, batch, queries, keys, dims, seen.scale, biased, rescored)
