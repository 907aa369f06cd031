"""Sums whose result does not depend on the order in which programs add to them.

Floating point addition is not associative, so that many programs adding to one place give other
last bits each time. Integers are: a term times a power of two, as 64 bits, loses nothing that fp32
would keep, as long as the largest possible sum is known. It is, from the largest entries of the
operands, and generously: of the 62 bits about 40 remain even if the bound is a million times too
large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.engines.tiled import Arguments
from regard.engines.triton.structs import Rows

BITS = 60


def unit(args: Arguments, known: Rows) -> Tensor:
    """How many integer units make 1: a power of two, one number on the device."""
    limit = largest_sum(args, known)
    # frexp: limit = fraction * 2 ** exponent with a fraction below 1.
    exponent = torch.frexp(limit.double().clamp(1e-200, 1e200)).exponent
    return torch.ldexp(torch.ones_like(limit), BITS - exponent).clamp(max=2.0**100)


def largest_sum(args: Arguments, known: Rows) -> Tensor:
    """No sum over the pairs of a row is larger than this."""
    keys = args.sizes[4]
    scale, _, dropout, parameter = args.numbers.tolist()
    if known.given is not None:
        row = keys * peak(known.given)
    else:
        row = args.value.shape[-1] * peak(known.grad) * peak(args.value) / (1 - dropout)
        row = row + peak(known.shift)
        if known.grad_entropy is not None:
            # sum p |log p| is the entropy, and so is its mean that is taken away.
            row = row + 2 * (math.log(keys + 1) + 1) * peak(known.grad_entropy)
    if args.rate is not None:
        row = row * peak(args.rate).clamp(min=1)
    reach = peak(args.q) + peak(args.k)
    if args.v is None:
        score = abs(scale) * args.q.shape[-1] * peak(args.q) * peak(args.k)
        score = score + sum(peak(x) for x in (args.alpha, args.beta) if x is not None)
        factor = torch.maximum(abs(scale) * torch.maximum(peak(args.q), peak(args.k)), score)
    else:
        height = 1 if args.activation == "tanh" else reach * max(1.0, abs(parameter))
        score = args.q.shape[-1] * peak(args.v) * height
        slope = peak(args.v) * max(1.0, abs(parameter))
        factor = torch.maximum(score, slope)
    return row * factor.clamp(min=1)


def peak(x: Tensor) -> Tensor:
    """The largest finite |x|, in fp32 at least."""
    if not x.numel():
        return x.new_zeros(())
    x = x.detach().abs()
    work = torch.promote_types(x.dtype, torch.float32)
    return torch.where(x.isfinite(), x, 0).amax().to(work)
