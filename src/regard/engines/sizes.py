"""Arithmetic of tiles and blocks.

Triton has both, for kernels as well as for Python; called from there they take ten times as long.
"""

from __future__ import annotations


def power_of_two(n: int) -> int:
    """The least power of two that is at least n: what Triton takes for sizes of tiles."""
    return 1 << max(n - 1, 0).bit_length()


def blocks_in(length: int, block: int) -> int:
    """How many blocks cover a length."""
    return -(-length // block)
