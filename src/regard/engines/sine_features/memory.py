"""The memory that kernels of features share: what the device notes of a call, and scratch of the backward.

Shape legend: see `operators`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from regard.engines.launching import Address
from regard.engines.sizes import blocks_in

# Positions whose range one program measures.
PLACES_MEASURED = 512
INT, FLOAT, HALF = torch.int32, torch.float32, torch.float16


class Notes(NamedTuple):
    """What the device finds out about a call, in one allocation that the backward reads too.

    holds (4,): the first number says whether the series holds. weight (H, E): rate v. row (B, K, E): the
    row of the table for each unit. peak (B, K): the largest |value|. sound (B, H): whether the bound
    holds for a head. parts: the partial maxima from which the range was found.
    """

    holds: Address
    weight: Address
    row: Address
    peak: Address
    sound: Address
    parts: Address


class Scratch(NamedTuple):
    """Scratch memory of the backward.

    skip (1,): whether the exact fallback has nothing to do. peak (B, H): the largest |grad_out|. parts:
    its partial maxima. from_queries, from_keys: what each block of queries and of keys adds to dv.
    """

    skip: Address
    peak: Address
    parts: Address
    from_queries: Address
    from_keys: Address


class Tables(NamedTuple):
    """Addresses of the columns of the series that kernels read."""

    reach: Address
    linear: Address
    frequencies: Address
    coefficients: Address
    error: Address


def note_words(a: torch.Size, b: torch.Size) -> tuple[tuple[int, torch.dtype], ...]:
    """The size in words and the dtype of each field of `Notes`, from the shapes of a and b."""
    (batch, heads, queries, hidden), (_, key_heads, keys, _) = a, b
    query_parts, key_parts = blocks_in(queries, PLACES_MEASURED), blocks_in(keys, PLACES_MEASURED)
    parts = (heads * query_parts + key_heads * key_parts) * hidden + key_heads * key_parts
    return (
        (4, INT),
        (heads * hidden, FLOAT),
        (batch * key_heads * hidden, INT),
        (batch * key_heads, FLOAT),
        (batch * heads, INT),
        (batch * parts, INT),
    )
