"""Pictures of attention weights. Needs matplotlib, which is imported when something is drawn.

Each function takes weights as a tensor of any device and dtype and returns a matplotlib `Figure` of its
own: nothing of pyplot is touched, and `figure.savefig("weights.png")` saves it.

Figures of reports and benchmarks are drawn where they are made, not here.
"""

from regard.plot.matrices import alignment, decoding, heads
from regard.plot.summaries import compare, entropy

__all__ = ["alignment", "compare", "decoding", "entropy", "heads"]
