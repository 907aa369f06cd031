"""Measures the candidate scores on this machine and says which one to use.

```python
from regard.choosing.cost import measure, parse_shape

report = measure(parse_shape("d_q=256,d_k=128,len=1024,heads=8"))
```
"""

from regard.choosing.cost.measurement import measure
from regard.choosing.cost.results import Report, Row
from regard.choosing.cost.shape import Shape, ShapeError, parse_shape
from regard.measuring.times import Times

__all__ = ["Report", "Row", "Shape", "ShapeError", "Times", "measure", "parse_shape"]
