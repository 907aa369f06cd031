"""Small kernels that look at a flag on the device first, and return at once where it is set.

They stand behind an approximation: in general the flag is set, and what they cost then is a launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

import triton
from regard.engines.sizes import blocks_in, power_of_two

BLOCK = 4096


@triton.jit
def clear_kernel(x, count, skip, BLOCK: tl.constexpr):
    """Set x to 0."""
    if tl.load(skip) != 0:
        return
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.zeros([BLOCK], x.dtype.element_ty), mask=at < count)


def cleared(
    skip: Tensor, dtype: torch.dtype, device: torch.device, *shapes: Sequence[int]
) -> list[Tensor]:
    """Tensors in one piece of memory, all 0 unless `skip` is set."""
    sizes = [math.prod(shape) for shape in shapes]
    memory = torch.empty(sum(sizes), dtype=dtype, device=device)
    if memory.numel():
        clear_kernel[(blocks_in(memory.numel(), BLOCK),)](memory, memory.numel(), skip, BLOCK)
    return [part.view(shape) for part, shape in zip(memory.split(sizes), shapes, strict=True)]


@triton.jit
def shift_kernel(grad, output, shift, rows, columns, skip, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Take -<grad, output> of each row of (rows, columns)."""
    if tl.load(skip) != 0:
        return
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDE)
    at = row[:, None] * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(output + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(shift + row, -tl.sum(x * y, 1), mask=row < rows)


def negated_products(grad: Tensor, output: Tensor, shift: Tensor, skip: Tensor) -> None:
    """Row by row, -<grad, output> into `shift`; all contiguous."""
    rows, columns = shift.numel(), grad.shape[-1]
    if rows:
        shift_kernel[(blocks_in(rows, 16),)](
            grad, output, shift, rows, columns, skip, 16, power_of_two(columns)
        )


@triton.jit
def collect_kernel(
    found, of_head, of_row, of_column, result, copies, of_copy, rows, columns, skip,
    BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sum copies of `found`, by its strides, into (heads, rows, columns)."""
    if tl.load(skip) != 0:
        return
    blocks = tl.cdiv(rows, BLOCK)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    row = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK))[:, None]
    for first in range(0, columns, WIDE):
        column = first + tl.arange(0, WIDE)[None, :]
        inside = (row < rows) & (column < columns)
        total = tl.zeros([BLOCK, WIDE], tl.float32)
        for copy in range(copies):
            at = head * of_head + copy * of_copy + row.to(tl.int64) * of_row + column * of_column
            total += tl.load(found + at, mask=inside, other=0.0)
        tl.store(result + (head * rows + row) * columns + column, total, mask=inside)


def collect(
    found: Tensor,
    strides: tuple[int, int, int],
    copies: int,
    of_copy: int,
    result: Tensor,
    skip: Tensor,
) -> None:
    """Sum `copies` of a tensor into a contiguous `result` (..., rows, columns), cast to its dtype.

    `strides` are those of heads, rows and columns of `found`.
    """
    rows, columns = result.shape[-2:]
    if not result.numel():
        return
    heads = result.numel() // (rows * columns)
    of_head, of_row, of_column = strides
    collect_kernel[(heads * blocks_in(rows, 32),)](
        found, of_head, of_row, of_column, result, copies, of_copy, rows, columns, skip, 32,
        min(power_of_two(columns), 64),
    )  # fmt: skip
