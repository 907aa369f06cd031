"""The CPU implementation of the tiled operators: turns `Arguments` into `KernelInputs`, and results back."""

from __future__ import annotations

from torch import Tensor

from regard.engines.cpu import kernels
from regard.engines.cpu.forms import InnerTiles, PairwiseTiles
from regard.engines.cpu.tiles import TiledShape
from regard.engines.tiled import Arguments
from regard.precision import working_dtype


def read(args: Arguments) -> kernels.KernelInputs:
    """The arguments of an operator in working precision, with the form built."""
    dtype = working_dtype(args.q.dtype)

    def wide(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(dtype)

    q, k, value = args.q.to(dtype), args.k.to(dtype), args.value.to(dtype)
    scale, softcap, dropout, parameter = args.numbers.tolist()
    if args.v is None:
        form = InnerTiles(q, k, scale, wide(args.alpha), wide(args.beta))
        # A tile of logits has a few intermediate copies of its size; hidden units are not among them.
        depth = 4
    else:
        form = PairwiseTiles(q, k, args.v.to(dtype), args.activation, parameter)
        depth = max(q.shape[-1], 1)
    return kernels.KernelInputs(
        form,
        value,
        wide(args.rate),
        wide(args.bias),
        args.dense,
        args.start,
        args.stop,
        args.query_segment,
        args.key_segment,
        softcap,
        dropout,
        # Read here: on the CPU nothing waits for it.
        0 if args.seed is None else int(args.seed),
        TiledShape._make([*args.sizes, depth]),
    )


def gradients(x: kernels.KernelInputs, args: Arguments, grads: kernels.Gradients | None) -> tuple:
    """The gradients of `Arguments.differentiable()` in the dtypes of the inputs, empty where there is none.

    `grads` is None where raw scores are differentiated, which value, rate and bias have no part in.
    """
    form = x.form
    inner = isinstance(form, InnerTiles)
    found = (
        form.grad_q,
        form.grad_k,
        None if grads is None else grads.value,
        None if inner else form.grad_v,
        form.grad_alpha if inner else None,
        form.grad_beta if inner else None,
        None if grads is None else grads.rate,
        None if grads is None else grads.bias,
    )
    like = args.differentiable()
    return tuple(
        args.q.new_empty(0) if g is None or x is None else g.to(x.dtype)
        for g, x in zip(found, like, strict=True)
    )


def attend(args: Arguments, entropy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, tail, entropy and largest logit of each query."""
    return kernels.forward(read(args), entropy)


def output(args: Arguments) -> Tensor:
    """The output alone; it takes as long as with statistics."""
    return attend(args, False)[0]


def attend_backward(
    args: Arguments,
    grad: Tensor,
    output: Tensor,
    peak: Tensor,
    tail: Tensor,
    grad_tail: Tensor | None,
    spread: Tensor | None,
    grad_spread: Tensor | None,
    bias_gradient: bool,
) -> tuple[Tensor, ...]:
    """All gradients; every tile is computed again."""
    x = read(args)
    # Kernels take statistics as columns, which broadcast over the keys of a tile.
    rows = kernels.QueryRows(
        grad,
        output,
        peak.unsqueeze(-1),
        tail.unsqueeze(-1),
        None if grad_tail is None else grad_tail.unsqueeze(-1),
        None if spread is None else spread.unsqueeze(-1),
        None if grad_spread is None else grad_spread.unsqueeze(-1),
    )
    return gradients(x, args, kernels.backward(x, rows, bias_gradient))


def best_keys(args: Arguments, hard: Tensor) -> Tensor:
    """The index of the best visible key of each hard row."""
    return kernels.best_keys(read(args), hard)


def jacobian(args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor) -> Tensor:
    """The norm of the softmax Jacobian of each row."""
    return kernels.jacobian(read(args), *(x.unsqueeze(-1) for x in (peak, tail, share, left)))


def scores(args: Arguments) -> Tensor:
    """Raw scores (B, K, G, Q, L)."""
    return kernels.all_scores(read(args))


def scores_backward(args: Arguments, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the form's inputs from the gradient of raw scores."""
    x = read(args)
    kernels.all_scores_backward(x, grad.to(x.value.dtype))
    return gradients(x, args, None)
