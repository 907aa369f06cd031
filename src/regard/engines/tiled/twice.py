"""Derivatives of the operators' gradients, in plain PyTorch: what a Hessian or a gradient penalty asks for.

Kernels compute first derivatives. Their derivatives are rare, so that they are not worth kernels: the
call is computed again from `Arguments` with PyTorch's operations, which autograd differentiates as often
as it is asked to. Memory then grows with Q x L, and for pairwise scores with Q x L x hidden.

Shape legend: as in `operators`, (B, K, G, rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.activations import ACTIVATIONS
from regard.engines.tiled.arguments import Arguments
from regard.precision import working_dtype


def plain_scores(args: Arguments) -> Tensor:
    """Raw scores (B, K, G, Q, L), as the operator `scores` returns them."""
    dtype = working_dtype(args.q.dtype)
    scale, _, _, parameter = args.numbers.tolist()
    q, k = args.q.to(dtype), args.k.to(dtype)
    if args.v is None:
        scores = q @ k.mT * scale
        for term in (args.alpha, args.beta):
            scores = scores if term is None else scores + term.to(dtype)
    else:
        units = ACTIVATIONS[args.activation].value(q.unsqueeze(-2) + k.unsqueeze(-3), parameter)
        scores = (units * args.v.to(dtype).unsqueeze(-2)).sum(-1)
    return scores.expand(args.sizes)


def plain_attend(args: Arguments, peak: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output, tail and entropy, as the operator `attend` returns them; `peak` is its largest logit."""
    softcap = args.numbers.tolist()[1]
    logits = plain_scores(args)
    dtype = logits.dtype
    if args.rate is not None:
        logits = logits * args.rate.to(dtype)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    if args.bias is not None:
        bias = args.bias.to(dtype)
        logits = logits + torch.where(bias == -torch.inf, 0, bias)
    hidden = hidden_pairs(args)
    empty = (peak == -torch.inf).unsqueeze(-1)
    if hidden is not None:
        # A row that sees nothing is left as it is and set to 0 afterwards: of -inf alone the softmax,
        # and every derivative, would be NaN.
        logits = logits.masked_fill(hidden & ~empty, -torch.inf)
    weights = torch.softmax(logits, -1)
    if hidden is not None:
        weights = weights.masked_fill(hidden, 0)
    output = weights @ args.value.to(dtype)
    tail = torch.logsumexp(logits, -1) - torch.where(empty.squeeze(-1), 0, peak).to(dtype)
    tail = tail.masked_fill(empty.squeeze(-1), 0)
    logs = torch.log_softmax(logits, -1)
    logs = logs if hidden is None else logs.masked_fill(hidden, 0)
    return output, tail, -(weights * logs).sum(-1)


def hidden_pairs(args: Arguments) -> Tensor | None:
    """Pairs (B, K, G, Q, L) that mask or bias hide, None for none."""
    parts = []
    column = torch.arange(args.sizes[-1], device=args.q.device)
    if args.start is not None:
        parts.append(column < args.start)
    if args.stop is not None:
        parts.append(column >= args.stop)
    if args.query_segment is not None and args.key_segment is not None:
        parts += [args.query_segment != args.key_segment, args.query_segment < 0]
    if args.dense is not None:
        parts.append(~args.dense)
    if args.bias is not None:
        parts.append(args.bias == -torch.inf)
    hidden = None
    for part in parts:
        hidden = part if hidden is None else hidden | part
    return None if hidden is None else hidden.expand(args.sizes)


def differentiate_again(
    kernel: str, args: Arguments, more: Sequence, grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of all operands of a backward operator, from the gradients of its results.

    Args:
        kernel: "attend_backward" or "scores_backward".
        args: the first operands.
        more: the other operands, in the order of the operator's schema.
        grads: for each of the 8 results; None or of another shape than its input where there is none.
    """
    # Views, so that the derivative is with respect to these operands and not to what they were made from.
    with torch.enable_grad():
        own = [leaf_or_view(x) for x in args.differentiable()]
        fresh = Arguments(*own, *args[len(own) :])  # type: ignore[bad-argument-type] # of the same kinds
        results, places = results_of(kernel, fresh, more)
        seeds: dict[int, Tensor] = {
            i: x for i in places if (x := leaf_or_view(more[i])) is not None
        }
        given = {i: x for i, x in enumerate(own) if x is not None}
        first = torch.autograd.grad(
            [y for y, i in zip(results, places, strict=True) if i in seeds],
            list(given.values()),
            [
                seed.to(y.dtype)
                for y, i in zip(results, places, strict=True)
                if (seed := seeds.get(i)) is not None
            ],
            create_graph=True,
            allow_unused=True,
        )
    result: list[Tensor | None] = [None] * (len(args) + len(more))
    # As seeds of the next pass and not multiplied and summed: gradients may stand for a batch of them
    # (`is_grads_batched`), over which a sum here would add up.
    pairs = [
        (found, grad)
        for i, found in zip(given, first, strict=True)
        if found is not None
        and found.requires_grad
        and (grad := grads[i]) is not None
        and grad.shape == found.shape
    ]
    if not pairs:
        return result
    inputs = {**given, **{len(args) + i: seed for i, seed in seeds.items()}}
    found = torch.autograd.grad(
        [y for y, _ in pairs],
        list(inputs.values()),
        [grad.to(y.dtype) for y, grad in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    for i, grad in zip(inputs, found, strict=True):
        result[i] = grad
    return result


def results_of(
    kernel: str, args: Arguments, more: Sequence
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """What the forward operator returns, and where the gradient of each is among the other operands."""
    if kernel == "scores_backward":
        return (plain_scores(args),), (0,)
    return plain_attend(args, more[2]), (0, 4, 6)


def leaf_or_view(x: Tensor | None) -> Tensor | None:
    """The tensor as one whose gradient can be asked for, apart from the other uses of the same tensor."""
    if x is None:
        return None
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
