"""The arguments of kernels in groups: pointers and sizes as named tuples, fixed choices as `KernelTile`.

Triton compiles a kernel anew for an integer that is 1 and for one that 16 divides, so that a batch of another
length might compile everything again. Numbers of queries and keys are therefore exempt. They are arguments of
their own, since Triton exempts no field of a tuple; kernels put them together as `KernelSizes`. Strides in the
other tuples that depend on a length are those of operands padded to whole tiles.

Shape legend: Z = B K G heads of the whole call, one after the other; Q queries, L keys, E hidden
units or features, dv value columns. Code that needs a pointer which is None is compiled away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl


class KernelSizes(NamedTuple):
    """K and G, which locate a head in operands that several heads share; the lengths; dv."""

    groups: int
    heads: int
    queries: int
    keys: int
    value_dim: int


class KernelForm(NamedTuple):
    """The two sides as `prepare.py` makes them, each with its strides of B, K and G.

    Pairwise: hidden unit h of row i is at `h * step + i * row`. Laid out as (E, length), row is 1 and
    the length is padded to `step`; a "direct" form reads the caller's operands with their own strides.
    Inner: (length, E). Where there are `loose` flags, the fast kernel computes the heads for which
    neither side is loose, and the plain one computes the others.
    """

    q: Any
    q_b: int
    q_k: int
    q_g: int
    q_step: int
    q_row: int
    k: Any
    k_b: int
    k_k: int
    k_g: int
    k_step: int
    k_row: int
    second_q: Any = None  # the query side of the second loop of the backward
    v: Any = None  # (K G, E)
    gate: Any = None  # by head of q, (E,) each
    base: Any = None  # by head of q
    loose_q: Any = None  # by head of q
    loose_k: Any = None  # by head of k
    scale: float = 1.0
    parameter: float = 0.0


class Laying(NamedTuple):
    """Arguments of `side_kernel`: one side (B, K, G, length, E) with strides, and where to lay it out."""

    x: Any
    of_b: int
    of_k: int
    of_g: int
    of_row: int
    of_unit: int
    groups: int
    heads: int
    length: int
    step: int
    v: Any
    weights: Any
    gate: Any
    base: Any
    gated: Any
    exponentials: Any
    raw: Any
    loose: Any
    bound: float
    least: float


class PairTerms(NamedTuple):
    """Everything that changes or hides a logit. Terms of rows are (Z, Q), of columns (Z, L).

    `start` and `stop` are (Z, Q), or (Q,) where all heads share them: `own_spans` is then 0, else 1.
    """

    rate: Any
    alpha: Any
    beta: Any
    softcap: Any
    bias: Any
    bias_b: int
    bias_k: int
    bias_g: int
    bias_q: int
    bias_l: int
    dense: Any
    dense_b: int
    dense_k: int
    dense_g: int
    dense_q: int
    dense_l: int
    start: Any
    stop: Any
    own_spans: int
    query_segment: Any
    key_segment: Any


class Values(NamedTuple):
    """The values, (L, dv) for each head, with strides of B, K and G; dropout and its seed."""

    value: Any
    value_b: int
    value_k: int
    value_g: int
    dropout: float
    seed: Any


class KernelTile(NamedTuple):
    """The compile-time choices of a kernel.

    A tile is BM queries by BN keys, computed by W warps. E is the number of hidden units or features as
    they are laid out, REAL their number without padding; DV is dv rounded up to a power of two. FORM is
    "inner", "plain", "direct" (plain, but not laid out) or "fast". WORK is the dtype of logits and sums,
    DOT that of operands of matrix products, PRECISION the `input_precision` of these. FIVE says whether
    tiles have 5 dims, see `tiles.py`. HIDES says whether any pair within the lengths may be hidden,
    SPARSE whether whole tiles within the spans may be. LANES says whether the backward sums as in
    `lanes.py`, INTERPRET whether kernels run in the interpreter.
    """

    BM: tl.constexpr
    BN: tl.constexpr
    W: tl.constexpr
    E: tl.constexpr
    REAL: tl.constexpr
    DV: tl.constexpr
    FORM: tl.constexpr
    ACTIVATION: tl.constexpr
    WORK: tl.constexpr
    DOT: tl.constexpr
    PRECISION: tl.constexpr
    FIVE: tl.constexpr
    HIDES: tl.constexpr
    SPARSE: tl.constexpr
    LANES: tl.constexpr
    INTERPRET: tl.constexpr


class BackwardRows(NamedTuple):
    """What the backward is given for each query: grad and output (Z, Q, dv), the rest (Z, Q).

    `shift` is `grad_tail - <grad, output>`; the decode kernel gets `grad_tail` and `output` instead and
    computes it. Where `given` (Z, Q, L) is not None, it is the gradient of the raw scores themselves, and
    no other field is read. The decode kernel may get the `weights` (Z, Q, L) in place of peak and tail, and
    with them a `grad_weights`, whose average under the weights is then the `shift`.
    """

    given: Any = None
    grad: Any = None
    peak: Any = None
    tail: Any = None
    shift: Any = None
    entropy: Any = None
    grad_entropy: Any = None
    output: Any = None
    grad_tail: Any = None
    weights: Any = None
    grad_weights: Any = None


class ShownWeights(NamedTuple):
    """Weights (Z, Q, L) that `combine_kernel` writes, a copy of them, and their sum with `before`."""

    weights: Any
    copy: Any = None
    before: Any = None
    after: Any = None


class GradientPointers(NamedTuple):
    """The sums that the backward adds gradients to, all zero at first.

    Pairwise: q (Z, units, q_step), k and v (Z, units, k_step). That is (Z, E, Q) and (Z, E, L), or more
    for `lanes.py`: an even number of units, and lengths padded to whole tiles. Inner: q (Z, Q, E), k (Z,
    L, E). value (Z, L, dv), rate and alpha (Z, Q), beta (Z, L), bias (5 dims, its strides).

    All programs of a head add to q, rate and alpha; those of one block of keys add to the others, except
    the bias. With `unit` (Z, Q) a block of keys has one program. Then q, rate and alpha are 64 bit
    integers that count units of 1 / unit, and `broken_rows` (Z, Q) marks rows with NaN.
    """

    q: Any
    k: Any
    v: Any
    units: int
    q_step: int
    k_step: int
    value: Any
    rate: Any
    alpha: Any
    beta: Any
    bias: Any
    bias_b: int
    bias_k: int
    bias_g: int
    bias_q: int
    bias_l: int
    unit: Any
    broken_rows: Any


class DecodePointers(NamedTuple):
    """The results of the decode backward; none has to be set before.

    The bias (Z, Q, L) is complete, and so are k (Z, L, E) and value (Z, L, dv) where no heads share keys.
    Of q (Z, parts, Q, E), v (parts, Z, E) and rate (Z, parts, Q) each of the `parts` blocks of keys of a
    head writes its own copy. Complete gradients are in their final dtype, copies in working precision.
    """

    q: Any
    k: Any
    v: Any
    value: Any
    rate: Any
    bias: Any
