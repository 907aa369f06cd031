"""Additive attention through a sine series of tanh: the pairwise form becomes an inner one."""

from regard.engines.sine.bounds import BOUNDED
from regard.engines.sine.engine import Sine

# The table that keeps to an error.
TABLE = BOUNDED

__all__ = ["TABLE", "Sine"]
