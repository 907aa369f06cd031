"""Additive attention through a sine series of tanh: the pairwise form becomes an inner one."""

from regard.engines.sine.engine import Sine

__all__ = ["Sine"]
