"""Choices fixed before a launch: tile sizes, warps, registers, and how work is divided.

They follow from shapes, dtypes and whether the compiled layout is trusted (`lanes.py`), never from
tensor values or timing: timing would change results bit by bit between machines.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton.language as tl

import triton
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton import lanes, prepare
from regard.engines.triton.engine import FEWEST_QUERIES_FOR_TILES
from regard.engines.triton.structs import KernelSizes, KernelTile, PairTerms
from regard.precision import working_dtype

# Set by TRITON_INTERPRET when Triton is imported: kernels then run on the CPU, in NumPy.
INTERPRETED = triton.knobs.runtime.interpret
WORK_DTYPE = {torch.float32: tl.float32, torch.float64: tl.float64}
DOT_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}
# Numbers of the keys that one program of the kernels for few queries holds at once.
DECODE_TILE = 4096
# Programs that fill a GPU of 132 multiprocessors twice, which is enough; and numbers of keys and values
# for one of them. Beyond these it pays to have up to twice as many programs.
DECODE_PROGRAMS = 264
DECODE_SHARE = 65536
# Numbers that one program holds which puts parts together: few, so that programs are many.
COMBINED = 1024
# How the kernels for few queries are compiled. Lanes that sum up together have to end with the same bits,
# as each of them then stores the sum: a product fused into the first addition would be rounded by the one
# and not by the other.
DECODE_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
# A load takes 16 bytes at most, and so 16 numbers; Triton asks the same of strides.
MOST_EVEN = 16
# Columns of gradients that one program sums up, and copies of them that it reads at once.
SUMMED_COLUMNS, SUMMED_COPIES = 32, 128
# Registers of a thread: fewer than the compiler would take, so that more warps hide the waiting.
FORWARD_REGISTERS = 112
FORWARD_REGISTERS_FEW_UNITS = 128
BACKWARD_REGISTERS = 128
LANES_REGISTERS = 168
# Registers of the warps of 132 multiprocessors; and how often programs fill them all at least, if
# there are queries enough: at the end of a launch some wait for the others.
ALL_REGISTERS = 132 * 65536 // 32
FULL_ROUNDS = 16


def sizes(args: Arguments) -> KernelSizes:
    """Sizes as kernels read them."""
    _, groups, heads, queries, keys = args.sizes
    return KernelSizes(groups, heads, queries, keys, args.value.shape[-1])


def chunk(units: int) -> int:
    """Features of an inner product that are read at once."""
    return min(max(power_of_two(units), 16), 64)


def forward_tile(args: Arguments) -> tuple[int, int, int]:
    """Queries, keys and warps of one program of the forward."""
    wide = power_of_two(args.value.shape[-1])
    queries = 16 if args.sizes[3] <= 16 or wide > 256 else 32 if wide > 128 else 64
    # In fp32 4 warps have no registers for so many sums and for features too. Not with hidden units: a
    # lane with fewer pairs has more loads for each.
    many = args.v is None and args.q.dtype == torch.float32 and wide > 64 and queries > 16
    return queries, 64 if wide <= 256 else 32, 8 if many else 4


@functools.lru_cache(maxsize=512)
def fixed(*choices: Any) -> KernelTile:
    """The same tuple for the same choices: making one takes longer than a short kernel."""
    return KernelTile(*(tl.constexpr(x) for x in choices))


def tile(
    args: Arguments,
    sides: tuple[int, int, int],
    form_name: str,
    units: int,
    changes: PairTerms,
    backward: bool = False,
    by_lanes: bool = False,
) -> KernelTile:
    """What is fixed for a kernel; `sides` are queries, keys and warps of a program."""
    dtype = args.q.dtype
    dot = torch.float32 if INTERPRETED and dtype == torch.bfloat16 else dtype
    # Gradients of a mean may be 1e-9, which fp16 does not hold: TF32 has its digits and the range.
    shifted = backward and dtype == torch.float16
    dot = torch.float32 if shifted else dot
    sparse = any(x is not None for x in (changes.bias, changes.dense, changes.query_segment))
    hides = sparse or changes.start is not None or changes.stop is not None
    return fixed(
        *sides,
        units,
        args.q.shape[-1],
        max(power_of_two(args.value.shape[-1]), 16),
        form_name,
        args.activation,
        WORK_DTYPE[working_dtype(dtype)],
        DOT_DTYPE[dot],
        "tf32" if shifted and not INTERPRETED else "ieee",
        form_name != "inner" and not backward,
        hides,
        sparse,
        by_lanes,
        INTERPRETED,
    )


class Split(NamedTuple):
    """How the kernel for few queries shares its keys out.

    `block` keys and `wide` hidden units are read at once; `rows` queries of all heads have `parts`
    programs each, which take `share` keys. `even` divides what rows are apart.
    """

    rows: int
    block: int
    wide: int
    parts: int
    share: int
    even: int


def decode_split(args: Arguments) -> Split:
    """How the kernel for few queries shares out this call."""
    queries, keys = args.sizes[3:]
    rows, (block, wide) = prepare.count(args) * queries, decode_tile(args)
    programs = rows * 2 if INTERPRETED else DECODE_PROGRAMS
    numbers = keys * (args.q.shape[-1] + args.value.shape[-1])
    parts = max(programs // max(rows, 1), blocks_in(numbers, DECODE_SHARE))
    parts = max(min(parts, 2 * programs // max(rows, 1), blocks_in(keys, block)), 1)
    share = max(blocks_in(blocks_in(keys, parts), block), 1) * block
    return Split(rows, block, wide, max(blocks_in(keys, share), 1), share, evenness(args))


def evenness(args: Arguments) -> int:
    """The largest power of two that divides all distances between rows of keys, and of values.

    Triton asks 16 of each by itself; 1,000 hidden units would be read one by one.
    """
    k, value = args.k, args.value
    # Values that are not packed are copied first, and then nothing but their dims is between them.
    heads = prepare.head_strides(value) if prepare.is_packed(value) else ()
    strides = (*prepare.head_strides(k), k.stride(3), *heads, value.shape[-1])
    return math.gcd(MOST_EVEN, *strides)


def keys_side_by_side(block: int, dims: int) -> int:
    """How many keys of a block 128 lanes take at once that read 8 numbers of the values each."""
    return max(min(block, 1024 // max(power_of_two(dims), 16)), 1)


def combining(parts: int, dims: int) -> tuple[int, int]:
    """How many parts a program of `combine_kernel` holds, and how many dims of each.

    Few enough dims that many programs share the work of one query.
    """
    wide = power_of_two(parts)
    return wide, min(power_of_two(dims), max(COMBINED // wide, 16))


def is_decode(args: Arguments, entropy: bool) -> bool:
    """Whether the kernels for few queries serve, forward and backward.

    Together, or not at all: another kernel sums a score in another order, and in a softmax large scores
    do not forgive what that makes of their last digits.
    """
    few = args.v is not None and args.sizes[3] < FEWEST_QUERIES_FOR_TILES
    return few and not entropy and args.seed is None


class Blocks(NamedTuple):
    """How the backward for few queries shares its keys out.

    A program takes one of `parts` blocks of keys of a head, whose `sides` are queries, keys and warps;
    it reads `wide` hidden units at once, or `dims` of the values; `even` as in `Split`.
    """

    sides: tuple[int, int, int]
    wide: int
    dims: int
    parts: int
    even: int


def decode_blocks(args: Arguments) -> Blocks:
    """How the backward for few queries shares out this call."""
    queries, keys = args.sizes[3:]
    block, wide = decode_tile(args)
    dims = min(power_of_two(args.value.shape[-1]), DECODE_TILE // block)
    sides = (power_of_two(queries), block, DECODE_OPTIONS["num_warps"])
    return Blocks(sides, wide, dims, blocks_in(keys, block), evenness(args))


def decode_tile(args: Arguments) -> tuple[int, int]:
    """How many keys a program for few queries holds at once, and how many hidden units of each.

    Where hidden units are many, as with recurrent decoders, keys are few, and so blocks are small. Not with
    more queries: the backward keeps a row of each query for each block, all of them together less than
    the keys. The same forward and backward: the order in which a score is summed follows from it, and the
    backward has to find the very scores that the forward has found.
    """
    least = min(max(2 * power_of_two(args.sizes[3]), 4), 32)
    wide = min(power_of_two(args.q.shape[-1]), DECODE_TILE // least)
    return max(least, min(64, DECODE_TILE // wide)), wide


class Summing(NamedTuple):
    """What `sum_copies_kernel` is told: rows of so many columns, `of_row` apart, with copies of each.

    Copies of a row are `of_copy` apart.
    """

    rows: int
    columns: int
    copies: int
    of_copy: int
    of_row: int

    @property
    def programs(self) -> int:
        """How many programs share them."""
        return self.rows * blocks_in(self.columns, SUMMED_COLUMNS)

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The kernel's sizes."""
        return self.copies, self.of_copy, self.of_row, self.columns

    @property
    def constants(self) -> tuple[int, int]:
        """What the kernel is compiled for."""
        return min(power_of_two(self.copies), SUMMED_COPIES), SUMMED_COLUMNS


def decode_sums(args: Arguments, parts: int) -> dict[str, Summing]:
    """What is left to sum after the backward for few queries, by the names of `DecodePointers`.

    Of calls where `prepare.has_own_memory`. What is not named is whole, as one program writes it.
    """
    batch, groups, shared, queries, keys = args.sizes
    units, heads = args.q.shape[-1], groups * shared
    found = {"v": Summing(heads, units, parts * batch, heads * units, units)}
    if parts > 1:
        each = queries * units
        found["q"] = Summing(batch * heads, each, parts, each, parts * each)
    if shared > 1:
        for name, each in (("k", keys * units), ("value", keys * args.value.shape[-1])):
            found[name] = Summing(batch * groups, each, shared, each, shared * each)
    return found


def registers(form_name: str, most: int) -> dict[str, Any]:
    """The most registers that a thread of this kernel may take."""
    return {"maxnreg": most} if form_name == "fast" and not INTERPRETED else {}


def forward_registers(form_name: str, units: int) -> dict[str, Any]:
    """The same for the forward kernel."""
    return registers(form_name, FORWARD_REGISTERS if units >= 32 else FORWARD_REGISTERS_FEW_UNITS)


def backward_registers(form_name: str, by_lanes: bool) -> dict[str, Any]:
    """The same for the backward kernel."""
    return registers(form_name, LANES_REGISTERS if by_lanes else BACKWARD_REGISTERS)


def backward_tile(args: Arguments, by_lanes: bool = False) -> tuple[int, int, int]:
    """Queries, keys and warps of one program of the backward."""
    wide = power_of_two(args.value.shape[-1])
    if args.v is None:
        return (32, 32, 4)
    if by_lanes:
        return (lanes.SIDE, lanes.SIDE, 1)
    return (32, 32, 1) if wide <= 64 else (32, 32, 2) if wide <= 128 else (16, 32, 4)


def in_lanes(args: Arguments) -> bool:
    """Whether the backward sums as in `lanes.py`."""
    return args.q.dtype == torch.bfloat16 and prepare.is_fast(args) and not lanes.refused()


def query_parts(
    args: Arguments, programs: int, sides: tuple[int, int, int], by_lanes: bool = False
) -> int:
    """How many programs share the queries of one block of keys, so that a GPU stays full."""
    most = blocks_in(args.sizes[3], sides[0])
    warps = ALL_REGISTERS // (LANES_REGISTERS if by_lanes else BACKWARD_REGISTERS)
    return max(min(blocks_in(FULL_ROUNDS * warps, max(programs * sides[2], 1)), most), 1)
