"""Additive attention as a matrix product: a sine series of tanh splits over query and key.

`sin(w (a + b)) = sin(wa) cos(wb) + cos(wa) sin(wb)`, so that a short sine series of tanh turns
`sum_h v_h tanh(a_h + b_h)` into an inner product of features, which any attention kernel runs.

`fit.py` makes the tables, `series.py` reads them, `lowering.py` builds the features, `escapes.py`
counts the calls that were out of range.
"""

from regard.sine import escapes
from regard.sine.escapes import Escapes
from regard.sine.lowering import (
    logit_error,
    lower,
    lower_exactly,
    sine_features,
    slope_error,
    unit_reach,
)
from regard.sine.series import KINDS, Series, load, ranks

__all__ = [
    "KINDS",
    "Escapes",
    "Series",
    "escapes",
    "load",
    "logit_error",
    "lower",
    "lower_exactly",
    "ranks",
    "sine_features",
    "slope_error",
    "unit_reach",
]
