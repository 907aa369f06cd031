"""Error bounds of the series on a GPU, in units of the largest |value|, and the rank that meets one.

Reading a tensor would wait for the GPU. The rank therefore follows from the allowed error and the
shapes, for values of the size that a new `Additive` has. The device checks whether the bound holds for
the actual values; where it does not, exact attention overwrites the result.
"""

from __future__ import annotations

import math

import torch

from regard.sine.series import ranks, rows

# Roundings of the features of a pair differ from key to key and act as random numbers. With u = 2^-11
# for fp16, the root mean square error of a logit is rate * u * sqrt(2/3 sum v^2 c^2). The output moves
# by at most 0.71 of that, reached where two keys share the weight. Six times this deviation is exceeded
# by one of 10^9 numbers in this worst case.
FEATURE_ROUNDING = 6 * 0.71 * math.sqrt(2 / 3) * 2**-11
# With fp32 inputs, weights, values and output are still rounded to fp16 on the way, 2^-11 each.
FULL_PRECISION = 3 * 2**-11
# The largest rate |v|_1. The logits that cuDNN sees lack alpha; they are at most 2.9 times as large, and
# so stay above -88.7, below which its backward has a known fault (pytorch #196678).
LARGEST_LOGIT = 30.0
# The wide kernels have no such fault. Beyond this, beta would lose digits in its two columns of fp16.
WIDE_LARGEST_LOGIT = 1000.0
# The error of exact attention in a dtype: rounding the output alone costs u = 2^-8 (bf16) or 2^-11 (fp16)
# of its size. The measured error of an exact bf16 kernel against fp64 is 2.5e-3.
OWN_ERROR = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# Sizes that ranks are chosen for. ASSUMED_SIZE * sqrt(hidden) is a little more than |v|_1 of a new
# `Additive`, 5 at 16 hidden units. ASSUMED_REACH is that of a typical unit for normal a and b over some
# thousand positions.
ASSUMED_REACH = 8.0
ASSUMED_SIZE = 1.25
# Through cuDNN, features of higher ranks cost more than their smaller error is worth.
LONGEST_SERIES = 8
# For the wide kernels the reach is planned from the lengths, and the bound may take this share of the
# error: exact attention of as many hidden units takes 4 times as long as the series, so that an escape
# costs more than another sine. Lengths that a compiled graph does not know are planned as UNKNOWN_LENGTH.
WIDE_SHARE, WIDE_LONGEST_SERIES, UNKNOWN_LENGTH = 0.8, 12, 2**16


def _assumed_rows(kind: str, reach: float) -> dict[int, tuple[float, float]]:
    """Largest error and sqrt(sum c^2) of the row for a reach, by rank."""
    found = {}
    for rank in ranks(kind):
        row = next(row for row in rows(kind, rank) if row.reach >= reach)
        found[rank] = (row.error, math.sqrt(sum(c * c for c in row.coefficients)))
    return found


# The kind with the least largest error, used where an error bound has to hold.
BOUNDED = "uniform"
# Computed at import: a compiled graph would guard every number of the tables.
ASSUMED_ROWS = _assumed_rows(BOUNDED, ASSUMED_REACH)
# The same for every reach of the tables.
ROWS_BY_REACH = {
    row.reach: _assumed_rows(BOUNDED, row.reach) for row in rows(BOUNDED, LONGEST_SERIES)
}


def planned_reach(queries: int, keys: int) -> float:
    """The reach that is planned for normal a and b of these lengths: the row of the tables that has it.

    The largest of n normal numbers is sqrt(2 ln 2n) less about 0.45, a margin for units that reach
    further than most: for 4,096 queries and keys they reach 7.6 on average, and 8.5 is planned.
    """
    reach = sum(math.sqrt(2 * math.log(2 * max(n, 1))) for n in (queries, keys))
    return next((known for known in ROWS_BY_REACH if known >= reach), max(ROWS_BY_REACH))


def assumed_error(rank: int, hidden: int, rate: float, reach: float | None = None) -> float:
    """The error bound for the assumed sizes; the kernel `pick_rows` computes it for the actual ones.

    The reach is one of the tables, or None for `ASSUMED_REACH`.
    """
    error, height = (ASSUMED_ROWS if reach is None else ROWS_BY_REACH[reach])[rank]
    # |v|_2 of normal v is sqrt(pi / 2 / hidden) |v|_1.
    norm = math.sqrt(math.pi / 2) * rate * ASSUMED_SIZE
    delta = rate * ASSUMED_SIZE * hidden**0.5 * error
    return math.exp(min(2 * delta, 700.0)) - 1 + FEATURE_ROUNDING * norm * height


def shortest_rank(
    allowed: float, hidden: int, rate: float, reach: float | None = None
) -> int | None:
    """The lowest rank that meets the error for the assumed sizes, or None; with a reach for the wide kernels."""
    longest = LONGEST_SERIES if reach is None else WIDE_LONGEST_SERIES
    allowed = allowed if reach is None else WIDE_SHARE * allowed
    for rank in ASSUMED_ROWS:
        if rank <= longest and assumed_error(rank, hidden, rate, reach) <= allowed:
            return rank
    return None
