"""The layout of a call: the widths of features and values, and the columns of beta.

It is a pure function of shapes, so that a call has the same layout on every machine. There are two kinds:
for cuDNN, and for the wide kernels, which take what cuDNN does not.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.engines.sizes import blocks_in, power_of_two
from regard.sine.series import can_lend

# Milliseconds of forward, and of forward and backward, through cuDNN SDPA on one NVIDIA H200 (batch 4,
# 16 heads, length 4096, fp16), by width of features and of values; benchmarks/widths.py measures them. A
# call is padded to the cheapest pair that holds it. Widths in between cost more than the next pair here:
# (136, 64) 1.17 and 7.17, (160, 64) 1.06 and 7.00, (128, 72) 0.893 and 3.62, (192, 72) 1.16 and 12.2.
COST = {
    (64, 64): (0.579, 2.26),
    (128, 64): (0.738, 3.27),
    (128, 80): (0.882, 3.45),
    (128, 128): (0.911, 3.65),
    (192, 64): (1.008, 7.00),
    (192, 128): (1.17, 6.97),
    (256, 64): (1.23, 7.99),
    (256, 128): (1.26, 7.52),
}
CHEAPEST_FIRST = sorted(COST, key=lambda widths: sum(COST[widths]))
WIDEST_FEATURES, WIDEST_VALUE = 256, 128
# The same for the wide kernels, which take features in steps and values in powers of two.
WIDE_FEATURES, WIDE_VALUE = 8192, 256
FEATURE_STEP, LEAST_VALUE = 64, 16
# Feature columns of beta: one with its value in fp16, one with what that rounds away.
BETA_COLUMNS = 2


class Widths(NamedTuple):
    """The layout of a call.

    features: width of phi and psi, padding included.
    values: width of the values, padding included.
    lent: whether beta takes the two columns of the last sine of one hidden unit, else it has two columns
        of its own. The unit with the least |v| lends them and has a series shorter by one. The error of
        the output does not grow: 3.7e-3 for *fast* either way (benchmarks/results/sine_errors.json).
    """

    features: int
    values: int
    lent: bool


def lay_out(series_width: int, value_dim: int, lend: bool = True) -> Widths | None:
    """The cheapest layout for 2 * rank * hidden features, or None where cuDNN has none.

    The cost is the time of a forward alone plus that of a forward and backward. `lend` says whether a
    unit can lend columns, which needs a series shorter by one; it does so only where beta's own columns
    would not fit into the same width.
    """
    for wide, wide_value in CHEAPEST_FIRST:
        if wide >= series_width and wide_value >= value_dim:
            own = wide >= series_width + BETA_COLUMNS
            if own or lend:
                return Widths(wide, wide_value, not own)
    return None


def lay_out_wide(series_width: int, value_dim: int, lend: bool = True) -> Widths | None:
    """The layout for the wide kernels, or None where features or values are too wide for them.

    A unit lends its columns wherever it can: two columns more would be a step of 64 more.
    """
    spare = blocks_in(series_width, FEATURE_STEP) * FEATURE_STEP - series_width
    lent = lend and spare < BETA_COLUMNS
    columns = series_width if lent else series_width + BETA_COLUMNS
    features = blocks_in(columns, FEATURE_STEP) * FEATURE_STEP
    values = max(power_of_two(value_dim), LEAST_VALUE)
    if features > WIDE_FEATURES or values > WIDE_VALUE:
        return None
    return Widths(features, values, lent)


def widths_of(kind: str, rank: int, hidden: int, value_dim: int, wide: bool = False) -> Widths:
    """The layout of a call that the engine has checked to have one; `wide` asks for the wide kernels."""
    how = lay_out_wide if wide else lay_out
    found = how(2 * rank * hidden, value_dim, can_lend(kind, rank))
    if found is None:
        raise ValueError(
            f"rank {rank}, {hidden} hidden units and value dim {value_dim} do not fit into cuDNN, nor "
            "into the wide kernels; see regard.engines.sine_features.widths"
        )
    return found


def fits_cudnn(kind: str, rank: int, hidden: int, value_dim: int) -> bool:
    """Whether cuDNN takes features and values of this call."""
    return lay_out(2 * rank * hidden, value_dim, can_lend(kind, rank)) is not None
