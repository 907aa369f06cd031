"""regard: every way to score a query against a key, behind one function.

```python
import torch, regard

q, k, v = (torch.randn(2, 8, 128, 64) for _ in range(3))
out = regard.attention(q, k, v, mask=regard.Mask.causal())
```
"""

from regard import nn
from regard.activations import Activation
from regard.attention import attend, attention, explain, score
from regard.engines.base import Attended
from regard.engines.plan import EngineRefused, Plan
from regard.mask import Mask
from regard.scores import (
    GAT,
    Additive,
    Bilinear,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    InnerScore,
    LowRank,
    PairwiseScore,
    Projected,
    ScaledDot,
    Score,
)

__version__ = "0.1.0"

__all__ = [
    "GAT",
    "Activation",
    "Additive",
    "Attended",
    "Bilinear",
    "Cosine",
    "Dot",
    "EngineRefused",
    "GATv2",
    "Gaussian",
    "InnerScore",
    "LowRank",
    "Mask",
    "PairwiseScore",
    "Plan",
    "Projected",
    "ScaledDot",
    "Score",
    "attend",
    "attention",
    "explain",
    "nn",
    "score",
]
