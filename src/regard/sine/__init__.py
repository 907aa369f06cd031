"""Additive attention as a matrix product: a sine series of tanh splits over query and key.

Because `sin(w (a + b)) = sin(wa) cos(wb) + cos(wa) sin(wb)`, a short sine series of tanh turns
`sum_h v_h tanh(a_h + b_h)` into an inner product of features, which any attention kernel can run.

- `fit.py`: fits the series and writes `tables.json`; run by hand, never at import.
- `series.py`: reads the tables.
- `lowering.py`: turns a pairwise form into features, with error bounds.
- `activation.py`: the series itself as an activation.
- `escapes.py`: counts calls that were out of range.

Here is the maths, on plain tensors. The engine and its kernels are in `regard.engines.sine_features`.
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
