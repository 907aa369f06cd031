"""What engines with kernels of their own share: layout, operators, autograd, statistics."""

from regard.engines.tiled.engine import Tiled
from regard.engines.tiled.layout import Layout
from regard.engines.tiled.operators import COUNT, Arguments, Kernels, Operators

__all__ = ["COUNT", "Arguments", "Kernels", "Layout", "Operators", "Tiled"]
