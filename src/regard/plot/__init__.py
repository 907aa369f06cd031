"""Plots of attention weights. Needs matplotlib, which is imported when something is drawn.

Each function takes weights of any device and dtype and returns a new matplotlib `Figure`, which
`figure.savefig("weights.png")` saves. pyplot and its global state are not used.

The figures of reports and benchmarks are drawn in their own packages, not here.
"""

from regard.plot.matrices import alignment, decoding, heads
from regard.plot.summaries import compare, entropy

__all__ = ["alignment", "compare", "decoding", "entropy", "heads"]
