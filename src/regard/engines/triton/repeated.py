"""Repeated common calls without options: from the caller's tensors straight to bound launches.

Between a caller's tensors and the launches of `bound.py` and `bound_backward.py` there are checks, a form,
a layout, arguments of an operator, and views in both directions. Calls that agree in shapes, strides,
dtypes, device and activation differ only in addresses, so none of this has to run again.

Shape legend: tensors as the caller has them, (*, heads, rows, columns), v (heads, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.engines.base import RunAgain
from regard.engines.gpu import device_current
from regard.engines.tiled import Arguments
from regard.engines.tiled.eager import apply
from regard.engines.tiled.operators import once
from regard.engines.triton import bound, bound_backward, choices, lanes, prepare
from regard.engines.triton.bound import DOUBLE, FLOAT, BoundForward, CallSignature, described
from regard.engines.triton.bound_backward import TensorList
from regard.observed import needs_dispatcher

AnyBackward = bound_backward.BoundBackward | bound_backward.BoundDecodeBackward


def repeated(args: Arguments, given: TensorList, output: Tensor) -> RunAgain | None:
    """A function that runs all calls like this one, or None; see `regard.engines.plan.repeated`."""
    signature = bound.call_signature(args)
    if signature is None or not prepare.has_own_memory(args):
        return None
    used = (args.q, args.k, args.value, args.v)
    # A copy that the layout made of these tensors would have to be made again for the next ones.
    if any(is_copy(x, y) for x, y in zip(used, given, strict=True)) or not given[3].is_contiguous():
        return None
    return RepeatedCall(signature, given, output)


def is_copy(x: Tensor | None, given: Tensor) -> bool:
    """Whether x is not a view of all of `given`."""
    return x is None or x.data_ptr() != given.data_ptr() or x.numel() != given.numel()


def operands(
    bound_call: BoundForward | AnyBackward, query: Tensor, key: Tensor, value: Tensor, v: Tensor
) -> tuple[Tensor, ...]:
    """The tensors in the order of bound launches, with packed values."""
    return query, key, v, value if bound_call.operands.is_packed else value.contiguous()


class RepeatedCall:
    """Runs all calls of one signature; it keeps no tensor of any.

    Args:
        signature: what the calls agree in.
        given: query, key, value and v of one of them.
        output: the output of that call.
    """

    def __init__(self, signature: CallSignature, given: TensorList, output: Tensor) -> None:
        self.signature, self.device = signature, signature.device
        self.shapes = [x.shape for x in given]
        self.described = [described(x) for x in given]
        self.shape, self.dtype = output.shape, output.dtype
        self.rows = output.shape[:-1]
        self.is_decode = choices.is_decode(bound.arguments(signature), entropy=False)
        # Bound forwards for the output alone and for a later backward; bound backwards by `by_lanes`.
        self.alone: BoundForward | None = None
        self.whole: BoundForward | None = None
        self.backwards: dict[bool, AnyBackward] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, v: Tensor) -> Tensor:
        """The output."""
        if torch.is_grad_enabled() and (
            query.requires_grad or key.requires_grad or value.requires_grad or v.requires_grad
        ):
            return apply(RepeatedStep, self, query, key, value, v)
        if self.alone is None:
            self.alone = bound.kept_forwards.at_once(self.signature, False, True)
        with device_current(self.device):
            output = torch.empty(self.shape, dtype=self.alone.dtype, device=self.device)
            self.alone.steps.run(*operands(self.alone, query, key, value, v), output)
        return output.to(self.dtype)

    def attend(self, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output in working precision, tail and largest logit: what a backward starts from."""
        if self.whole is None:
            self.whole = bound.kept_forwards.at_once(self.signature, False, False)
        with device_current(self.device):
            output = torch.empty(self.shape, dtype=FLOAT, device=self.device)
            tail = torch.empty(self.rows, dtype=DOUBLE, device=self.device)
            spread, peak = (
                torch.empty(self.rows, dtype=FLOAT, device=self.device) for _ in range(2)
            )
            self.whole.steps.run(*operands(self.whole, *given), output, tail, spread, peak)
        return output, tail, peak

    def backward(self, grad: Tensor, given: TensorList, rows: TensorList) -> TensorList:
        """Gradients of query, key, value and v; `rows` is what `attend` returned."""
        # In fp32 as on the ordinary path, where rounding the output is a step of its own.
        grad = grad.to(FLOAT)
        watched = torch.is_grad_enabled() or needs_dispatcher((grad, *given, *rows))
        launches = None if watched or self.is_changed(given) else self.bound_backward()
        if launches is None:
            return self.by_operator(grad, given, rows)
        output, tail, peak = rows
        known = [x.contiguous() for x in (grad, output, peak, tail)]
        made = [torch.empty(x.shape, dtype=x.dtype, device=self.device) for x in given]
        with device_current(self.device):
            trusted = launches.run(operands(launches, *given), known, made)
        # If the layout is not trusted, run again: `lanes.refused()` now selects the other backward.
        return made if trusted else self.backward(grad, given, rows)

    def is_changed(self, given: TensorList) -> bool:
        """Whether a saved-tensor hook returned a tensor of another shape, stride or dtype."""
        return [described(x) for x in given] != self.described

    def bound_backward(self) -> AnyBackward | None:
        """The launches of the backward, or None where torch is set to be deterministic and they are not."""
        if torch.are_deterministic_algorithms_enabled() and not self.is_decode:
            return None
        by_lanes = not lanes.refused()
        if by_lanes not in self.backwards:
            call = self.signature._replace(lanes=by_lanes)
            signature = bound_backward.BackwardSignature(call, FLOAT, None, False, None)
            self.backwards[by_lanes] = bound_backward.kept_backwards.at_once(signature)
        return self.backwards[by_lanes]

    def by_operator(self, grad: Tensor, given: TensorList, rows: TensorList) -> TensorList:
        """The gradients by the registered operator, as for any other call."""
        query, key, value, v = given
        args = bound.arguments(self.signature)
        args = args._replace(
            q=query.reshape(args.q.shape),
            k=key.reshape(args.k.shape),
            value=value.reshape(args.value.shape),
            v=v.reshape(args.v.shape),  # type: ignore[union-attr] # pairwise
        )
        output, tail, peak = rows
        lead = tuple(args.sizes[:4])
        grad, output = (x.reshape(*lead, self.shape[-1]) for x in (grad, output))
        peak, tail = peak.reshape(lead), tail.reshape(lead)
        none = (None, None, None, False)
        found = once("triton", "attend_backward", *args, grad, output, peak, tail, *none)
        return [g.view(shape) for g, shape in zip(found, self.shapes, strict=False)]


class RepeatedStep(torch.autograd.Function):
    """A `RepeatedCall` with its gradient."""

    @staticmethod
    def forward(ctx, call: RepeatedCall, *given: Tensor) -> Tensor:
        """The output; saves what the backward starts from."""
        rows = call.attend(*given)
        ctx.call = call
        ctx.save_for_backward(*given, *rows)
        ctx.set_materialize_grads(False)
        return rows[0].to(call.dtype)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override] # fixed arity
        """Gradients of query, key, value and v; every tile is computed again."""
        if grad is None:
            return (None,) * 5
        saved = ctx.saved_tensors
        found = ctx.call.backward(grad, saved[:4], saved[4:])
        needed = ctx.needs_input_grad[1:]
        return None, *(g if wanted else None for g, wanted in zip(found, needed, strict=True))
