"""Small kernels around the backward: what it starts from, and gradients of what it has added up.

Where they stand behind an approximation they look at a flag on the device first, and return at once
where it is set: in general it is, and what they cost then is a launch.
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


@triton.jit
def ready_kernel(
    grad, output, grad_tail, peak, used, shift, sums, skip, rows, columns, count, shift_blocks,
    ROWS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the backward starts from: `shift` of each row of (rows, columns), and sums of 0.

    The shift is `grad_tail - <grad, output>`, grad_tail 0 where it is None. Where rows may see nothing,
    `peak` says which do; they have no gradient, whatever comes in for them: `used` is grad without it.
    The first programs are those of the rows.
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
    """Sum copies of `found`, by its strides, into (heads, rows, columns): one block of rows."""
    blocks = tl.cdiv(rows, BLOCK)
    head = (program // blocks).to(tl.int64)
    row = (program % blocks * BLOCK + tl.arange(0, BLOCK))[:, None]
    for first in range(0, columns, WIDE):
        column = first + tl.arange(0, WIDE)[None, :]
        inside = (row < rows) & (column < columns)
        total = tl.zeros([BLOCK, WIDE], tl.float32)
        at = found + head * of_head + row.to(tl.int64) * of_row + column * of_column
        for _ in range(copies):
            total += tl.load(at, mask=inside, other=0.0)
            at += of_copy
        tl.store(result + (head * rows + row) * columns + column, total, mask=inside)


@triton.jit
def collect_kernel(
    q, k, v, value, grad_a, grad_b, grad_v, grad_value, skip,
    batch, heads, shared, queries, keys, units, q_step, k_step, E, D, of_q, of_k, of_shared_k,
    of_value, of_shared_value, rate,
    ROWS: tl.constexpr, WIDE_E: tl.constexpr, WIDE_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of a, b, value and v from the sums for each head, as the backward leaves them.

    q (Z, units, q_step), k and v (Z, units, k_step), of which the first E, Q and L count; value (Z, L,
    D). Heads that share keys are summed; the gradient of v is still one number for each key. KernelSizes
    are those of `collected_sizes`.
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
    """The sizes that `collect_kernel` takes; `steps` are units, q_step and k_step of the sums.

    Strides of heads are taken here: in the kernel's 32 bits they might overflow.
    """
    units, q_step, k_step = steps
    of_k, of_value = units * k_step, keys * dims
    strides = (units * q_step, of_k, shared * of_k, of_value, shared * of_value)
    return (batch, heads, shared, queries, keys, *steps, hidden, dims, *strides)
