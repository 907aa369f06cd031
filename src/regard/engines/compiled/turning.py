"""Transposes: kernels read keys and values along the length, callers hold them along the width.

PyTorch's copy of a transposed view takes 16 ns a number where the width is a power of two, in which case rows
that are written together fall on the same lines of the cache. Square blocks take 1 to 2 ns.
"""

from __future__ import annotations

from regard.engines.native import kernel

SQUARE = 16


@kernel
def turn(source, out, begin, end):
    """out[i, c, r] = source[i, r, c] for the slices [begin, end)."""
    rows, columns = source.shape[1:]
    for i in range(begin, end):
        given, result = source[i], out[i]
        for first in range(0, rows, SQUARE):
            last = min(first + SQUARE, rows)
            for start in range(0, columns, SQUARE):
                for c in range(start, min(start + SQUARE, columns)):
                    for r in range(first, last):
                        result[c, r] = given[r, c]
