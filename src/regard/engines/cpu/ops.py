"""The tiled kernels as registered PyTorch operators, and their autograd.

An operator is one opaque node to `torch.compile` and `torch.export`, so that the loops over tiles
are never traced. Each takes the same arguments, `Arguments`, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.cpu import kernels
from regard.engines.cpu.forms import InnerTiles, PairwiseTiles
from regard.engines.cpu.tiles import Shape
from regard.precision import working_dtype


class Arguments(NamedTuple):
    """The arguments of every operator here; tensors have 5 dims, see `tiles`.

    `v` is None for the inner form. `seed` is one integer. `numbers` is (scale, soft cap or 0,
    dropout, parameter of the activation): as a tensor, because `torch.compile` takes floats for
    symbols that it cannot share between two operators. `sizes` is (B, K, G, Q, L).
    """

    q: Tensor
    k: Tensor
    value: Tensor
    v: Tensor | None
    alpha: Tensor | None
    beta: Tensor | None
    rate: Tensor | None
    bias: Tensor | None
    dense: Tensor | None
    start: Tensor | None
    stop: Tensor | None
    query_segment: Tensor | None
    key_segment: Tensor | None
    seed: Tensor | None
    numbers: Tensor
    sizes: list[int]
    activation: str

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """The first 8, which have gradients."""
        return (
            self.q,
            self.k,
            self.value,
            self.v,
            self.alpha,
            self.beta,
            self.rate,
            self.bias,
        )


SCHEMA = (
    "Tensor q, Tensor k, Tensor value, Tensor? v, Tensor? alpha, Tensor? beta, Tensor? rate, "
    "Tensor? bias, Tensor? dense, Tensor? start, Tensor? stop, Tensor? query_segment, "
    "Tensor? key_segment, Tensor? seed, Tensor numbers, SymInt[] sizes, str activation"
)
# The gradients of q, k, value, v, alpha, beta, rate and bias; empty where there is none.
GRADIENTS = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
LIBRARY = torch.library.Library("regard", "DEF")
LIBRARY.define(f"cpu_attend({SCHEMA}, bool entropy) -> (Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"cpu_attend_backward({SCHEMA}, Tensor grad, Tensor output, Tensor peak, Tensor tail, "
    f"Tensor grad_tail, Tensor spread, Tensor? grad_spread, bool bias_gradient) -> {GRADIENTS}"
)
LIBRARY.define(f"cpu_best_keys({SCHEMA}, Tensor hard) -> Tensor")
LIBRARY.define(
    f"cpu_jacobian({SCHEMA}, Tensor peak, Tensor tail, Tensor share, Tensor left) -> Tensor"
)
LIBRARY.define(f"cpu_scores({SCHEMA}) -> Tensor")
LIBRARY.define(f"cpu_scores_backward({SCHEMA}, Tensor grad) -> {GRADIENTS}")
COUNT = len(Arguments._fields)
TENSORS = Arguments._fields.index("sizes")


def read(flat: tuple) -> kernels.Inputs:
    """Operator arguments in working precision, with the form built."""
    args = Arguments(*flat[:COUNT])
    dtype = working_dtype(args.q.dtype)

    def wide(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(dtype)

    q, k, value = args.q.to(dtype), args.k.to(dtype), args.value.to(dtype)
    scale, softcap, dropout, parameter = args.numbers.tolist()
    if args.v is None:
        form = InnerTiles(q, k, scale, wide(args.alpha), wide(args.beta))
        depth = 4
    else:
        form = PairwiseTiles(q, k, args.v.to(dtype), args.activation, parameter)
        depth = max(q.shape[-1], 1)
    return kernels.Inputs(
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
        0 if args.seed is None else int(args.seed),
        Shape._make([*args.sizes, depth]),
    )


def gradients(x: kernels.Inputs, args: Arguments, grads: kernels.Gradients | None) -> tuple:
    """All gradients in the dtypes of their inputs, empty where there is none."""
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


@torch.library.impl(LIBRARY, "cpu_attend", "CPU")
def cpu_attend(*flat):
    """Output, tail, entropy and largest logit, in working precision."""
    return kernels.forward(read(flat), entropy=flat[COUNT])


@torch.library.impl(LIBRARY, "cpu_attend_backward", "CPU")
def cpu_attend_backward(*flat):
    """All gradients, recomputing every tile."""
    x = read(flat)
    grad, output, peak, tail, grad_tail, spread, grad_spread, bias_gradient = flat[COUNT:]
    rows = kernels.Rows(
        grad,
        output,
        peak.unsqueeze(-1),
        tail.unsqueeze(-1),
        grad_tail.unsqueeze(-1),
        spread.unsqueeze(-1),
        None if grad_spread is None else grad_spread.unsqueeze(-1),
    )
    grads = kernels.backward(x, rows, bias_gradient)
    return gradients(x, Arguments(*flat[:COUNT]), grads)


@torch.library.impl(LIBRARY, "cpu_best_keys", "CPU")
def cpu_best_keys(*flat):
    """The best visible key of each hard row."""
    return kernels.best_keys(read(flat), flat[COUNT])


@torch.library.impl(LIBRARY, "cpu_jacobian", "CPU")
def cpu_jacobian(*flat):
    """The norm of the softmax Jacobian of each row."""
    return kernels.jacobian(read(flat), *(x.unsqueeze(-1) for x in flat[COUNT:]))


@torch.library.impl(LIBRARY, "cpu_scores", "CPU")
def cpu_scores(*flat):
    """Raw scores in working precision."""
    return kernels.all_scores(read(flat))


@torch.library.impl(LIBRARY, "cpu_scores_backward", "CPU")
def cpu_scores_backward(*flat):
    """Gradients of the form's inputs from the gradient of raw scores."""
    x = read(flat)
    kernels.all_scores_backward(x, flat[COUNT].to(x.value.dtype))
    return gradients(x, Arguments(*flat[:COUNT]), None)


def _fake_rows(args: Arguments, *last: int, dtype: torch.dtype | None = None) -> Tensor:
    b, k, g, q, _ = args.sizes
    return args.q.new_empty((b, k, g, q, *last), dtype=dtype or working_dtype(args.q.dtype))


def _fake_gradients(args: Arguments, with_value: bool, with_bias: bool) -> tuple:
    has = (True, True, with_value, True, True, True, with_value, with_bias)
    return tuple(
        args.q.new_empty(0) if x is None or not wanted else x.new_empty(x.shape)
        for x, wanted in zip(args.differentiable(), has, strict=True)
    )


@torch.library.register_fake("regard::cpu_attend", lib=LIBRARY)
def _(*flat):
    args = Arguments(*flat[:COUNT])
    output = _fake_rows(args, args.value.shape[-1])
    return output, _fake_rows(args, dtype=torch.float64), _fake_rows(args), _fake_rows(args)


@torch.library.register_fake("regard::cpu_attend_backward", lib=LIBRARY)
def _(*flat):
    return _fake_gradients(Arguments(*flat[:COUNT]), with_value=True, with_bias=flat[-1])


@torch.library.register_fake("regard::cpu_best_keys", lib=LIBRARY)
def _(*flat):
    return _fake_rows(Arguments(*flat[:COUNT]), dtype=torch.int64)


@torch.library.register_fake("regard::cpu_jacobian", lib=LIBRARY)
def _(*flat):
    return _fake_rows(Arguments(*flat[:COUNT]))


@torch.library.register_fake("regard::cpu_scores", lib=LIBRARY)
def _(*flat):
    args = Arguments(*flat[:COUNT])
    return _fake_rows(args, args.sizes[-1])


@torch.library.register_fake("regard::cpu_scores_backward", lib=LIBRARY)
def _(*flat):
    return _fake_gradients(Arguments(*flat[:COUNT]), with_value=False, with_bias=False)


def _returned(grads: tuple, args: Arguments, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients for every argument of a Function, None where there is none or none is needed."""
    found: list[Tensor | None] = [None] * COUNT
    for i, (g, x) in enumerate(zip(grads, args.differentiable(), strict=True)):
        if x is not None and needed[i] and g.ndim == x.ndim:
            found[i] = g
    return found


def attend(entropy: bool, args: Arguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, tail, entropy and largest logit; the operator alone where no gradient is needed."""
    if needs_gradient(args):
        return Attend.apply(entropy, *args)  # type: ignore[return-value] # apply is untyped
    return torch.ops.regard.cpu_attend(*args, entropy)


def scores(args: Arguments) -> Tensor:
    """Raw scores; the operator alone where no gradient is needed."""
    if needs_gradient(args):
        return Scores.apply(*args)  # type: ignore[return-value] # apply is untyped
    return torch.ops.regard.cpu_scores(*args)


def needs_gradient(args: Arguments) -> bool:
    """Whether autograd has to know of the call."""
    inputs = args.differentiable()
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


class Attend(torch.autograd.Function):
    """`cpu_attend` with its gradient; the largest logit has none."""

    @staticmethod
    def forward(entropy, *flat):
        """Run the operator; `flat` is `Arguments`."""
        return torch.ops.regard.cpu_attend(*flat, entropy)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep what the backward recomputes from."""
        ctx.entropy, *flat = inputs
        out, tail, spread, peak = output
        ctx.save_for_backward(*flat[:TENSORS], out, tail, spread, peak)
        ctx.settings = flat[TENSORS:]
        ctx.mark_non_differentiable(peak)

    @staticmethod
    def backward(ctx, grad, grad_tail, grad_spread, _):  # type: ignore[override] # fixed arity
        """Recompute every tile."""
        *tensors, output, tail, spread, peak = ctx.saved_tensors
        args = Arguments(*tensors, *ctx.settings)
        grads = once(AttendBackward, torch.ops.regard.cpu_attend_backward)(
            *args,
            grad,
            output,
            peak,
            tail,
            grad_tail,
            spread,
            grad_spread if ctx.entropy else None,
            ctx.needs_input_grad[1 + Arguments._fields.index("bias")],
        )
        return None, *_returned(grads, args, ctx.needs_input_grad[1:])


class Scores(torch.autograd.Function):
    """`cpu_scores` with its gradient."""

    @staticmethod
    def forward(*flat):
        """Run the operator; `flat` is `Arguments`."""
        return torch.ops.regard.cpu_scores(*flat)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep what the backward recomputes from."""
        ctx.save_for_backward(*inputs[:TENSORS])
        ctx.settings = inputs[TENSORS:]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override] # fixed arity
        """Recompute every tile."""
        args = Arguments(*ctx.saved_tensors, *ctx.settings)
        grads = once(ScoresBackward, torch.ops.regard.cpu_scores_backward)(*args, grad)
        return tuple(_returned(grads, args, ctx.needs_input_grad))


# An exported program calls the operators themselves: with these it has gradients too.
@torch.library.impl(LIBRARY, "cpu_attend", "Autograd")
def _(*flat):
    if needs_gradient(Arguments(*flat[:COUNT])):
        return Attend.apply(flat[COUNT], *flat[:COUNT])
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.regard.cpu_attend(*flat)


@torch.library.impl(LIBRARY, "cpu_scores", "Autograd")
def _(*flat):
    if needs_gradient(Arguments(*flat)):
        return Scores.apply(*flat)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.regard.cpu_scores(*flat)


class Once(torch.autograd.Function):
    """A backward pass that cannot be differentiated again, and says what can."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept."""

    @staticmethod
    def backward(ctx, *grads):
        """Refuse."""
        raise RuntimeError("engine 'cpu' has no second derivative; use engine='reference' for one")


def once(function: type[Once], op: Callable) -> Callable:
    """What to call for a backward pass: compilers trace the operator, not a Function in one."""
    return op if torch.compiler.is_compiling() else function.apply


class AttendBackward(Once):
    """`cpu_attend_backward`."""

    @staticmethod
    def forward(*flat):
        """Run the operator."""
        return torch.ops.regard.cpu_attend_backward(*flat)


class ScoresBackward(Once):
    """`cpu_scores_backward`."""

    @staticmethod
    def forward(*flat):
        """Run the operator."""
        return torch.ops.regard.cpu_scores_backward(*flat)
