"""Sums over the queries and over the keys of a tile, by tensor cores, straight from registers.

The backward of a pairwise score has one number for each pair and hidden unit. It takes two units at a
time and sums them over queries and over keys. In a tile of 32 x 32 that one warp computes, a lane holds
one key and all 32 queries. A matrix product by `tl.dot` would move the numbers through shared memory to
other lanes. The registers as they are, with two queries in bf16 each, are already valid operands of
`mma.m16n8k16`, though their rows and columns are not those of the tile. Which sums a product computes
then depends on the matrix of zeros and ones on its other side. With lane = 4 group + place, as the
hardware counts:

- As the left operand, a register of all lanes is 8 groups x (4 places, 2 queries). A right operand that
  is 1 where the place belongs to the column gives each lane the sum of its own two numbers. Further
  products add further registers. Sums over queries of two units take 8 products.
- As the right operand it is (4 places, 2 queries) x 8 groups. A left operand that sends each query to a
  row of its own sums over places, with 2 products for 8 queries. In the result, 8 queries x 8 groups,
  even and odd groups are already laid out as the left operand of `mma.m16n8k4` in TF32, which sums over
  groups, into one column for each 8 queries. Sums over keys take 12 products for each unit.

For 1024 pairs and two units that is 32 instructions. Shuffles would take more instructions than the
terms themselves. Terms are rounded to bf16, sums over 4 keys are cut to the 11 bits of TF32, and
everything else is fp32. One number that is not finite would spoil the sums of all queries (0 * NaN is
NaN), so that the caller takes another path for tiles with such numbers.

Triton does not promise which lane holds what. `arranged` therefore checks it in the compiled kernel.
"""

from __future__ import annotations

import re
from typing import Any

import triton.language as tl

import triton

# Queries and keys of a tile, and the number of registers of each operand of the asm statement.
SIDE = 32

# The operands of the asm in order; those for sums in a fixed order last.
OUTPUTS = 8  # asm has to return something: 32 results of 8 bits that no code reads
OPERANDS = (
    "first", "second", "even", "odd", "row0", "row2", "row4", "row6", "to_key", "to_next_key",
    "to_query", "to_next_query", "v0", "v1",
)  # fmt: skip
FIXED_OPERANDS = ("unit", "to_broken")
ASM_LETTERS = {"first": "f", "second": "f", "v0": "f", "v1": "f", "unit": "d", "to_broken": "l"}
ASM_LETTERS |= {"to_key": "l", "to_next_key": "l", "to_query": "l", "to_next_query": "l"}

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
MMA_TF32 = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32"
ADD = "red.relaxed.gpu.global.add"


def product(name: str, instruction: str, left: list[str], right: list[str]) -> str:
    """The instruction of one matrix product, added to the four registers called `name`."""
    sums = ", ".join(f"{name}{i}" for i in range(4))
    return f"{instruction} {{{sums}}}, {{{', '.join(left)}}}, {{{', '.join(right)}}}, {{{sums}}};"


def assembly(fixed: bool) -> str:
    """The PTX text; with `fixed` sums for queries are integers, as `regard.engines.triton.ordered` defines."""
    names = (*OPERANDS, *FIXED_OPERANDS) if fixed else OPERANDS
    begin = {name: OUTPUTS + SIDE * i for i, name in enumerate(names)}

    def operand(name: str, i: int = 0) -> str:
        return f"${begin[name] + i}"

    def cleared(name: str) -> list[str]:
        return [f"mov.b32 {name}{i}, 0;" for i in range(4)]

    lines = [".reg .b32 t<16>, u<16>, key<4>, x<4>, first<4>, second<4>;"]
    for name, packed in (("first", "t"), ("second", "u")):
        for i in range(16):
            high, low = operand(name, 2 * i + 1), operand(name, 2 * i)
            lines.append(f"cvt.rn.bf16x2.f32 {packed}{i}, {high}, {low};")
    # Over queries: the first unit in even columns, the second in odd ones.
    lines += cleared("key")
    for i in range(0, 16, 2):
        left = [f"t{i}", f"t{i + 1}", f"u{i}", f"u{i + 1}"]
        lines.append(product("key", MMA, left, [operand("even"), operand("odd")]))
    for i, (name, v) in enumerate((("to_key", "v0"), ("to_next_key", "v1"))):
        lines += [
            f"add.f32 key{i}, key{i}, key{i + 2};",
            f"mul.f32 key{i}, key{i}, {operand(v)};",
            f"{ADD}.f32 [{operand(name)}], key{i};",
        ]
    # Over keys: 8 queries to a row each, whose sums then go to a column of their own. The first left
    # operand uses the rows 0 to 3, the second 4 to 7; rows from 8 on are not read.
    rows = [operand(f"row{i}") for i in (0, 2, 4, 6)]
    for name, packed in (("first", "t"), ("second", "u")):
        lines += cleared(name)
        for i, column in enumerate(rows):
            right = [f"{packed}{4 * i + j}" for j in range(4)]
            lines += cleared("x")
            lines.append(product("x", MMA, [rows[0], rows[2], rows[1], rows[3]], right[:2]))
            lines.append(product("x", MMA, [rows[2], rows[0], rows[3], rows[1]], right[2:]))
            lines.append(product(name, MMA_TF32, ["x0", "x1"], [column]))
        lines.append(f"add.f32 {name}1, {name}1, {name}3;")
    if fixed:
        lines += [".reg .pred sound;", ".reg .f64 scaled;", ".reg .b64 count;"]
    for name, v, to in (("first", "v0", "to_query"), ("second", "v1", "to_next_query")):
        lines.append(f"mul.f32 {name}1, {name}1, {operand(v)};")
        if not fixed:
            lines.append(f"{ADD}.f32 [{operand(to)}], {name}1;")
            continue
        lines += [
            f"testp.finite.f32 sound, {name}1;",
            f"cvt.f64.f32 scaled, {name}1;",
            f"mul.f64 scaled, scaled, {operand('unit')};",
            "cvt.rzi.s64.f64 count, scaled;",
            f"@sound {ADD}.u64 [{operand(to)}], count;",
            f"@!sound red.relaxed.gpu.global.max.s32 [{operand('to_broken')}], 1;",
        ]
    lines += [f"mov.b32 ${i}, 0;" for i in range(OUTPUTS)]
    return "{\n" + "\n".join(lines) + "\n}"


def constraints(fixed: bool) -> str:
    """The register constraints of the operands of `assembly`, in LLVM's notation."""
    names = (*OPERANDS, *FIXED_OPERANDS) if fixed else OPERANDS
    letters = [ASM_LETTERS.get(name, "r") for name in names for _ in range(SIDE)]
    return ",".join(["=r"] * OUTPUTS + letters)


TEXT, TEXT_FIXED = tl.constexpr(assembly(False)), tl.constexpr(assembly(True))
CONSTRAINTS, CONSTRAINTS_FIXED = tl.constexpr(constraints(False)), tl.constexpr(constraints(True))


@triton.jit
def halves(low, high):
    """32 bits with the bf16 number 1 in the low half where `low`, and in the high half where `high`."""
    return tl.where(low, 0x3F80, 0) + tl.where(high, 0x3F800000, 0)


@triton.jit
def selections():
    """The registers of the matrices of zeros and ones in each lane, (1, 32) each."""
    lane = tl.arange(0, 32)[None, :]
    group, own = lane // 4, lane % 4 == lane // 8
    even, odd = own & (group % 2 == 0), own & (group % 2 == 1)
    row0, row2 = halves(group == 0, group == 1), halves(group == 2, group == 3)
    row4, row6 = halves(group == 4, group == 5), halves(group == 6, group == 7)
    return halves(even, even), halves(odd, odd), row0, row2, row4, row6


@triton.jit
def own_query():
    """The query whose sums a lane ends up with, (1, 32)."""
    lane = tl.arange(0, 32)[None, :]
    return lane // 4 + lane % 4 * 8


@triton.jit
def places(grads, head, first_row, first_column):
    """The addresses a lane adds to for the first unit of a tile: for its key, for its query, and for v."""
    lane, unit = tl.arange(0, 32), head * grads.units
    to_key = grads.k + unit * grads.k_step + (first_column + lane[None, :])
    to_query = grads.q + unit * grads.q_step + (first_row + own_query())
    # Grouped differently from `to_key`: recognised as equal offsets, the two would cost more instructions.
    to_v = grads.v + (unit * grads.k_step + first_column) + lane
    return to_key, to_query, to_v


@triton.jit
def counting(grads, head, first_row, sizes):
    """For sums in a fixed order: the integer units of a lane's query, and the address of its broken flag."""
    if grads.unit is None:
        return 0, 0
    else:
        # A padded row uses the last real row: it can be broken only where v is, which breaks all rows.
        row = tl.minimum(first_row + own_query(), sizes.queries - 1)
        at = head * sizes.queries + row
        return tl.load(grads.unit + at), grads.broken_rows + at


@triton.jit
def give(grads, t0, t1, v0, v1, to_key, to_query, chosen, fixed, tile):
    """Add the sums of the terms t of two hidden units, times their factors v, to the gradients."""
    if tile.INTERPRET:
        give_plainly(grads, t0, v0, to_key, to_query, fixed)
        give_plainly(grads, t1, v1, to_key + grads.k_step, to_query + grads.q_step, fixed)
    else:
        even, odd, row0, row2, row4, row6 = chosen
        to_next_key, to_next_query = to_key + grads.k_step, to_query + grads.q_step
        to_key, to_next_key = to_key.to(tl.int64), to_next_key.to(tl.int64)
        to_query, to_next_query = to_query.to(tl.int64), to_next_query.to(tl.int64)
        if grads.unit is None:
            tl.inline_asm_elementwise(
                TEXT, CONSTRAINTS,
                [t0, t1, even, odd, row0, row2, row4, row6, to_key, to_next_key, to_query,
                 to_next_query, v0, v1],
                dtype=tl.int8, is_pure=False, pack=32,
            )  # fmt: skip
        else:
            unit, to_broken = fixed
            tl.inline_asm_elementwise(
                TEXT_FIXED, CONSTRAINTS_FIXED,
                [t0, t1, even, odd, row0, row2, row4, row6, to_key, to_next_key, to_query,
                 to_next_query, v0, v1, unit, to_broken.to(tl.int64)],
                dtype=tl.int8, is_pure=False, pack=32,
            )  # fmt: skip


@triton.jit
def give_plainly(grads, terms, factor, to_key, to_query, fixed):
    """The effect of the asm for one unit, for the interpreter, which has no tensor cores."""
    tl.atomic_add(to_key, factor * tl.sum(terms, 0)[None, :], sem="relaxed")
    own = tl.arange(0, 32)[:, None] == own_query()
    sums = factor * tl.sum(tl.where(own, tl.sum(terms, 1)[:, None], 0.0), 0)[None, :]
    if grads.unit is None:
        tl.atomic_add(to_query, sums, sem="relaxed")
    else:
        unit, to_broken = fixed
        sound = tl.abs(sums) < float("inf")
        count = (tl.where(sound, sums, 0.0).to(tl.float64) * unit).to(tl.int64)
        tl.atomic_add(to_query, count, mask=sound, sem="relaxed")
        tl.atomic_max(to_broken, (sound == 0).to(tl.int32), mask=sound == 0, sem="relaxed")


# Whether lanes of a compiled kernel hold what the docstring above says, by hash of the kernel.
LAYOUT_VERDICTS: dict[str, bool] = {}


def trusted(kernel: Any) -> bool:
    """Whether the sums of this compiled kernel are right; None stands for the interpreter."""
    if kernel is None:
        return True
    if kernel.hash not in LAYOUT_VERDICTS:
        LAYOUT_VERDICTS[kernel.hash] = arranged(kernel.asm["ttgir"])
    return LAYOUT_VERDICTS[kernel.hash]


def refused() -> bool:
    """Whether some kernel was found with another layout; after that no call sums by lanes."""
    return False in LAYOUT_VERDICTS.values()


def arranged(text: str) -> bool:
    """Whether each lane of the one warp holds one key and all queries in order, in Triton's IR."""
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.blocked<.*>)$", text, re.MULTILINE))
    used = re.findall(r"elementwise_inline_asm .*mma\.sync.*-> tensor<32x32xi8, (#\w+)>", text)
    wanted = re.compile(
        r"#ttg\.blocked<\{sizePerThread = \[(1|32), 1\], threadsPerWarp = \[1, 32\], "
        r"warpsPerCTA = \[1, 1\], order = \[\d, \d\]\}>"
    )
    return bool(used) and all(wanted.fullmatch(layouts.get(name, "")) for name in used)
