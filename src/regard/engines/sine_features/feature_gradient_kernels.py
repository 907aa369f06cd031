"""Triton kernels that turn gradients of the features into gradients of a, b, v and value.

Shapes, names and formulas are those of `feature_kernels`.
"""

from __future__ import annotations

import triton.language as tl

import triton
from regard.engines.sine_features.feature_kernels import (
    inverse,
    load_units,
    most_of_parts,
    peak_of_units,
    power_below,
    sine_cosine,
)


@triton.jit(do_not_specialize=["Q", "parts"])
def gradient_peaks(
    grad, found, H, Q, parts, grad_batch, grad_head, grad_place, grad_column,
    D: tl.constexpr, DP: tl.constexpr, PLACES: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Write the bits of the largest |grad_out| of each part, (B, H, parts)."""
    program = tl.program_id(0)
    most = peak_of_units(
        grad, program % parts, program // parts, H, Q,
        grad_batch, grad_head, grad_place, grad_column, D, DP, PLACES, NUMBERS,
    )  # fmt: skip
    tl.store(found + program, tl.max(most, axis=0))


@triton.jit(do_not_specialize=["Q", "parts", "blocks"])
def output_gradient(
    grad, found, holds, peak_grad, skip, given,
    H, Q, parts, grad_batch, grad_head, grad_place, grad_column, blocks,
    D: tl.constexpr, X: tl.constexpr, XP: tl.constexpr, TARGET: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of cuDNN's output, (B, H, Q, X) in fp16: grad_out times its power of two.

    `found` holds the results of `gradient_peaks`. Also written: `peak_grad` (B, H), the largest
    |grad_out|, and `skip`, a copy of `holds`.
    """
    program = tl.program_id(0)
    block, at_head = program % blocks, program // blocks
    batch, head = at_head // H, at_head % H
    peak = tl.max(most_of_parts(found + at_head * parts, parts, 1, 1, PARTS), axis=0)
    if block == 0:
        tl.store(peak_grad + at_head, peak)
    if program == 0:
        # A copy: `weight_gradient` may clear it, and `holds` is saved for another backward.
        tl.store(skip, tl.load(holds))
    d, place = tl.arange(0, XP), block * BLOCK + tl.arange(0, BLOCK)
    there = place < Q
    base = batch.to(tl.int64) * grad_batch + head.to(tl.int64) * grad_head
    at = base + place.to(tl.int64)[:, None] * grad_place
    at += d.to(tl.int64)[None, :] * grad_column
    g = tl.load(grad + at, mask=there[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    g = g * power_below(peak, TARGET)
    line = (at_head.to(tl.int64) * Q + place)[:, None] * X + d[None, :]
    inside = there[:, None] & (d < X)[None, :]
    tl.store(given + line, g.to(tl.float16), mask=inside)


@triton.jit(do_not_specialize=["Q", "blocks"])
def query_gradient(
    a, v, row, frequency, height, peak_value, peak_grad, grad_phi, grad_a, partial,
    H, K, Q, blocks, a_batch, a_head, a_place, a_unit, v_head, v_unit, rate,
    G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
    VALUE_TARGET: tl.constexpr, GRAD_TARGET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write da (B, H, Q, E), and what each block of queries adds to dv, (B, H, blocks, E) in fp32.

    `da = sum_r rate v c w (dphi_sin cos wa - dphi_cos sin wa)`
    `dv = sum_r rate c (dphi_sin sin wa + dphi_cos cos wa)`
    """
    program = tl.program_id(0)
    block, at_head = program % blocks, program // blocks
    batch, head = at_head // H, at_head % H
    unit, place = tl.arange(0, EP), block * BLOCK + tl.arange(0, BLOCK)
    base = batch.to(tl.int64) * a_batch + head.to(tl.int64) * a_head
    x = load_units(a, base, place, unit, a_place, a_unit, Q, E)
    real = unit < E
    inside = (place < Q)[:, None] & real[None, :]
    index = tl.load(row + (batch * K + head // G) * E + unit, mask=real, other=0)
    size = tl.load(v + head * v_head + unit * v_unit, mask=real, other=0.0).to(tl.float32)
    line = at_head.to(tl.int64) * Q + place
    given = grad_phi + line[:, None] * W
    by_a = tl.zeros([BLOCK, EP], tl.float32)
    by_v = tl.zeros([BLOCK, EP], tl.float32)
    for r in tl.static_range(R):
        w = tl.load(frequency + index * R + r, mask=real, other=0.0)
        c = rate * tl.load(height + index * R + r, mask=real, other=0.0)
        sine, cosine = sine_cosine(x * w[None, :])
        column = (r * E + unit)[None, :]
        of_sine = tl.load(given + column, mask=inside, other=0.0).to(tl.float32)
        of_cosine = tl.load(given + R * E + column, mask=inside, other=0.0).to(tl.float32)
        by_a += (c * w)[None, :] * (of_sine * cosine - of_cosine * sine)
        by_v += c[None, :] * (of_sine * sine + of_cosine * cosine)
    # Undo the powers of two of grad_out and of the values, by which cuDNN's gradients are scaled.
    peak = tl.load(peak_value + batch * K + head // G).to(tl.float32)
    down = inverse(power_below(tl.load(peak_grad + at_head).to(tl.float32), GRAD_TARGET))
    undo = inverse(power_below(peak, VALUE_TARGET))
    by_a = by_a * size[None, :] * down * undo
    at = grad_a + line[:, None] * E + unit[None, :]
    tl.store(at, by_a.to(grad_a.dtype.element_ty), mask=inside)
    tl.store(
        partial + program.to(tl.int64) * E + unit, tl.sum(by_v, axis=0) * down * undo, mask=real
    )


@triton.jit
def by_angle(
    x, given, frequency, index, unit, inside,
    E: tl.constexpr, EP: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`sum_r w (dpsi_sin cos wx - dpsi_cos sin wx)` for a tile of keys, from rows of dpsi."""
    found = tl.zeros([BLOCK, EP], tl.float32)
    real = unit < E
    for r in tl.static_range(R):
        w = tl.load(frequency + index * R + r, mask=real, other=0.0)
        sine, cosine = sine_cosine(x * w[None, :])
        column = (r * E + unit)[None, :]
        of_cosine = tl.load(given + column, mask=inside, other=0.0).to(tl.float32)
        of_sine = tl.load(given + R * E + column, mask=inside, other=0.0).to(tl.float32)
        found += w[None, :] * (of_sine * cosine - of_cosine * sine)
    return found


@triton.jit(do_not_specialize=["L", "blocks"])
def key_gradient(
    b, v, row, linear, frequency, peak_value, peak_grad, grad_psi, grad_wide,
    grad_b, grad_value, partial,
    H, K, L, blocks, b_batch, b_head, b_place, b_unit, v_head, v_unit, rate,
    G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
    D: tl.constexpr, X: tl.constexpr, XP: tl.constexpr,
    VALUE_TARGET: tl.constexpr, GRAD_TARGET: tl.constexpr,
    N: tl.constexpr, LENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write db (B, K, L, E) and dvalue (B, K, L, D), and what each block of keys adds to dv.

    `db = sum_r w (dpsi_sin cos wb - dpsi_cos sin wb) + rate linear v dbeta`
    `dv = rate linear b dbeta`, with dbeta the gradient of the first column of beta. The program sums over
    the query heads that share a key. A gradient that is not finite makes dv NaN, see `weight_gradient`.
    """
    program = tl.program_id(0)
    block, at_key_head = program % blocks, program // blocks
    batch, key_head = at_key_head // K, at_key_head % K
    unit, place, d = tl.arange(0, EP), block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, XP)
    base = batch.to(tl.int64) * b_batch + key_head.to(tl.int64) * b_head
    x = load_units(b, base, place, unit, b_place, b_unit, L, E)
    real, there = unit < E, place < L
    inside = there[:, None] & real[None, :]
    index = tl.load(row + at_key_head * E + unit, mask=real, other=0)
    slope = rate * tl.load(linear + index, mask=real, other=0.0)
    undo = inverse(power_below(tl.load(peak_value + at_key_head).to(tl.float32), VALUE_TARGET))
    by_b = tl.zeros([BLOCK, EP], tl.float32)
    by_value = tl.zeros([BLOCK, XP], tl.float32)
    for g in range(G):
        head = key_head * G + g
        at_head = batch * H + head
        size = tl.load(v + head * v_head + unit * v_unit, mask=real, other=0.0).to(tl.float32)
        down = inverse(power_below(tl.load(peak_grad + at_head).to(tl.float32), GRAD_TARGET))
        line = at_head.to(tl.int64) * L + place
        at = line[:, None] * X + d[None, :]
        keep = there[:, None] & (d < X)[None, :]
        of_value = tl.load(grad_wide + at, mask=keep, other=0.0).to(tl.float32)
        if LENT:
            # Only one unit lends: the sum over units picks its column.
            lent = grad_psi + line[:, None] * W + ((R - 1) * E + unit)[None, :]
            lends = inside & (index >= N)[None, :]
            of_beta = tl.sum(tl.load(lent, mask=lends, other=0.0).to(tl.float32), axis=1)
        else:
            last = grad_psi + line * W + 2 * R * E
            of_beta = tl.load(last, mask=there, other=0.0).to(tl.float32)
        of_value = of_value * down
        by_value += of_value
        given = grad_psi + line[:, None] * W
        from_g = by_angle(x, given, frequency, index, unit, inside, E, EP, R, BLOCK)
        from_g += of_beta[:, None] * (slope * size)[None, :]
        from_g = from_g * down * undo
        by_b += from_g
        by_v = tl.sum(of_beta[:, None] * x, axis=0) * slope * down * undo
        # Adds 0, or NaN where a gradient has overflowed, which the sum over all blocks then shows.
        by_v += 0.0 * tl.sum(from_g, axis=0) + 0.0 * tl.sum(tl.sum(of_value, axis=1), axis=0)
        at = (at_head.to(tl.int64) * blocks + block) * E + unit
        tl.store(partial + at, by_v, mask=real)
    line = at_key_head.to(tl.int64) * L + place
    at = grad_b + line[:, None] * E + unit[None, :]
    tl.store(at, by_b.to(grad_b.dtype.element_ty), mask=inside)
    at = grad_value + line[:, None] * D + d[None, :]
    keep = there[:, None] & (d < D)[None, :]
    tl.store(at, by_value.to(grad_value.dtype.element_ty), mask=keep)


@triton.jit
def sum_of_blocks(
    partial, head, B, H, blocks, E: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr
):
    """The sum of `partial` (B, H, blocks, E) over batch and blocks, for one head."""
    unit = tl.arange(0, EP)
    total = tl.zeros([ROWS, EP], tl.float32)
    for first in range(0, B * blocks, ROWS):
        n = first + tl.arange(0, ROWS)
        row = ((n // blocks).to(tl.int64) * H + head) * blocks + n % blocks
        inside = (n < B * blocks)[:, None] & (unit < E)[None, :]
        at = partial + row[:, None] * E + unit[None, :]
        total += tl.load(at, mask=inside, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit(do_not_specialize=["B", "query_blocks", "key_blocks"])
def weight_gradient(
    from_queries, from_keys, grad_v, skip, B, H, query_blocks, key_blocks,
    E: tl.constexpr, EP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write dv (H, E). Where it is not finite, set `skip` to 0, so that the exact fallback runs.

    A gradient that overflowed fp16 on the way has made dv NaN.
    """
    head = tl.program_id(0)
    unit = tl.arange(0, EP)
    # In a fixed order, without atomics: the result is the same to the bit from run to run.
    total = sum_of_blocks(from_queries, head, B, H, query_blocks, E, EP, ROWS)
    total += sum_of_blocks(from_keys, head, B, H, key_blocks, E, EP, ROWS)
    at = grad_v + head * E + unit
    tl.store(at, total.to(grad_v.dtype.element_ty), mask=unit < E)
    finite = tl.min((tl.abs(total) < float("inf")).to(tl.int32), axis=0)
    if finite == 0:
        tl.store(skip, 0)
