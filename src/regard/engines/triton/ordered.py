"""Scales of integer sums, whose result does not depend on the order in which programs add to them.

Floating point addition is not associative: many programs that add to one number give different last bits
in each run. Integer addition is, so terms are multiplied by a power of two and added as 64 bit integers.
A term that is small compared with the largest possible sum of its row loses digits: a bound that is a
million times too large leaves 40 of 60 bits, where fp32 has 24. Each row therefore has a bound of its
own, from its incoming gradient and, where a mask hides values, from the attention to |value|, which does
not read hidden ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.engines.tiled import Arguments
from regard.engines.triton.structs import BackwardRows

# Bits of the largest possible sum; the sign and a margin take the other four.
BITS = 60


def unit(args: Arguments, known: BackwardRows, reach: Tensor | None) -> Tensor:
    """The integer that stands for 1 in each row, a power of two: (Z, Q) in fp64.

    `reach` (Z, Q, dv) is the attention to |value|, or None where nothing is hidden.
    """
    limit = largest_sum(args, known, reach).double()
    # frexp: limit = fraction * 2 ** exponent with a fraction below 1.
    exponent = torch.frexp(limit.clamp(1e-250, 1e250)).exponent
    return torch.ldexp(torch.ones_like(limit), BITS - exponent)


def largest_sum(args: Arguments, known: BackwardRows, reach: Tensor | None) -> Tensor:
    """A bound on every sum over the pairs of a row, (Z, Q)."""
    keys = args.sizes[4]
    scale, _, dropout, parameter = args.numbers.tolist()
    if known.given is not None:
        row = finite(known.given).sum(-1)
    else:
        grad = finite(known.grad)
        row = grad.sum(-1) * peak(args.value) if reach is None else (grad * finite(reach)).sum(-1)
        row = row / (1 - dropout) + finite(known.shift)
        if known.grad_entropy is not None:
            # sum p |log p + entropy| is at most twice the entropy, which is at most log(keys + 1).
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
    # Doubled, since the kernel rounds on the way to each term.
    return 2 * row * factor.clamp(min=1)


def finite(x: Tensor) -> Tensor:
    """|x|, with 0 for NaN and inf."""
    return torch.where(x.isfinite(), x.detach().abs(), 0)


def peak(x: Tensor) -> Tensor:
    """The largest finite |x|, in fp32 at least."""
    if not x.numel():
        return x.new_zeros(())
    return finite(x).amax().to(torch.promote_types(x.dtype, torch.float32))
