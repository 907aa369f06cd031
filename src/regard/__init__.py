"""regard: every way to score a query against a key, behind one function.

```python
import torch, regard

q, k, v = (torch.randn(2, 8, 128, 64) for _ in range(3))
out = regard.attention(q, k, v, mask=regard.Mask.causal())
```
"""

import importlib
from typing import TYPE_CHECKING

from regard import nn, scores
from regard.activations import Activation
from regard.attention import attend, attention, score
from regard.engines.base import Attended
from regard.engines.edges import SortedEdges
from regard.engines.plan import EngineRefused, Plan
from regard.explaining import Site, explain
from regard.mask import Mask
from regard.scores.exports import *  # noqa: F403 # every score, from one list

if TYPE_CHECKING:
    from regard import doctor, plot
    from regard.choosing.api import choose

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "Attended",
    "EngineRefused",
    "Mask",
    "Plan",
    "Site",
    "SortedEdges",
    "attend",
    "attention",
    "choose",
    "doctor",
    "explain",
    "nn",
    "plot",
    "score",
]
__all__ += scores.exports.__all__
__all__.sort(key=lambda name: (not name.isupper(), name[0].islower(), name))  # as ruff sorts


def __getattr__(name: str) -> object:
    """Import `choose`, `doctor` and `plot` on first use: they would slow down `import regard`."""
    if name in ("doctor", "plot"):
        return importlib.import_module(f"regard.{name}")
    if name == "choose":
        from regard.choosing.api import choose

        globals()[name] = choose
        return choose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
