"""What every score costs at a given shape on this machine: time, memory and error. Nothing is trained.

```python
from regard.choosing.cost import measure, parse_shape

report = measure(parse_shape("d_q=256,d_k=128,len=1024,heads=8"))
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.choosing.cost.shape import Shape, ShapeError, parse_shape

if TYPE_CHECKING:
    from regard.choosing.cost.measurement import measure
    from regard.choosing.cost.results import CostReport, CostRow
    from regard.measuring.times import Times

__all__ = ["CostReport", "CostRow", "Shape", "ShapeError", "Times", "measure", "parse_shape"]


def __getattr__(name: str) -> object:
    """Load names that need torch on first use: completion reads shapes without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from regard.choosing.cost.measurement import measure
    from regard.choosing.cost.results import CostReport, CostRow
    from regard.measuring.times import Times

    globals().update(measure=measure, CostReport=CostReport, CostRow=CostRow, Times=Times)
    return globals()[name]
