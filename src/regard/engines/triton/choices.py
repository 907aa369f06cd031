"""Choices fixed before a launch: tile sizes, warps, registers, and how work is divided.

They follow from shapes, dtypes and whether the compiled layout is trusted (`lanes.py`), never from
tensor values or timing: chosen by timing, results would differ in their last bits between machines.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton.language as tl

from regard.engines.launching import interpreted
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton import lanes, prepare
from regard.engines.triton.engine import FEWEST_QUERIES_FOR_TILES
from regard.engines.triton.structs import KernelForm, KernelSizes, KernelTile, PairTerms, Values
from regard.precision import working_dtype

WORK_DTYPE = {torch.float32: tl.float32, torch.float64: tl.float64}
DOT_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}
# Numbers of the keys that one program of the decode kernels holds at once.
DECODE_TILE = 4096
# Programs that fill a GPU of 132 multiprocessors twice, which is enough; and numbers of keys and values
# that one of them reads. With more to read, up to twice as many programs are faster.
DECODE_PROGRAMS = 264
DECODE_SHARE = 65536
# Numbers that one program of `combine_kernel` holds: few, so that there are many programs.
COMBINED = 1024
# Keys whose weights it writes at once.
COMBINED_KEYS = 256
# Compiler options of the decode kernels. All lanes of a reduction store the sum, so they have to end with
# the same bits. With fusion, a product fused into the first addition is rounded in one lane and not in
# another.
DECODE_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
# A load takes at most 16 bytes, and so at most 16 numbers; Triton specialises strides for the same 16.
MOST_EVEN = 16
# Columns of gradients that one program of `sum_copies_kernel` sums, and copies that it reads at once.
SUMMED_COLUMNS, SUMMED_COPIES = 32, 128
# Registers of a thread: fewer than the compiler would use, so that more warps hide latency.
FORWARD_REGISTERS = 112
FORWARD_REGISTERS_FEW_UNITS = 128
BACKWARD_REGISTERS = 128
LANES_REGISTERS = 168
# Registers of 132 multiprocessors over the 32 lanes of a warp; and how often programs should fill them,
# if there are enough queries: in the last round some multiprocessors are idle.
ALL_REGISTERS = 132 * 65536 // 32
FULL_ROUNDS = 16


def sizes(args: Arguments) -> KernelSizes:
    """The sizes of the call as kernels take them."""
    _, groups, heads, queries, keys = args.sizes
    return KernelSizes(groups, heads, queries, keys, args.value.shape[-1])


def chunk(units: int) -> int:
    """The number of features of an inner product that a kernel reads at once."""
    return min(max(power_of_two(units), 16), 64)


def forward_tile(args: Arguments) -> tuple[int, int, int]:
    """Queries, keys and warps of one program of the forward."""
    wide = power_of_two(args.value.shape[-1])
    queries = 16 if args.sizes[3] <= 16 or wide > 256 else 32 if wide > 128 else 64
    # In fp32 four warps lack the registers for wide sums and features together, so eight are used. Not for
    # pairwise forms: with fewer pairs in a lane each pair costs more loads.
    many = args.v is None and args.q.dtype == torch.float32 and wide > 64 and queries > 16
    return queries, 64 if wide <= 256 else 32, 8 if many else 4


@functools.lru_cache(maxsize=512)
def fixed(*choices: Any) -> KernelTile:
    """A `KernelTile` of these choices, cached: making one takes longer than a short kernel."""
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
    """The compile-time choices of a kernel; `sides` are queries, keys and warps of a program."""
    dtype = args.q.dtype
    # NumPy has no bf16, in which the interpreter would multiply.
    dot = torch.float32 if interpreted() and dtype == torch.bfloat16 else dtype
    # Gradients of a mean may be 1e-9, which underflows in fp16. TF32 has as many digits and more range.
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
        "tf32" if shifted and not interpreted() else "ieee",
        form_name != "inner" and not backward,
        hides,
        sparse,
        by_lanes,
        interpreted(),
    )


class Split(NamedTuple):
    """How `decode_kernel` divides the keys of a call.

    Each of `rows` queries (of all heads) has `parts` programs, which take `share` keys each and read
    `block` keys and `wide` hidden units at once. `even` is a common divisor of the strides of rows. With
    any number of keys there are at most `most` parts.
    """

    rows: int
    block: int
    wide: int
    parts: int
    share: int
    even: int
    most: int


def decode_split(args: Arguments) -> Split:
    """How `decode_kernel` divides this call."""
    queries, keys = args.sizes[3:]
    rows, (block, wide) = prepare.count(args) * queries, decode_tile(args)
    numbers = args.q.shape[-1] + args.value.shape[-1]
    parts, share, most = decode_parts(rows, keys, numbers, block)
    return Split(rows, block, wide, parts, share, evenness(args), most)


def decode_parts(rows: int, keys: int, numbers: int, block: int) -> tuple[int, int, int]:
    """The parts of the keys of each row, the keys in a part, and the most parts that so many rows may have.

    `numbers` are those of one key and its value.
    """
    programs, rows = rows * 2 if interpreted() else DECODE_PROGRAMS, max(rows, 1)
    most = max(2 * programs // rows, 1)
    parts = max(programs // rows, blocks_in(keys * numbers, DECODE_SHARE))
    parts = max(min(parts, most, blocks_in(keys, block)), 1)
    share = max(blocks_in(blocks_in(keys, parts), block), 1) * block
    return max(blocks_in(keys, share), 1), share, most


def evenness(args: Arguments) -> int:
    """The largest power of two, up to 16, that divides the strides of rows of keys and of values.

    Triton by itself only notices multiples of 16: rows of 1,000 hidden units would be read one by one.
    """
    k, value = args.k, args.value
    # Values that are not packed are copied first; rows of the copy are `value dim` apart.
    heads = prepare.head_strides(value) if prepare.is_packed(value) else ()
    strides = (*prepare.head_strides(k), k.stride(3), *heads, value.shape[-1])
    return math.gcd(MOST_EVEN, *strides)


def keys_side_by_side(block: int, dims: int) -> int:
    """The number of keys of a block that 128 lanes read at once, with 8 numbers of the values each."""
    return max(min(block, 1024 // max(power_of_two(dims), 16)), 1)


def combining(parts: int, dims: int) -> tuple[int, int]:
    """The number of parts that a program of `combine_kernel` holds, and of value dims.

    The dims are few, so that many programs share the work of one query. `parts` are the most that there
    may be: with a number for each length, lengths would have kernels of their own.
    """
    wide = power_of_two(parts)
    return wide, min(power_of_two(dims), max(COMBINED // wide, 16))


def is_decode(args: Arguments, entropy: bool) -> bool:
    """Whether the decode kernels (for few queries) run this call, forward and backward.

    Always both: a tiled kernel sums a score in another order, and where scores are large a change in
    their last digit changes the softmax.
    """
    few = args.v is not None and args.sizes[3] < FEWEST_QUERIES_FOR_TILES
    return few and not entropy and args.seed is None


def growing(
    form: KernelForm, pairs: PairTerms, sizes: KernelSizes, values: Values
) -> tuple[KernelForm, PairTerms, KernelSizes, Values, *tuple[int, ...]]:
    """The first arguments of the decode kernels: what depends on the number of keys is taken out of tuples.

    The numbers taken out follow in the order of `decode.GROWING`; 0 stands in their places.
    """
    numbers = (
        *(sizes.keys, form.k_b, form.k_k, form.k_g, values.value_b, values.value_k, values.value_g),
        *(pairs.bias_b, pairs.bias_k, pairs.bias_g, pairs.bias_q),
        *(pairs.dense_b, pairs.dense_k, pairs.dense_g, pairs.dense_q),
    )
    # A sole key has a stride of 0, which would be another constant than that of several.
    sole = {"bias_l": pairs.bias, "dense_l": pairs.dense} if sizes.keys == 1 else {}
    columns = {name: 1 for name, x in sole.items() if x is not None}
    bias = dict.fromkeys(("bias_b", "bias_k", "bias_g", "bias_q"), 0)
    dense = dict.fromkeys(("dense_b", "dense_k", "dense_g", "dense_q"), 0)
    return (
        form._replace(k_b=0, k_k=0, k_g=0),
        pairs._replace(**bias, **dense, **columns),
        sizes._replace(keys=0),
        values._replace(value_b=0, value_k=0, value_g=0),
        *numbers,
    )


class Blocks(NamedTuple):
    """How `decode_backward_kernel` divides the keys of a call.

    A program takes one of `parts` blocks of keys of a head. `sides` are its queries, keys and warps. It
    reads `wide` hidden units or `dims` value dims at once. `even` as in `Split`.
    """

    sides: tuple[int, int, int]
    wide: int
    dims: int
    parts: int
    even: int


def decode_blocks(args: Arguments) -> Blocks:
    """How `decode_backward_kernel` divides this call."""
    queries, keys = args.sizes[3:]
    block, wide = decode_tile(args)
    dims = min(power_of_two(args.value.shape[-1]), DECODE_TILE // block)
    sides = (power_of_two(queries), block, DECODE_OPTIONS["num_warps"])
    return Blocks(sides, wide, dims, blocks_in(keys, block), evenness(args))


def decode_tile(args: Arguments) -> tuple[int, int]:
    """The number of keys, and of their hidden units, that a program of the decode kernels holds at once.

    With many hidden units, as in recurrent decoders, there are usually few keys, so blocks are small.
    Blocks grow with the number of queries: the backward keeps a row for each query and block, which
    together have to stay smaller than the keys. Forward and backward use the same numbers: they set the
    order in which a score is summed, and the backward has to compute the same bits as the forward.
    """
    least = min(max(2 * power_of_two(args.sizes[3]), 4), 32)
    wide = min(power_of_two(args.q.shape[-1]), DECODE_TILE // least)
    return max(least, min(64, DECODE_TILE // wide)), wide


class Summing(NamedTuple):
    """The sizes for `sum_copies_kernel`: `rows` of `columns` numbers, with `copies` of each to sum.

    Rows are `of_row` apart, copies of a row `of_copy`. A program takes `wide` columns, and reads `held`
    copies at once: neither follows from the number of keys, for which kernels would be compiled anew.
    """

    rows: int
    columns: int
    copies: int
    of_copy: int
    of_row: int
    held: int
    wide: int

    @property
    def programs(self) -> int:
        """The number of programs to launch."""
        return self.rows * blocks_in(self.columns, self.wide)

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The run-time sizes of the kernel."""
        return self.copies, self.of_copy, self.of_row, self.columns

    @property
    def constants(self) -> tuple[int, int]:
        """The compile-time sizes of the kernel."""
        return self.held, self.wide


def decode_sums(args: Arguments, parts: int) -> dict[str, Summing]:
    """The sums left to do after `decode_backward_kernel`, by names of `DecodePointers`.

    For calls where `prepare.has_own_memory`. A gradient that is not named is complete: one program
    writes each of its numbers.
    """
    batch, groups, shared, queries, keys = args.sizes
    units, heads = args.q.shape[-1], groups * shared
    found = {"v": summing_v(heads, units, parts * batch)}
    # Of one part too: written at once it would be of another dtype, and the kernel another one.
    found["q"] = summing_q(batch * heads, queries * units, parts)
    if shared > 1:
        held = min(power_of_two(shared), SUMMED_COPIES)
        for name, each in (("k", keys * units), ("value", keys * args.value.shape[-1])):
            at = (each, shared * each)
            found[name] = Summing(batch * groups, each, shared, *at, held, SUMMED_COLUMNS)
    return found


def summing_q(rows: int, each: int, parts: int) -> Summing:
    """The sum of the gradients of queries, `each` numbers for each row (a sequence and head)."""
    return Summing(rows, each, parts, each, parts * each, SUMMED_COPIES, SUMMED_COLUMNS)


def summing_v(heads: int, units: int, copies: int) -> Summing:
    """The sum of the gradients of v: few numbers with many copies, so that a program takes few columns."""
    wide = SUMMED_COLUMNS // 4
    return Summing(heads, units, copies, heads * units, units, 4 * SUMMED_COPIES, wide)


def registers(form_name: str, most: int) -> dict[str, Any]:
    """The compiler option that limits registers of a thread, if this kernel has a limit."""
    return {"maxnreg": most} if form_name == "fast" and not interpreted() else {}


def forward_registers(form_name: str, units: int) -> dict[str, Any]:
    """The limit of registers for the forward kernel."""
    return registers(form_name, FORWARD_REGISTERS if units >= 32 else FORWARD_REGISTERS_FEW_UNITS)


def backward_registers(form_name: str, by_lanes: bool) -> dict[str, Any]:
    """The limit of registers for the backward kernel."""
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
    """Whether the backward of this call sums as in `lanes.py`."""
    return args.q.dtype == torch.bfloat16 and prepare.is_fast(args) and not lanes.refused()


def query_parts(
    args: Arguments, programs: int, sides: tuple[int, int, int], by_lanes: bool = False
) -> int:
    """The number of programs that share the queries of one block of keys, so that the GPU is full."""
    most = blocks_in(args.sizes[3], sides[0])
    warps = ALL_REGISTERS // (LANES_REGISTERS if by_lanes else BACKWARD_REGISTERS)
    return max(min(blocks_in(FULL_ROUNDS * warps, max(programs * sides[2], 1)), most), 1)
