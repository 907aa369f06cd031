"""Error bounds of the series on a GPU, in units of the largest |value|, and the rank that meets one.

Reading a tensor would wait for the GPU. The rank therefore follows from the allowed error and the
shapes, assuming sizes such as `Additive` starts with. The device checks whether the bound holds for the
actual values; where it does not, exact attention answers.
"""

from __future__ import annotations

import math

import torch

from regard.sine.series import ranks, rows

# The roundings of a pair's features differ from key to key and are as good as random. With u = 2^-11
# for fp16, a logit moves by rate * u * sqrt(2/3 sum v^2 c^2) in the root mean square, which moves the
# output by at most 0.71 of that, reached where two keys share the weight. Six of those are a bound
# that one of 10^9 numbers passes in this worst case.
FEATURE_ROUNDING = 6 * 0.71 * math.sqrt(2 / 3) * 2**-11
# Weights, values and output of fp32 inputs are rounded to fp16 on the way, 2^-11 each.
FULL_PRECISION = 3 * 2**-11
# The most that rate |v|_1 may be. The logits that cuDNN sees hold no alpha; they are at most 2.9 times
# as large, and stay above -88.7, where its backward has a known fault (pytorch #196678).
LARGEST_LOGIT = 30.0
# What exact attention of a dtype errs by itself: its output alone is rounded by u = 2^-8 (bf16) or
# 2^-11 (fp16) of its size. Measured against fp64 an exact bf16 kernel errs by 2.5e-3.
OWN_ERROR = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# Sizes that ranks are chosen for: |v|_1 of an `Additive` at its start and a little more, 5 at 16 hidden
# units; and what |a + b| of a usual unit may reach for normal a and b and some thousand places.
ASSUMED_REACH = 8.0
ASSUMED_SIZE = 1.25
# Longer series cost more than they gain.
LONGEST_SERIES = 8


def _assumed_rows(kind: str) -> dict[int, tuple[float, float]]:
    """Largest error and sqrt(sum c^2) of the row for `ASSUMED_REACH`, by rank."""
    found = {}
    for rank in ranks(kind):
        row = next(row for row in rows(kind, rank) if row.reach >= ASSUMED_REACH)
        found[rank] = (row.error, math.sqrt(sum(c * c for c in row.coefficients)))
    return found


# The kind whose largest error is least, where an error is to be kept.
BOUNDED = "uniform"
# At import: compiled graphs would guard every number of the tables.
ASSUMED_ROWS = _assumed_rows(BOUNDED)


def assumed_error(rank: int, hidden: int, rate: float) -> float:
    """The error bound for the assumed sizes; `pick_rows` computes it for the actual ones."""
    error, height = ASSUMED_ROWS[rank]
    # |v|_2 of normal v is sqrt(pi / 2 / hidden) |v|_1.
    norm = math.sqrt(math.pi / 2) * rate * ASSUMED_SIZE
    delta = rate * ASSUMED_SIZE * hidden**0.5 * error
    return math.exp(min(2 * delta, 700.0)) - 1 + FEATURE_ROUNDING * norm * height


def shortest_rank(allowed: float, hidden: int, rate: float) -> int | None:
    """The shortest series that meets the error for the assumed sizes, or None."""
    for rank in ASSUMED_ROWS:
        if rank <= LONGEST_SERIES and assumed_error(rank, hidden, rate) <= allowed:
            return rank
    return None
