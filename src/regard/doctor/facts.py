"""`Facts`: what is known about an attention call without reading the contents of its tensors."""

from __future__ import annotations

from typing import NamedTuple

from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import query_and_key, size_of
from regard.doctor.vitals.table import SeenForm


class Facts(NamedTuple):
    """Sizes and options of one call.

    Attributes:
        kind: which tensors of the call were seen.
        batch, queries, keys: its sizes.
        dims: width of a query, or hidden units of a pairwise score. If only logits were seen, width of
            a value; None if no value was seen either.
        scale: factor of the inner product; None without one, or if it is unknown: a score with a term of the query
            alone, as the Gaussian one, may have multiplied its factors into the query.
        biased: whether a bias is added to the logits.
        rescored: whether a function of the user computes logits from the inner products. Neither the
            scale of the logits nor a bound on them is known then.
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
    scale = seen.scale if seen.shift is None else None
    return Facts(SeenForm.INNER, batch, queries, keys, dims, scale, biased, rescored)
