"""Both forms on the CPU in tiles with online softmax: memory O(length), statistics included."""

from regard.engines.cpu.engine import Cpu

__all__ = ["Cpu"]
