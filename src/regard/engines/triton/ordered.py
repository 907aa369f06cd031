"""Sums whose result does not depend on the order in which programs add to them.

Floating point addition is not associative, so that many programs adding to one place give other
last bits each time. Integers are: a term times a power of two, as 64 bits. What is small beside the
largest possible sum of its row loses digits: a bound a million times too large leaves 40 of 60 bits,
fp32 has 24. The bound is therefore that of each row: from its own gradient and, where a mask hides
values, from the attention to |value|, which does not read them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.engines.tiled import Arguments
from regard.engines.triton.structs import BackwardRows

BITS = 60


def unit(args: Arguments, known: BackwardRows, reach: Tensor | None) -> Tensor:
    """How many integer units make 1 in each row: powers of two, (Z, Q) in fp64.

    `reach` (Z, Q, dv) is the attention to |value|, or None where nothing is hidden.
    """
    limit = largest_sum(args, known, reach).double()
    # frexp: limit = fraction * 2 ** exponent with a fraction below 1.
    exponent = torch.frexp(limit.clamp(1e-250, 1e250)).exponent
    return torch.ldexp(torch.ones_like(limit), BITS - exponent)


def largest_sum(args: Arguments, known: BackwardRows, reach: Tensor | None) -> Tensor:
    """No sum over the pairs of a row is larger than this, (Z, Q)."""
    keys = args.sizes[4]
    scale, _, dropout, parameter = args.numbers.tolist()
    if known.given is not None:
        row = finite(known.given).sum(-1)
    else:
        grad = finite(known.grad)
        row = grad.sum(-1) * peak(args.value) if reach is None else (grad * finite(reach)).sum(-1)
        row = row / (1 - dropout) + finite(known.shift)
        if known.grad_entropy is not None:
            # sum p |log p| is the entropy, and so is its mean that is taken away.
            row = row + 2 * (math.log(keys + 1) + 1) * finite(known.grad_entropy)
    if args.rate is not None:
        row = row * peak(args.rate).clamp(min=1)
    if args.v is None:
        score = abs(scale) * args.q.shape[-1] * peak(args.q) * peak(args.k)
        score = score + sum(peak(x) for x in (args.alpha, args.beta) if x is not None)
        factor = torch.maximum(abs(scale) * torch.maximum(peak(args.q), peak(args.k)), score)
    else:
        steep = max(1.0, abs(parameter))
        height = 1 if args.activation == "tanh" else steep * (peak(args.q) + peak(args.k))
        factor = torch.maximum(args.q.shape[-1] * peak(args.v) * height, steep * peak(args.v))
    # Twice: the kernel rounds on its own way to each term.
    return 2 * row * factor.clamp(min=1)


def finite(x: Tensor) -> Tensor:
    """|x|, 0 where it is not a number or infinite."""
    return torch.where(x.isfinite(), x.detach().abs(), 0)


def peak(x: Tensor) -> Tensor:
    """The largest finite |x|, in fp32 at least."""
    if not x.numel():
        return x.new_zeros(())
    return finite(x).amax().to(torch.promote_types(x.dtype, torch.float32))
