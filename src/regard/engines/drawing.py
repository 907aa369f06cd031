"""Device code that draws the weights that dropout keeps, alike in every kernel that asks for a pair.

Imported only by files of kernels, so that `import regard` needs no Triton.
"""

from __future__ import annotations

import triton.language as tl

import triton

# Steps of the counter and multipliers of the mix: those of SplitMix and of MurmurHash3's finaliser.
STEP = tl.constexpr(0x9E3779B9)
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(0x85EBCA6B), tl.constexpr(0xC2B2AE35)


@triton.jit
def is_kept(seed, head, rows, columns, queries, share):
    """Whether the weight of each pair is kept, from seed, head, row and column alone.

    Each row has two random words from Philox; a mix of them with the column takes 9 instructions, where
    Philox for each pair takes more than a hundred, as long as all else that a tile does.
    `rows` and `columns` broadcast against each other. `share` is the probability to be dropped.
    """
    at = tl.cast(head, tl.int64) * queries + rows
    words = tl.randint4x(tl.load(seed), at)
    x = words[0].to(tl.uint32, bitcast=True) + columns.to(tl.uint32) * STEP
    x = (x ^ (x >> 16)) * FIRST_FACTOR
    x = (x ^ words[1].to(tl.uint32, bitcast=True) ^ (x >> 13)) * SECOND_FACTOR
    x = x ^ (x >> 16)
    # 24 bits, which fp32 holds exactly.
    return (x >> 8).to(tl.int32).to(tl.float32) * (1.0 / 2**24) >= share
