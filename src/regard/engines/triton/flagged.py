"""Small kernels before and after the backward: they prepare its rows, and turn its sums into gradients.

As part of the fallback of engine `sine` they read a flag on the device first and return at once where it
is set. It usually is, and the cost is then that of a launch.
"""

from __future__ import annotations

import triton.language as tl

import triton


@triton.jit
def is_set(flag):
    """Whether there is a flag, and it is set."""
    if flag is None:
        return False
    else:
        return tl.load(flag) != 0


@triton.jit(do_not_specialize=["rows", "count", "shift_blocks"])
def ready_kernel(
    grad, output, grad_tail, peak, used, shift, sums, skip, rows, columns, count, shift_blocks,
    ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write `shift` of each row of (rows, columns), and zeros to `sums`.

    The shift is `grad_tail - <grad, output>`, with grad_tail 0 where it is None. Where rows may see
    nothing, `peak` (-inf) tells which; their incoming gradient is dropped, and `used` is grad without it.
    The first `shift_blocks` programs take the rows, the others clear `sums`.
    """
    if is_set(skip):
        return
    program = tl.program_id(0)
    if program < shift_blocks:
        row = program.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, WIDE)
        at = row[:, None] * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(output + at, mask=inside, other=0.0).to(tl.float32)
        empty = row >= rows
        if peak is not None:
            empty = tl.load(peak + row, mask=row < rows, other=0.0) == -float("inf")
            x = tl.where(empty[:, None], 0.0, x)
            tl.store(used + at, x, mask=inside)
        total = -tl.sum(x * y, 1)
        if grad_tail is not None:
            of_tail = tl.load(grad_tail + row, mask=row < rows, other=0.0).to(tl.float32)
            total += tl.where(empty, 0.0, of_tail)
        tl.store(shift + row, total, mask=row < rows)
    else:
        place = (program - shift_blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(sums + place, tl.zeros([BLOCK], sums.dtype.element_ty), mask=place < count)


@triton.jit
def collect_rows(
    found, program, of_head, of_row, of_column, result, copies, of_copy, rows, columns,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write one block of rows of `result` (heads, rows, columns), the sum of copies of `found` (strided)."""
    blocks = tl.cdiv(rows, BLOCK)
    head = (program // blocks).to(tl.int64)
    row = (program % blocks * BLOCK + tl.arange(0, BLOCK))[:, None]
    for first in range(0, columns, WIDE):
        column = first + tl.arange(0, WIDE)[None, :]
        inside = (row < rows) & (column < columns)
        total = tl.zeros([BLOCK, WIDE], tl.float32)
        at = found + head * of_head + row.to(tl.int64) * of_row + column * of_column
        # In a fixed order, so that every launch gives the same bits.
        for _ in range(copies):
            total += tl.load(at, mask=inside, other=0.0)
            at += of_copy
        tl.store(result + (head * rows + row) * columns + column, total, mask=inside)


@triton.jit(do_not_specialize=["batch", "queries", "keys"])
def collect_kernel(
    q, k, v, value, grad_a, grad_b, grad_v, grad_value, skip,
    batch, heads, shared, queries, keys, units, q_step, k_step, E, D, of_q, of_k, of_shared_k,
    of_value, of_shared_value, rate,
    ROWS: tl.constexpr, WIDE_E: tl.constexpr, WIDE_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a, b, value and v from the sums that the backward leaves for each head.

    The sums are q (Z, units, q_step), k and v (Z, units, k_step), without padding (Z, E, Q) and
    (Z, E, L), and value (Z, L, D). Query heads that share keys are summed. The sums of v have one number
    for each key, which are summed here. The sizes come from `collected_sizes`.
    """
    if is_set(skip):
        return
    program, key_heads = tl.program_id(0), batch * (heads // shared)
    of_a, of_b = batch * heads * tl.cdiv(queries, ROWS), key_heads * tl.cdiv(keys, ROWS)
    if program < of_a:
        collect_rows(q, program, of_q, 1, q_step, grad_a, 1, 0, queries, E, ROWS, WIDE_E)
    elif program < of_a + of_b:
        collect_rows(
            k, program - of_a, of_shared_k, 1, k_step, grad_b, shared, of_k, keys, E, ROWS, WIDE_E
        )
    elif program < of_a + 2 * of_b:
        collect_rows(
            value, program - of_a - of_b, of_shared_value, D, 1, grad_value, shared, of_value, keys, D,
            ROWS, WIDE_D,
        )  # fmt: skip
    else:
        program -= of_a + 2 * of_b
        head, unit = program // E, program % E
        total = tl.zeros([BLOCK], tl.float32)
        for first in range(0, batch * keys, BLOCK):
            n = first + tl.arange(0, BLOCK)
            line = ((n // keys).to(tl.int64) * heads + head) * units + unit
            total += tl.load(v + line * k_step + n % keys, mask=n < batch * keys, other=0.0)
        tl.store(grad_v + program, tl.sum(total, 0) * rate)


def collected_sizes(
    batch: int,
    heads: int,
    shared: int,
    queries: int,
    keys: int,
    steps: tuple[int, int, int],
    hidden: int,
    dims: int,
) -> tuple[int, ...]:
    """The sizes for `collect_kernel`; `steps` are units, q_step and k_step of the sums.

    Strides of heads are computed here, because in the 32 bits of the kernel they might overflow.
    """
    units, q_step, k_step = steps
    of_k, of_value = units * k_step, keys * dims
    strides = (units * q_step, of_k, shared * of_k, of_value, shared * of_value)
    return (batch, heads, shared, queries, keys, *steps, hidden, dims, *strides)
