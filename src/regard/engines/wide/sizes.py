"""Tiles of the kernels, and the chunks of queries that bound the workspace of the backward."""

from __future__ import annotations

from typing import NamedTuple

from regard.engines.sizes import blocks_in

# Widths of features and values that the kernels take: whole steps of a product, and what registers hold.
FEATURE_STEP, WIDEST, WIDEST_VALUE = 64, 8192, 256
# Bytes of weights and gradients of logits that a chunk of queries holds at once, 4 for each pair. On one
# NVIDIA H200 chunks of 0.3 to 8 GiB took the same time within 8%, smaller ones more.
CHUNK_BYTES = 2**28
PAIR_BYTES = 4
# Rows of a chunk are a multiple of this, but in the last chunk.
ROW_STEP = 128
# Under a causal mask a chunk multiplies the keys up to its last query. With at least this many chunks
# the products take 9/16 of those without a mask, where 1/2 are seen.
CAUSAL_CHUNKS = 8
# Rows that one program of `along_kernel` sums.
ROWS_SUMMED = 64
# Rows of the matrices of a chunk begin at multiples of 16 bytes, as fast products need.
ALIGNED = 8
# Powers of two that keep small weights and gradients of logits out of the subnormal numbers of fp16. A
# weight is at most 1. A gradient of a logit is at most 2 X times grad_out (below 1) times a value (below
# 4): 2^9 for values 64 wide. What overflows all the same makes the gradients NaN, which the caller sees.
WEIGHT_SCALE, SLOPE_SCALE = 2.0**10, 2.0**6


class WideTile(NamedTuple):
    """Queries and keys of a tile, columns of one step of a product, warps and stages of a program.

    `registers` is the most that a thread may have, None for no limit.
    """

    queries: int
    keys: int
    step: int
    warps: int
    stages: int
    registers: int | None = None


# Tiles of the forward by the widest values that they leave registers for, and of the backward, on Hopper
# and newer GPUs. 99 KiB of shared memory, which some GPUs of Ampere have, hold two stages of a smaller one.
# In the interpreter small tiles test their edges. `benchmarks/wide.py --tiles` measures them
# (benchmarks/results/wide_tiles_h200.json).
HOPPER = {64: WideTile(128, 256, 64, 8, 3), 128: WideTile(128, 128, 64, 8, 4)}
# Drawing weights takes registers, of which the largest tile has none left.
HOPPER_DROPOUT = {128: WideTile(128, 128, 64, 8, 3)}
HOPPER_SLOPES = {128: WideTile(64, 128, 64, 4, 4)}
AMPERE, INTERPRETED = WideTile(64, 64, 64, 4, 2), WideTile(32, 32, 64, 4, 1)


def tile_for(
    generation: int, interpreted: bool, columns: int, slopes: bool = False, dropout: bool = False
) -> WideTile:
    """The tile for a GPU of this generation and values this wide; `slopes` of the backward."""
    if interpreted:
        return INTERPRETED
    if generation >= 9:
        tiles = HOPPER_SLOPES if slopes else HOPPER_DROPOUT if dropout else HOPPER
        for most, tile in tiles.items():
            if columns <= most:
                return tile
    return AMPERE


def chunk_rows(heads: int, queries: int, keys: int, causal: bool) -> int:
    """The number of queries of a chunk of the backward."""
    fitting = CHUNK_BYTES // (PAIR_BYTES * heads * max(keys, 1))
    if causal:
        fitting = min(fitting, blocks_in(queries, CAUSAL_CHUNKS))
    return min(max(fitting // ROW_STEP * ROW_STEP, ROW_STEP), queries)


def aligned(length: int) -> int:
    """The length of a row of a chunk's matrices."""
    return blocks_in(length, ALIGNED) * ALIGNED
