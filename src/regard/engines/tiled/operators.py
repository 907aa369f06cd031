"""Kernels as registered PyTorch operators, and their autograd.

An operator is one opaque node to `torch.compile` and `torch.export`, so that loops over tiles are
never traced. Every operator takes the fields of `Arguments` first, in their order.

Shape legend: operands have 5 dims, (B, K, G, rows, columns): B flattened leading dims, K groups of
heads, G query heads in each group; rows are Q queries, columns L keys. A size of 1 broadcasts, and
its gradient is summed into size 1. Statistics of rows are (B, K, G, Q).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.engines.gpu import on_own_device
from regard.engines.tiled.arguments import COUNT, TENSOR_ARGUMENTS, Arguments
from regard.engines.tiled.eager import apply, below_autograd, differentiated
from regard.engines.tiled.twice import differentiate_again
from regard.observed import in_forward_mode, is_transformed, needs_dispatcher
from regard.precision import working_dtype

AttendResults = tuple[Tensor, Tensor, Tensor, Tensor]
# The engines whose gradients have derivatives: on a GPU the Q x L tensors that it takes would be too large.
AGAIN = ("cpu", "compiled")


class Kernels(Protocol):
    """The kernels of an engine; a module with these functions satisfies it.

    Results are in working precision, except `tail` in fp64. Gradients are those of
    `Arguments.differentiable()`, each contiguous and in the dtype of its input, and an empty tensor
    of one dim where there is none.
    """

    def attend(self, args: Arguments, entropy: bool) -> AttendResults:
        """Output (B, K, G, Q, dv), tail, entropy (undefined unless requested), largest logit.

        The tail is LSE minus the largest logit. The largest logit is -inf where nothing is seen.
        """
        ...

    def output(self, args: Arguments) -> Tensor:
        """The output alone, in working precision or, if that is faster, in the dtype of the values."""
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
        """All gradients. `peak` is the largest logit, `spread` the entropy, None if not requested.

        `grad_tail` and `grad_spread` are None where those results got no gradient.
        """
        ...

    def best_keys(self, args: Arguments, hard: Tensor) -> Tensor:
        """Index of the best visible key of each row where `hard` (5 dims): -1 for none, -2 for NaN."""
        ...

    def jacobian(
        self, args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor
    ) -> Tensor:
        """Norm of the softmax Jacobian; `share` is the weight of all keys, `left` that of the sink."""
        ...

    def scores(self, args: Arguments) -> Tensor:
        """Raw scores (B, K, G, Q, L)."""
        ...

    def scores_backward(self, args: Arguments, grad: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the inputs of the form; those of value, rate and bias are empty."""
        ...


ARGUMENTS_SCHEMA = (
    "Tensor q, Tensor k, Tensor value, Tensor? v, Tensor? alpha, Tensor? beta, Tensor? rate, "
    "Tensor? bias, Tensor? dense, Tensor? start, Tensor? stop, Tensor? query_segment, "
    "Tensor? key_segment, Tensor? seed, Tensor numbers, SymInt[] sizes, str activation"
)
# The gradients of q, k, value, v, alpha, beta, rate and bias; empty where there is none.
GRADIENTS_SCHEMA = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
# The schema of each operator: `Arguments`, its further operands, and its results.
SIGNATURES = {
    "attend": f"({ARGUMENTS_SCHEMA}, bool entropy) -> (Tensor, Tensor, Tensor, Tensor)",
    "attend_backward": (
        f"({ARGUMENTS_SCHEMA}, Tensor grad, Tensor output, Tensor peak, Tensor tail, Tensor? grad_tail, "
        f"Tensor? spread, Tensor? grad_spread, bool bias_gradient) -> {GRADIENTS_SCHEMA}"
    ),
    "best_keys": f"({ARGUMENTS_SCHEMA}, Tensor hard) -> Tensor",
    "jacobian": f"({ARGUMENTS_SCHEMA}, Tensor peak, Tensor tail, Tensor share, Tensor left) -> Tensor",
    "scores": f"({ARGUMENTS_SCHEMA}) -> Tensor",
    "scores_backward": f"({ARGUMENTS_SCHEMA}, Tensor grad) -> {GRADIENTS_SCHEMA}",
}
LIBRARY = torch.library.Library("regard", "DEF")
# The function behind each operator, by engine and operator: called directly by unobserved calls.
KERNELS: dict[tuple[str, str], Callable] = {}


class Operators:
    """The operators `regard::{name}_*` of one engine: registers them and calls them.

    Args:
        name: the name of the engine.
        kernels: the functions that the operators run.
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
        # An exported program calls the operators directly; these registrations give it gradients.
        LIBRARY.impl(f"{name}_attend", self._attend_with_autograd, "Autograd")
        LIBRARY.impl(f"{name}_scores", self._scores_with_autograd, "Autograd")

    def attend(self, entropy: bool, args: Arguments) -> AttendResults:
        """Output, tail, entropy and largest logit; below autograd where no gradient is needed."""
        if needs_gradient(args):
            return apply(Attend, self.name, entropy, *args)
        return attended(self.name, *args, entropy)

    def output(self, args: Arguments) -> Tensor:
        """The output alone, in working precision or in the dtype of the values."""
        # Of a plain tuple: torch.compile of older releases makes `Arguments` of a slice of `args`.
        tensors: Any = (*args,)[:TENSOR_ARGUMENTS]
        if needs_gradient(args) or needs_dispatcher(tensors):
            return self.attend(False, args)[0]
        with torch._C._AutoDispatchBelowAutograd():
            return self.alone(*args)

    def scores(self, args: Arguments) -> Tensor:
        """Raw scores; below autograd where no gradient is needed."""
        if needs_gradient(args):
            return apply(Scores, self.name, *args)
        return below_autograd(operator(self.name, "scores"), *args)

    def best_keys(self, args: Arguments, hard: Tensor) -> Tensor:
        """Index of the best visible key of each hard row, without gradient."""
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
    """The registered operator `kernel` of the engine `name`."""
    return getattr(torch.ops.regard, f"{name}_{kernel}")


def attended(name: str, *flat) -> AttendResults:
    """`attend` of the engine `name` below autograd."""
    if needs_dispatcher(flat[:TENSOR_ARGUMENTS]):
        return below_autograd(operator(name, "attend"), *flat)
    with torch._C._AutoDispatchBelowAutograd():
        return KERNELS[name, "attend"](*flat)


def with_arguments(kernel: Callable) -> Callable:
    """The kernel as a function of flat arguments, as an operator calls it."""

    def run(*flat):
        return kernel(Arguments(*flat[:COUNT]), *flat[COUNT:])

    return run


def needs_gradient(args: Arguments) -> bool:
    """Whether autograd has to record the call."""
    return differentiated(args.differentiable())


def detached(values: Sequence) -> list:
    """The values, with tensors detached from autograd."""
    return [x.detach() if isinstance(x, Tensor) else x for x in values]


def _fake_rows(args: Arguments, *last: int, dtype: torch.dtype | None = None) -> Tensor:
    b, k, g, q, _ = args.sizes
    return args.q.new_empty((b, k, g, q, *last), dtype=dtype or working_dtype(args.q.dtype))


def _fake_attend(args: Arguments, entropy: bool) -> AttendResults:
    output = _fake_rows(args, args.value.shape[-1])
    return output, _fake_rows(args, dtype=torch.float64), _fake_rows(args), _fake_rows(args)


def _fake_gradients(args: Arguments, with_value: bool, with_bias: bool) -> tuple[Tensor, ...]:
    has = (True, True, with_value, True, True, True, with_value, with_bias)
    return tuple(
        args.q.new_empty(0) if x is None or not wanted else x.new_empty(x.shape)
        for x, wanted in zip(args.differentiable(), has, strict=True)
    )


# Fakes of the operators: results with the right shapes, dtypes and strides, and no data.
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
        """Save what the backward starts from."""
        ctx.name, ctx.entropy, *flat = inputs
        out, tail, spread, peak = output
        ctx.save_for_backward(*flat[:TENSOR_ARGUMENTS], out, tail, spread, peak)
        ctx.settings = flat[TENSOR_ARGUMENTS:]
        ctx.mark_non_differentiable(peak)
        ctx.set_materialize_grads(False)  # None instead of zeros, which would cost memory and reads

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
        """Save what the backward starts from."""
        ctx.name, *flat = inputs
        ctx.save_for_backward(*flat[:TENSOR_ARGUMENTS])
        ctx.settings = flat[TENSOR_ARGUMENTS:]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override] # fixed arity
        """Recompute every tile."""
        args = Arguments(*ctx.saved_tensors, *ctx.settings)
        grads = once(ctx.name, "scores_backward", *args, grad)
        return None, *_returned(grads, args, ctx.needs_input_grad[1:])


def _returned(grads: tuple, args: Arguments, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """A gradient for every field of `Arguments`, None where there is none or it is not needed."""
    found: list[Tensor | None] = [None] * COUNT
    for i, (g, x) in enumerate(zip(grads, args.differentiable(), strict=True)):
        if x is not None and needed[i] and g.ndim == x.ndim:
            found[i] = g
    return found


class Once(torch.autograd.Function):
    """A backward pass. On the CPU it is differentiated in plain PyTorch; elsewhere that is an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name, kernel, *flat):
        """Run the operator."""
        return operator(name, kernel)(*flat)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep the operands for another derivative."""
        ctx.name, ctx.kernel, *flat = inputs
        ctx.tensors = [isinstance(x, Tensor) for x in flat]
        ctx.others = [None if isinstance(x, Tensor) else x for x in flat]
        if ctx.name in AGAIN:
            ctx.save_for_backward(*(x for x in flat if isinstance(x, Tensor)))

    @staticmethod
    def backward(ctx, *grads):
        """Compute the call again in plain PyTorch, or raise."""
        if ctx.name not in AGAIN or is_transformed():
            raise no_second(ctx.name)
        saved = iter(ctx.saved_tensors)
        flat = [
            next(saved) if tensor else x for tensor, x in zip(ctx.tensors, ctx.others, strict=True)
        ]
        args = Arguments(*flat[:COUNT])
        if args.seed is not None:
            raise no_second(ctx.name, " with dropout")
        return None, None, *differentiate_again(ctx.kernel, args, flat[COUNT:], grads)


def no_second(name: str, case: str = "") -> RuntimeError:
    """The error of a derivative that an engine does not have."""
    return RuntimeError(
        f"engine {name!r} has no second derivative{case}; use engine='reference' for one"
    )


def once(name: str, kernel: str, *flat) -> tuple:
    """The results of a backward pass, inside a Function that raises on a second derivative.

    The Function is left out where it would only cost time: under a compiler, which traces the operator
    itself, and where neither autograd nor forward mode records this backward.
    """
    watched = torch.is_grad_enabled() or in_forward_mode()
    if not watched and not needs_dispatcher([x for x in flat if isinstance(x, Tensor)]):
        return KERNELS[name, kernel](*flat)
    if torch.compiler.is_compiling() or not watched:
        return operator(name, kernel)(*flat)
    return Once.apply(name, kernel, *flat)  # type: ignore[return-value] # apply is untyped
