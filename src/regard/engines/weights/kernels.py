"""The kernel of `mean_weights`: reads each logit once, writes its weight in its place, and their mean.

Shape legend: N batch, H heads, Q queries, L keys.
"""

from __future__ import annotations

import triton.language as tl

import triton

NUMBERS = (
    "heads", "queries", "keys", "keep_n", "keep_h", "keep_q", "keep_l", "bias_n", "bias_h", "bias_q",
    "bias_l",
)  # fmt: skip


@triton.jit(do_not_specialize=NUMBERS)
def mean_weights_kernel(
    logits, mean, keep, bias, heads, queries, keys, keep_n, keep_h, keep_q, keep_l, bias_n, bias_h,
    bias_q, bias_l, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Turn logits (N, H, Q, L) into weights, and write their mean (N, Q, L); one program for each (n, query).

    `keep` and `bias` broadcast by strides of 0, or are None. A query that sees nothing has weights of 0.
    EVEN is a divisor of the number of keys, so that loads take that many numbers.
    """
    row = tl.program_id(0).to(tl.int64)
    n, query = row // queries, row % queries
    key, length = tl.arange(0, BLOCK), keys // EVEN * EVEN
    inside, total = key < keys, tl.zeros([BLOCK], tl.float32)
    at = logits + (n * heads * queries + query) * length + key
    ahead = tl.load(at, mask=inside, other=-float("inf"))
    for head in range(heads):
        # The row of the next head is on its way while this one is summed: sums wait for all warps.
        x, following = ahead.to(tl.float32), at + queries.to(tl.int64) * length
        ahead = tl.load(following, mask=inside & (head + 1 < heads), other=-float("inf"))
        if bias is not None:
            of_bias = n * bias_n + head * bias_h + query * bias_q + key.to(tl.int64) * bias_l
            x += tl.load(bias + of_bias, mask=inside, other=0.0).to(tl.float32)
        if keep is not None:
            of_keep = n * keep_n + head * keep_h + query * keep_q + key.to(tl.int64) * keep_l
            seen = tl.load(keep + of_keep, mask=inside, other=0) != 0
            x = tl.where(seen, x, -float("inf"))
        top = tl.max(x, 0)
        weights = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
        whole = tl.sum(weights, 0)
        weights = weights / tl.where(whole == 0.0, 1.0, whole)
        # A hidden key has weight 0 also in a row whose sum is NaN.
        weights = tl.where(x == -float("inf"), 0.0, weights)
        tl.store(at, weights, mask=inside)
        total += weights
        at = following
    tl.store(mean + row * length + key, total / heads, mask=inside)
