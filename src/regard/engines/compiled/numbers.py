"""Numbers inside kernels: exponential, tanh and the factors of dropout, in forms that LLVM vectorises.

LLVM has no vector form of the C library's `expf` and `tanhf`, which cost 20 times what these do.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from regard.engines.native import kernel

# No reordering here: `(x + MAGIC) - MAGIC` must not become x.
EXACT = frozenset({"contract"})
ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
INF = np.float32(np.inf)
LOG2_E = np.float32(1.44269504)
# Added to a number below 2**22 it leaves the nearest integer in the last bits.
MAGIC, MAGIC_BITS = np.float32(12582912.0), np.int32(0x4B400000)
# log 2 in two parts: products of the first with integers up to 128 are exact.
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# exp(r) = 1 + r + r^2 (C0 + C1 r + ...) on |r| <= log(2) / 2, from Cephes' expf: 1 ulp.
C0, C1, C2, C3, C4, C5 = (
    np.float32(c)
    for c in (0.50000001201, 0.16666665459, 0.041665795894, 0.0083334519073, 1.3981999507e-3, 1.98756915e-4)
)  # fmt: skip
# Below this the result would be a denormal number: 0 instead.
LEAST = np.float32(-86.9)


@intrinsic
def bits_of(typing_context, x):
    """The bits of an fp32 number as an int32."""
    del typing_context, x

    def code(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), code


@intrinsic
def float_of(typing_context, x):
    """The fp32 number with these bits."""
    del typing_context, x

    def code(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), code


@kernel(fastmath=EXACT, inline=True)
def parts_of_exponential(x):
    """2^n and e^r - 1 with e^x = 2^n e^r, for -87 < x < 87."""
    shifted = x * LOG2_E + MAGIC
    n = shifted - MAGIC
    r = x - n * LN2_HIGH - n * LN2_LOW
    rest = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
    power = np.int32((np.int32(bits_of(shifted) - MAGIC_BITS) + np.int32(127)) << np.int32(23))
    return float_of(power), rest * (r * r) + r


@kernel(fastmath=EXACT, inline=True)
def exponential(x):
    """e^x for x <= 0, 0 for -inf, NaN for NaN."""
    inside = LEAST if x < LEAST else x
    power, rest = parts_of_exponential(inside)
    result = power * rest + power
    result = ZERO if x < LEAST else result
    return x if x != x else result


@kernel(fastmath=EXACT, inline=True)
def tanh(x):
    """The hyperbolic tangent with a small relative error for every x, also near 0."""
    double = -TWO * abs(x)
    double = np.float32(-40) if double < np.float32(-40) else double
    power, rest = parts_of_exponential(double)
    below = power * rest + (power - ONE)  # e^(-2|x|) - 1
    result = -below / (below + TWO)
    result = -result if x < ZERO else result
    return x if x != x else result


@kernel(fastmath=EXACT, inline=True)
def row_hashes(seed, row):
    """Two random 32-bit numbers for a row of weights."""
    x = np.uint64(seed) + np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return np.uint32(x), np.uint32(x >> np.uint64(32))


@kernel(fastmath=EXACT, inline=True)
def is_kept(first, second, column, threshold):
    """Whether dropout keeps a weight: a hash of row and column, so that the backward draws the same."""
    x = np.uint32(first + np.uint32(column) * np.uint32(0x9E3779B9))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ second
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16))) >= threshold
