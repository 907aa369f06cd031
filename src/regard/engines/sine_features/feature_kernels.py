"""Triton kernels that measure the range and build the sine features, one for each side.

Imported only where the operators run, so that `import regard` needs no Triton. The backward is in
`feature_gradient_kernels.py`.

Shape legend: B batch, H query heads, K key heads, G = H / K, Q queries, L keys, E hidden units,
R rank, N rows of the table; W width of the features, X width of the values as cuDNN gets them, D
value dim. Features are ordered by frequency: sin (or cos) of unit e and frequency r is in column
`r E + e`, its partner in column `R E + r E + e`.

    phi_i = rate v c [sin wa_i, cos wa_i | 1, 1]      psi_j = [cos wb_j, sin wb_j | beta_j, its rest]
    beta_j = rate sum_e v_e linear_e b_je

The columns after `|` exist where beta has columns of its own. Where columns are lent (LENT), beta takes
those of the last sine of the unit with the least |v|; that unit has a row N or beyond, of a second table.
Values are multiplied by a power of two that brings those of a head into the range of fp16, and grad_out
by another one. `rate` is 1 / temperature.

One program serves one block of positions ("places") of one head. The grid has one axis, because the
others end at 65,535 programs.
"""

from __future__ import annotations

import triton.language as tl

import triton


@triton.jit
def power_below(largest, target: tl.constexpr):
    """The exact power of two that brings `largest` (fp32) into [2^(target-1), 2^target)."""
    # From the exponent bits; clamped, so that the power and its inverse are normal numbers.
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    biased = tl.minimum(tl.maximum(253 + target - exponent, 1), 227)
    return (biased << 23).to(tl.float32, bitcast=True)


@triton.jit
def inverse(power):
    """1 / power, exact for a power of two."""
    bits = (254 << 23) - power.to(tl.int32, bitcast=True)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def sine_cosine(x):
    """Both sin x and cos x, with an error of 2e-6 for |x| up to 60; fp16 stores them to 5e-4.

    One reduction to |r| <= pi/4 and two short Taylor series take a third of the work of tl.sin and
    tl.cos, which are accurate in fp32 for every x.
    """
    turns = tl.floor(x * 0.6366197723675814 + 0.5)
    # pi/2 in two parts, of which the first is its rounding to fp32.
    r = (x - turns * 1.5707963705062866) + turns * 4.371139000186241e-08
    square = r * r
    sine = 1.0 - square * (1 / 6 - square * (1 / 120 - square * (1 / 5040)))
    sine = r * sine
    cosine = 1.0 - square * (1 / 2 - square * (1 / 24 - square * (1 / 720 - square * (1 / 40320))))
    quarter = turns.to(tl.int32)
    odd = (quarter & 1) == 1
    first, second = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    first = tl.where((quarter & 2) == 2, -first, first)
    return first, tl.where(((quarter + 1) & 2) == 2, -second, second)


@triton.jit
def load_units(x, base, place, unit, step, unit_step, length, E: tl.constexpr):
    """A tile (places, units) of a or b in fp32, 0 beyond its end."""
    inside = (place < length)[:, None] & (unit < E)[None, :]
    at = base + place.to(tl.int64)[:, None] * step + unit.to(tl.int64)[None, :] * unit_step
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def magnitude(x):
    """The bits of |x| in fp32: as integers they are ordered like the numbers, with NaN above all."""
    return tl.abs(x.to(tl.float32)).to(tl.int32, bitcast=True)


@triton.jit
def peak_of_units(
    x, part, at_head, heads, length, x_batch, x_head, x_place, x_unit,
    E: tl.constexpr, EP: tl.constexpr, PLACES: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """The bits of the largest |x| of each column in one part of one head, (EP,)."""
    BLOCK: tl.constexpr = min(PLACES, NUMBERS // EP)
    unit = tl.arange(0, EP)
    x += (at_head // heads).to(tl.int64) * x_batch + (at_head % heads).to(tl.int64) * x_head
    most = tl.zeros([BLOCK, EP], tl.int32)
    for start in range(0, PLACES, BLOCK):
        place = part * PLACES + start + tl.arange(0, BLOCK)
        inside = (place < length)[:, None] & (unit < E)[None, :]
        at = place.to(tl.int64)[:, None] * x_place + unit.to(tl.int64)[None, :] * x_unit
        most = tl.maximum(most, magnitude(tl.load(x + at, mask=inside, other=0.0)))
    return tl.max(most, axis=0)


@triton.jit(do_not_specialize=["B", "Q", "L", "query_parts", "key_parts"])
def peaks(
    a, b, value, found, B, H, K, Q, L, query_parts, key_parts,
    a_batch, a_head, a_place, a_unit, b_batch, b_head, b_place, b_unit,
    value_batch, value_head, value_place, value_column,
    E: tl.constexpr, EP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PLACES: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """The bits of the largest |a|, |b| and |value| of each part of a head.

    They are (B, H, query parts, E), (B, K, key parts, E) and (B, K, key parts), one after another in
    `found`. Programs have the same order: those of a, of b, of the values.
    """
    of_a, of_b = B * H * query_parts, B * K * key_parts
    program = tl.program_id(0)
    unit = tl.arange(0, EP)
    if program < of_a:
        part, at_head = program % query_parts, program // query_parts
        most_a = peak_of_units(
            a, part, at_head, H, Q, a_batch, a_head, a_place, a_unit, E, EP, PLACES, NUMBERS
        )
        tl.store(found + program * E + unit, most_a, mask=unit < E)
    elif program < of_a + of_b:
        part, at_head = (program - of_a) % key_parts, (program - of_a) // key_parts
        most_b = peak_of_units(
            b, part, at_head, K, L, b_batch, b_head, b_place, b_unit, E, EP, PLACES, NUMBERS
        )
        tl.store(found + program * E + unit, most_b, mask=unit < E)
    else:
        program -= of_a + of_b
        part, at_head = program % key_parts, program // key_parts
        most_value = peak_of_units(
            value, part, at_head, K, L,
            value_batch, value_head, value_place, value_column, D, DP, PLACES, NUMBERS,
        )  # fmt: skip
        tl.store(found + (of_a + of_b) * E + program, tl.max(most_value, axis=0))


@triton.jit
def most_of_parts(found, count, E: tl.constexpr, EP: tl.constexpr, PARTS: tl.constexpr):
    """The largest number (EP,) of each column of `count` rows of bits (count, E), in fp32; NaN is kept."""
    unit = tl.arange(0, EP)
    most = tl.zeros([PARTS, EP], tl.int32)
    for first in range(0, count, PARTS):
        part = first + tl.arange(0, PARTS)
        inside = (part < count)[:, None] & (unit < E)[None, :]
        at = found + part[:, None] * E + unit[None, :]
        most = tl.maximum(most, tl.load(at, mask=inside, other=0))
    return tl.max(most, axis=0).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["B", "query_parts", "key_parts"])
def pick_rows(
    found, v, reach, error, height, weight, row, peak_value, sound, holds,
    B, H, K, query_parts, key_parts, v_head, v_unit, rounding, largest, rate, allowed,
    G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    LENT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Write the table row of each hidden unit, (B, K, E), and whether each head is sound, (B, H).

    A unit takes the first row that reaches max|a| + max|b|. A head is sound if every unit has such a row,
    the bound `e^(2 delta) - 1 + rounding sqrt(sum_e v_e^2 sum_r c_r^2)` with
    `delta = rate sum_e |v_e| error_e` is at most `allowed`, `rate |v|_1` is at most `largest`, and all
    values are finite.

    `found` holds the results of `peaks`. Also written: `peak_value` (B, K), the largest |value|; `weight`
    (H, E), rate v in the precision of v; 0 in the four integers at `holds`.
    """
    program = tl.program_id(0)
    batch, key_head = program // K, program % K
    unit = tl.arange(0, EP)
    real = unit < E
    first = batch * H + key_head * G
    most = most_of_parts(found + first * query_parts * E, G * query_parts, E, EP, PARTS)
    found += B * H * query_parts * E
    most += most_of_parts(found + program * key_parts * E, key_parts, E, EP, PARTS)
    found += B * K * key_parts * E
    most_value = tl.max(most_of_parts(found + program * key_parts, key_parts, 1, 1, PARTS), axis=0)
    tl.store(peak_value + program, most_value)
    # The number of rows that are too short is the index of the first that is long enough.
    index = tl.zeros([EP], tl.int32)
    for n in range(N):
        index += (tl.load(reach + n) < most).to(tl.int32)
    # NaN compares as False, and so is not within the reach.
    within = (most <= tl.load(reach + N - 1)) | (unit >= E)
    index = tl.minimum(index, N - 1)
    if LENT:
        # The unit with the least |v| lends, for which it takes a row of the second table.
        size = tl.zeros([EP], tl.float32)
        for g in range(G):
            at = v + (key_head * G + g) * v_head + unit * v_unit
            size = tl.maximum(size, tl.abs(tl.load(at, mask=real, other=0.0).to(tl.float32)))
        lender = tl.argmin(tl.where(real, size, float("inf")), axis=0)
        index = tl.where(unit == lender, index + N, index)
    tl.store(row + program * E + unit, index, mask=real)
    power = tl.zeros([EP], tl.float32)
    for r in tl.static_range(R):
        c = tl.load(height + index * R + r, mask=real, other=0.0)
        power += c * c
    fit = tl.load(error + index, mask=real, other=0.0)
    reached = tl.min(within.to(tl.int32), axis=0) * (most_value < float("inf")).to(tl.int32)
    for g in range(G):
        head = key_head * G + g
        of_head = tl.load(v + head * v_head + unit * v_unit, mask=real, other=0.0)
        pull = rate * of_head.to(tl.float32)
        # Rounded to the dtype of v, as v / temperature is on the exact path.
        if batch == 0:
            tl.store(weight + head * E + unit, pull.to(of_head.dtype).to(tl.float32), mask=real)
        pull = tl.abs(pull)
        worst = tl.exp(2 * tl.sum(pull * fit, axis=0)) - 1
        worst += rounding * tl.sqrt(tl.sum(pull * pull * power, axis=0))
        good = (worst <= allowed) & (tl.sum(pull, axis=0) <= largest)
        tl.store(sound + first + g, reached * good.to(tl.int32))
    if program == 0:
        tl.store(holds + tl.arange(0, 4), tl.zeros([4], tl.int32))


@triton.jit(do_not_specialize=["Q", "blocks"])
def query_features(
    a, v, row, frequency, height, phi,
    H, K, Q, blocks, a_batch, a_head, a_place, a_unit, v_head, v_unit, rate,
    G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, R: tl.constexpr, W: tl.constexpr, TP: tl.constexpr,
    N: tl.constexpr, LENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the features phi (B, H, Q, W) in fp16."""
    program = tl.program_id(0)
    block, at_head = program % blocks, program // blocks
    batch, head = at_head // H, at_head % H
    unit, place = tl.arange(0, EP), block * BLOCK + tl.arange(0, BLOCK)
    base = batch.to(tl.int64) * a_batch + head.to(tl.int64) * a_head
    x = load_units(a, base, place, unit, a_place, a_unit, Q, E)
    real, there = unit < E, place < Q
    inside = there[:, None] & real[None, :]
    index = tl.load(row + (batch * K + head // G) * E + unit, mask=real, other=0)
    size = rate * tl.load(v + head * v_head + unit * v_unit, mask=real, other=0.0).to(tl.float32)
    out = phi + (at_head.to(tl.int64) * Q + place)[:, None] * W
    for r in tl.static_range(R):
        w = tl.load(frequency + index * R + r, mask=real, other=0.0)
        c = size * tl.load(height + index * R + r, mask=real, other=0.0)
        sine, cosine = sine_cosine(x * w[None, :])
        column = (r * E + unit)[None, :]
        first, second = c[None, :] * sine, c[None, :] * cosine
        if LENT and r == R - 1:
            # Ones that meet the two columns of beta in psi.
            lends = (index >= N)[None, :]
            first, second = tl.where(lends, 1.0, first), tl.where(lends, 1.0, second)
        tl.store(out + column, first.to(tl.float16), mask=inside)
        tl.store(out + R * E + column, second.to(tl.float16), mask=inside)
    if W > 2 * R * E:
        tail = tl.arange(0, TP)
        # Columns after the sines: two ones for beta if it has columns of its own, zeros beyond.
        ones = 0 if LENT else 2
        column = 2 * R * E + tail
        fill = tl.where(there[:, None] & (tail < ones)[None, :], 1.0, 0.0).to(tl.float16)
        tl.store(out + column[None, :], fill, mask=there[:, None] & (column < W)[None, :])


@triton.jit(do_not_specialize=["L", "blocks"])
def key_features(
    b, v, value, row, linear, frequency, peak_value, psi, wide,
    H, K, L, blocks, b_batch, b_head, b_place, b_unit, v_head, v_unit,
    value_batch, value_head, value_place, value_column, rate,
    G: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, R: tl.constexpr, W: tl.constexpr, TP: tl.constexpr,
    D: tl.constexpr, X: tl.constexpr, XP: tl.constexpr, TARGET: tl.constexpr,
    N: tl.constexpr, LENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the features psi (B, H, L, W) and the scaled values (B, H, L, X) for cuDNN, in fp16."""
    program = tl.program_id(0)
    block, at_head = program % blocks, program // blocks
    batch, head = at_head // H, at_head % H
    key_head = head // G
    unit, place = tl.arange(0, EP), block * BLOCK + tl.arange(0, BLOCK)
    base = batch.to(tl.int64) * b_batch + key_head.to(tl.int64) * b_head
    x = load_units(b, base, place, unit, b_place, b_unit, L, E)
    real, there = unit < E, place < L
    inside = there[:, None] & real[None, :]
    index = tl.load(row + (batch * K + key_head) * E + unit, mask=real, other=0)
    pull = rate * tl.load(v + head * v_head + unit * v_unit, mask=real, other=0.0).to(tl.float32)
    pull = pull * tl.load(linear + index, mask=real, other=0.0)
    beta = tl.sum(x * pull[None, :], axis=1)
    # Two columns: one in fp16 would round beta to 11 bits, which changes weights visibly.
    high = beta.to(tl.float16).to(tl.float32)
    line = at_head.to(tl.int64) * L + place
    out = psi + line[:, None] * W
    for r in tl.static_range(R):
        w = tl.load(frequency + index * R + r, mask=real, other=0.0)
        sine, cosine = sine_cosine(x * w[None, :])
        if LENT and r == R - 1:
            lends = (index >= N)[None, :]
            cosine = tl.where(lends, high[:, None], cosine)
            sine = tl.where(lends, (beta - high)[:, None], sine)
        column = (r * E + unit)[None, :]
        tl.store(out + column, cosine.to(tl.float16), mask=inside)
        tl.store(out + R * E + column, sine.to(tl.float16), mask=inside)
    if W > 2 * R * E:
        tail = tl.arange(0, TP)
        column = 2 * R * E + tail
        fill = tl.zeros([BLOCK, TP], tl.float32)
        if not LENT:
            fill = tl.where((tail == 0)[None, :], high[:, None], fill)
            fill = tl.where((tail == 1)[None, :], (beta - high)[:, None], fill)
        keep = there[:, None] & (column < W)[None, :]
        tl.store(out + column[None, :], fill.to(tl.float16), mask=keep)
    d = tl.arange(0, XP)
    base = batch.to(tl.int64) * value_batch + key_head.to(tl.int64) * value_head
    at = base + place.to(tl.int64)[:, None] * value_place
    at += d.to(tl.int64)[None, :] * value_column
    y = tl.load(value + at, mask=there[:, None] & (d < D)[None, :], other=0.0).to(tl.float32)
    y = y * power_below(tl.load(peak_value + batch * K + key_head).to(tl.float32), TARGET)
    tl.store(
        wide + line[:, None] * X + d[None, :],
        y.to(tl.float16),
        mask=there[:, None] & (d < X)[None, :],
    )


@triton.jit
def note(sound, holds, counts, heads, HEADS: tl.constexpr):
    """Write to `holds` whether all heads are sound, and count the call for `regard.sine.escapes`."""
    least = tl.full([HEADS], 1, tl.int32)
    for first in range(0, heads, HEADS):
        head = first + tl.arange(0, HEADS)
        least = tl.minimum(least, tl.load(sound + head, mask=head < heads, other=1))
    held = tl.min(least, axis=0)
    tl.store(holds, held)
    tl.atomic_add(counts, 1, sem="relaxed")
    tl.atomic_add(counts + 1, held, sem="relaxed")


@triton.jit(do_not_specialize=["B", "Q", "blocks"])
def finish(
    attended, peak_value, output, sound, holds, counts,
    B, H, K, Q, blocks,
    G: tl.constexpr, D: tl.constexpr, X: tl.constexpr, XP: tl.constexpr, TARGET: tl.constexpr,
    BLOCK: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Write the output (B, H, Q, D) from that of cuDNN, (B, H, Q, X); the first program also runs `note`."""
    program = tl.program_id(0)
    block, at_head = program % blocks, program // blocks
    batch, head = at_head // H, at_head % H
    d, place = tl.arange(0, XP), block * BLOCK + tl.arange(0, BLOCK)
    there = place < Q
    line = at_head.to(tl.int64) * Q + place
    inside = there[:, None] & (d < X)[None, :]
    x = tl.load(attended + line[:, None] * X + d[None, :], mask=inside, other=0.0).to(tl.float32)
    y = x * inverse(power_below(tl.load(peak_value + batch * K + head // G).to(tl.float32), TARGET))
    inside = there[:, None] & (d < D)[None, :]
    tl.store(output + line[:, None] * D + d[None, :], y.to(output.dtype.element_ty), mask=inside)
    if program == 0:
        note(sound, holds, counts, B * H, HEADS)
