"""What engines with kernels of their own share: layout, operators, autograd, statistics.

- `engine.py`: `Tiled`, the base class of such an engine; `layout.py`: tensors in the operators' layout.
- `operators.py`: the kernels as registered operators with autograd; `eager.py`: short ways of eager calls;
  `twice.py`: derivatives of their gradients.

Kernels do not belong here: an engine hands in its own, as `Kernels` describes them.
"""

from regard.engines.tiled.arguments import COUNT, Arguments
from regard.engines.tiled.engine import Tiled
from regard.engines.tiled.layout import Layout
from regard.engines.tiled.operators import Kernels, Operators

__all__ = ["COUNT", "Arguments", "Kernels", "Layout", "Operators", "Tiled"]
