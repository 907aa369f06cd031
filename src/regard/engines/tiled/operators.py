"""Kernels as registered PyTorch operators, and their autograd.

An operator is one opaque node to `torch.compile` and `torch.export`, so that loops over tiles are
never traced. Each takes the same arguments, `Arguments`, in this order.

Shape legend: operands have 5 dims, (B, K, G, rows, columns): B leading dims made one, K groups of
heads, G query heads in each group; rows are Q queries, columns L keys. A size of 1 broadcasts, also
in gradients, which are summed into it. Statistics of rows are (B, K, G, Q).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.engines.gpu import on_own_device
from regard.engines.tiled.eager import (
    apply,
    below_autograd,
    differentiated,
    in_forward_mode,
)
from regard.observed import needs_dispatcher
from regard.precision import working_dtype

Rows = tuple[Tensor, Tensor, Tensor, Tensor]


class Arguments(NamedTuple):
    """The arguments of every operator; see the legend above.

    `q` and `k` are the features phi and psi of the inner form, or a and b of the pairwise one. `v` is
    None for the inner form, (B, K, G, 1, hidden) for the pairwise one; `alpha`, a column, and `beta`,
    a row, are terms of the inner form. `rate` multiplies the score (1 / temperature). `dense` is True
    where a pair is seen. `start`, `stop` and `query_segment` are columns, `key_segment` is a row.
    `seed` is one integer. `numbers` is (scale, soft cap or 0, dropout, parameter of the activation),
    fp64 on the CPU: as a tensor, because `torch.compile` takes floats for symbols that it cannot
    share between two operators. `sizes` is (B, K, G, Q, L).
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


class Kernels(Protocol):
    """What an engine has to compute; a module with these functions will do.

    Results are in working precision, but for `tail` in fp64. Gradients are those of
    `Arguments.differentiable()`, each in the dtype of its input and contiguous, and an empty tensor
    of one dim where there is none.
    """

    def attend(self, args: Arguments, entropy: bool) -> Rows:
        """Output (B, K, G, Q, dv), tail, entropy (any number unless asked for), largest logit.

        The tail is LSE minus the largest logit; the largest logit is -inf where nothing is seen.
        """
        ...

    def output(self, args: Arguments) -> Tensor:
        """The first of these alone, also in the dtype of the values if that takes less time."""
        ...

    def attend_backward(
        self,
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
        """All gradients; `spread` is the entropy, if `attend` was asked for it, `peak` the largest logit.

        `grad_tail` and `grad_spread` are None where there is none.
        """
        ...

    def best_keys(self, args: Arguments, hard: Tensor) -> Tensor:
        """The best visible key of each row where `hard` (5 dims): -1 for none, -2 for NaN."""
        ...

    def jacobian(
        self, args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor
    ) -> Tensor:
        """Norm of the softmax Jacobian; `share` is the weight of all keys, `left` the sink's."""
        ...

    def scores(self, args: Arguments) -> Tensor:
        """Raw scores (B, K, G, Q, L)."""
        ...

    def scores_backward(self, args: Arguments, grad: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the form's inputs; those of value, rate and bias are empty."""
        ...


SCHEMA = (
    "Tensor q, Tensor k, Tensor value, Tensor? v, Tensor? alpha, Tensor? beta, Tensor? rate, "
    "Tensor? bias, Tensor? dense, Tensor? start, Tensor? stop, Tensor? query_segment, "
    "Tensor? key_segment, Tensor? seed, Tensor numbers, SymInt[] sizes, str activation"
)
# The gradients of q, k, value, v, alpha, beta, rate and bias; empty where there is none.
GRADIENTS = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
# What follows an operator's name: the operands beyond `Arguments`, and what it returns.
SIGNATURES = {
    "attend": f"({SCHEMA}, bool entropy) -> (Tensor, Tensor, Tensor, Tensor)",
    "attend_backward": (
        f"({SCHEMA}, Tensor grad, Tensor output, Tensor peak, Tensor tail, Tensor? grad_tail, "
        f"Tensor? spread, Tensor? grad_spread, bool bias_gradient) -> {GRADIENTS}"
    ),
    "best_keys": f"({SCHEMA}, Tensor hard) -> Tensor",
    "jacobian": f"({SCHEMA}, Tensor peak, Tensor tail, Tensor share, Tensor left) -> Tensor",
    "scores": f"({SCHEMA}) -> Tensor",
    "scores_backward": f"({SCHEMA}, Tensor grad) -> {GRADIENTS}",
}
LIBRARY = torch.library.Library("regard", "DEF")
# By engine and operator, what the latter runs: for calls that nobody looks at.
KERNELS: dict[tuple[str, str], Callable] = {}
COUNT = len(Arguments._fields)
TENSORS = Arguments._fields.index("sizes")


class Operators:
    """The operators `regard::{name}_*` of one engine, and how to call them.

    Args:
        name: the engine's.
        kernels: what they run.
        devices: dispatch keys of the devices that the kernels serve.
    """

    def __init__(self, name: str, kernels: Kernels, devices: Sequence[str]) -> None:
        self.name = name
        for kernel, signature in SIGNATURES.items():
            LIBRARY.define(f"{name}_{kernel}{signature}")
            run = on_own_device(with_arguments(getattr(kernels, kernel)))
            KERNELS[name, kernel] = run
            for device in devices:
                LIBRARY.impl(f"{name}_{kernel}", run, device)
            fake = with_arguments(FAKES[kernel])
            torch.library.register_fake(f"regard::{name}_{kernel}", fake, lib=LIBRARY)
        self.alone = on_own_device(with_arguments(kernels.output))
        # An exported program calls the operators themselves: with these it has gradients too.
        LIBRARY.impl(f"{name}_attend", self._attend_with_autograd, "Autograd")
        LIBRARY.impl(f"{name}_scores", self._scores_with_autograd, "Autograd")

    def attend(self, entropy: bool, args: Arguments) -> Rows:
        """Output, tail, entropy and largest logit; the operator alone where no gradient is needed."""
        if needs_gradient(args):
            return apply(Attend, self.name, entropy, *args)
        return attended(self.name, *args, entropy)

    def output(self, args: Arguments) -> Tensor:
        """The output alone, in working precision or in the dtype of the values."""
        # Not a slice of `args` itself: compilers of older releases would make `Arguments` of it.
        tensors: Any = (*args,)[:TENSORS]
        if needs_gradient(args) or needs_dispatcher(tensors):
            return self.attend(False, args)[0]
        with torch._C._AutoDispatchBelowAutograd():
            return self.alone(*args)

    def scores(self, args: Arguments) -> Tensor:
        """Raw scores; the operator alone where no gradient is needed."""
        if needs_gradient(args):
            return apply(Scores, self.name, *args)
        return below_autograd(operator(self.name, "scores"), *args)

    def best_keys(self, args: Arguments, hard: Tensor) -> Tensor:
        """The best visible key of each hard row; it has no gradient."""
        return operator(self.name, "best_keys")(*detached(args), hard)

    def jacobian(
        self, args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor
    ) -> Tensor:
        """The norm of the softmax Jacobian of each row, without gradient."""
        rows = detached((peak, tail, share, left))
        return operator(self.name, "jacobian")(*detached(args), *rows)

    def _attend_with_autograd(self, *flat):
        if needs_gradient(Arguments(*flat[:COUNT])):
            return Attend.apply(self.name, flat[COUNT], *flat[:COUNT])
        with torch._C._AutoDispatchBelowAutograd():
            return operator(self.name, "attend")(*flat)

    def _scores_with_autograd(self, *flat):
        if needs_gradient(Arguments(*flat)):
            return Scores.apply(self.name, *flat)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(self.name, "scores")(*flat)


def operator(name: str, kernel: str) -> Callable:
    """One of the operators of the engine `name`."""
    return getattr(torch.ops.regard, f"{name}_{kernel}")


def attended(name: str, *flat) -> Rows:
    """`attend` of the engine `name` below autograd."""
    if needs_dispatcher(flat[:TENSORS]):
        return below_autograd(operator(name, "attend"), *flat)
    with torch._C._AutoDispatchBelowAutograd():
        return KERNELS[name, "attend"](*flat)


def with_arguments(kernel: Callable) -> Callable:
    """The kernel as an operator calls it, with its arguments in a row."""

    def run(*flat):
        return kernel(Arguments(*flat[:COUNT]), *flat[COUNT:])

    return run


def needs_gradient(args: Arguments) -> bool:
    """Whether autograd has to know of the call."""
    return differentiated(args.differentiable())


def detached(values: Sequence) -> list:
    """The same, tensors without their history."""
    return [x.detach() if isinstance(x, Tensor) else x for x in values]


def _fake_rows(args: Arguments, *last: int, dtype: torch.dtype | None = None) -> Tensor:
    b, k, g, q, _ = args.sizes
    return args.q.new_empty((b, k, g, q, *last), dtype=dtype or working_dtype(args.q.dtype))


def _fake_attend(args: Arguments, entropy: bool) -> Rows:
    output = _fake_rows(args, args.value.shape[-1])
    return output, _fake_rows(args, dtype=torch.float64), _fake_rows(args), _fake_rows(args)


def _fake_gradients(args: Arguments, with_value: bool, with_bias: bool) -> tuple[Tensor, ...]:
    has = (True, True, with_value, True, True, True, with_value, with_bias)
    return tuple(
        args.q.new_empty(0) if x is None or not wanted else x.new_empty(x.shape)
        for x, wanted in zip(args.differentiable(), has, strict=True)
    )


# What each operator returns as far as shapes, dtypes and strides go.
FAKES: dict[str, Callable] = {
    "attend": _fake_attend,
    "attend_backward": lambda args, *more: _fake_gradients(args, True, with_bias=more[-1]),
    "best_keys": lambda args, hard: _fake_rows(args, dtype=torch.int64),
    "jacobian": lambda args, *rows: _fake_rows(args),
    "scores": lambda args: _fake_rows(args, args.sizes[-1]),
    "scores_backward": lambda args, grad: _fake_gradients(args, False, with_bias=False),
}


class Attend(torch.autograd.Function):
    """`attend` of the engine `name` with its gradient; the largest logit has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name, entropy, *flat):
        """Run the operator; `flat` is `Arguments`."""
        return attended(name, *flat, entropy)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep what the backward recomputes from."""
        ctx.name, ctx.entropy, *flat = inputs
        out, tail, spread, peak = output
        ctx.save_for_backward(*flat[:TENSORS], out, tail, spread, peak)
        ctx.settings = flat[TENSORS:]
        ctx.mark_non_differentiable(peak)
        ctx.set_materialize_grads(False)  # zeros would have to be made, and read

    @staticmethod
    def backward(ctx, grad, grad_tail, grad_spread, _):  # type: ignore[override] # fixed arity
        """Recompute every tile."""
        if grad is None and grad_tail is None and grad_spread is None:
            return (None,) * (COUNT + 2)
        *tensors, output, tail, spread, peak = ctx.saved_tensors
        args = Arguments(*tensors, *ctx.settings)
        needed = ctx.needs_input_grad[2:]
        grads = once(
            ctx.name,
            "attend_backward",
            *args,
            torch.zeros_like(output) if grad is None else grad,
            output,
            peak,
            tail,
            grad_tail,
            spread if ctx.entropy else None,
            grad_spread if ctx.entropy else None,
            needed[Arguments._fields.index("bias")],
        )
        return None, None, *_returned(grads, args, needed)


class Scores(torch.autograd.Function):
    """`scores` of the engine `name` with its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name, *flat):
        """Run the operator; `flat` is `Arguments`."""
        return operator(name, "scores")(*flat)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep what the backward recomputes from."""
        ctx.name, *flat = inputs
        ctx.save_for_backward(*flat[:TENSORS])
        ctx.settings = flat[TENSORS:]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override] # fixed arity
        """Recompute every tile."""
        args = Arguments(*ctx.saved_tensors, *ctx.settings)
        grads = once(ctx.name, "scores_backward", *args, grad)
        return None, *_returned(grads, args, ctx.needs_input_grad[1:])


def _returned(grads: tuple, args: Arguments, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients for every argument of a Function, None where there is none or none is needed."""
    found: list[Tensor | None] = [None] * COUNT
    for i, (g, x) in enumerate(zip(grads, args.differentiable(), strict=True)):
        if x is not None and needed[i] and g.ndim == x.ndim:
            found[i] = g
    return found


class Once(torch.autograd.Function):
    """A backward pass that cannot be differentiated again, and says what can."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name, kernel, *flat):
        """Run the operator."""
        return operator(name, kernel)(*flat)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep the engine's name for the error."""
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx, *grads):
        """Refuse."""
        raise RuntimeError(
            f"engine {ctx.name!r} has no second derivative; use engine='reference' for one"
        )


def once(name: str, kernel: str, *flat) -> tuple:
    """Run a backward pass; the Function around it is there to refuse a second derivative.

    Compilers trace the operator, not a Function in one; and where nobody differentiates what is
    computed here it would only take time.
    """
    watched = torch.is_grad_enabled() or in_forward_mode()
    if not watched and not needs_dispatcher([x for x in flat if isinstance(x, Tensor)]):
        return KERNELS[name, kernel](*flat)
    if torch.compiler.is_compiling() or not watched:
        return operator(name, kernel)(*flat)
    return Once.apply(name, kernel, *flat)  # type: ignore[return-value] # apply is untyped
