"""Kernels that lay operands out: a side of a pairwise form as (units, padded length), and ends of spans.

Each side takes one launch, which reads it once.

Shape legend: E hidden units, UNITS the same made even where two share a reciprocal; `step` is the
length padded to whole blocks.
"""

from __future__ import annotations

import triton.language as tl

import triton


@triton.jit(do_not_specialize=["length"])
def side_kernel(
    x, of_b, of_k, of_g, of_row, of_unit, groups, heads, length, step, v, weights, gate, base,
    gated, exponentials, raw, loose, bound, least, BLOCK: tl.constexpr, E: tl.constexpr,
    UNITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Lay out one block of rows of one head of x, from (length, E) to (UNITS, step), padded with zeros.

    Results that are not None are written: `raw` is x, `exponentials` exp(2x), `gated` exp(2x) times the
    gate of each unit. The first block of a head computes `gate` and `base` from v; that of the first
    sequence also writes `weights`, which is v in the dtype of the kernels. `loose` is set for a head where
    |x| is beyond `bound` or NaN, or |v| beyond 1 / `least`.
    """
    blocks = step // BLOCK
    head, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    b, k, g = head // (groups * heads), head // heads % groups, head % heads
    # 64 bits: any of these may be the outermost dim of a large tensor.
    start = b.to(tl.int64) * of_b + k.to(tl.int64) * of_k + g.to(tl.int64) * of_g
    rows = block * BLOCK + tl.arange(0, BLOCK)[:, None]
    for first in range(0, UNITS, WIDE):
        unit = first + tl.arange(0, WIDE)[None, :]
        at = start + rows.to(tl.int64) * of_row + unit.to(tl.int64) * of_unit
        part = tl.load(x + at, mask=(rows < length) & (unit < E), other=0.0)
        place = (head.to(tl.int64) * UNITS + tl.trans(unit)) * step + tl.trans(rows)
        inside = tl.trans((unit < UNITS) & (rows < step))
        turned = tl.trans(part)
        if raw is not None:
            tl.store(raw + place, turned, mask=inside)
        if exponentials is not None:
            grown = tl.exp(2.0 * turned.to(tl.float32))
            tl.store(exponentials + place, grown, mask=inside)
        if weights is not None:
            own = (unit < E) & (block == 0) & (b == 0)
            tl.store(weights + head * E + unit, tl.load(v + head * E + unit, mask=own), mask=own)
        if gated is not None:
            weight = tl.load(v + (head % (groups * heads)) * E + unit, mask=unit < E, other=0.0).to(
                tl.float32
            )
            # See `prepare.py`: |v| is held above `least`, so that the gate -1 / (2v) stays finite.
            held = tl.where(tl.abs(weight) < least, tl.where(weight < 0, -least, least), weight)
            opens = -0.5 / held
            grown = tl.exp(2.0 * turned.to(tl.float32)) * tl.trans(opens)
            tl.store(gated + place, grown, mask=inside)
            first_block = (unit < UNITS) & (block == 0)
            tl.store(gate + head * UNITS + unit, opens, mask=first_block)
            if block == 0:
                tl.atomic_add(base + head, tl.sum(weight), sem="relaxed")
                if tl.max(tl.max(tl.abs(weight), 1), 0) > 1.0 / least:
                    tl.atomic_max(loose + head, 1, sem="relaxed")
        if loose is not None:
            size = tl.abs(part.to(tl.float32))
            # Compared as `<=`, so that NaN counts as beyond.
            beyond = tl.max(tl.max(tl.where(size <= bound, 0, 1), 1), 0)
            if beyond > 0:
                tl.atomic_max(loose + head, 1, sem="relaxed")


@triton.jit(do_not_specialize=["queries", "keys", "count"])
def ends_kernel(
    start, stop, to_start, to_stop, start_b, start_k, start_g, start_row, stop_b, stop_k, stop_g,
    stop_row, groups, heads, queries, keys, count, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the ends of spans for each query of each head in 32 bits, clamped just outside the keys."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside, row, z = n < count, n % queries, n // queries
    b, k, g = (z // (groups * heads)).to(tl.int64), z // heads % groups, z % heads
    if start is not None:
        at = b * start_b + k * start_k + g * start_g + row * start_row
        x = tl.load(start + at, mask=inside, other=0)
        tl.store(to_start + n, tl.minimum(tl.maximum(x, -1), keys + 1).to(tl.int32), mask=inside)
    if stop is not None:
        at = b * stop_b + k * stop_k + g * stop_g + row * stop_row
        x = tl.load(stop + at, mask=inside, other=0)
        tl.store(to_stop + n, tl.minimum(tl.maximum(x, -1), keys + 1).to(tl.int32), mask=inside)
