"""The sine engine on a GPU as two registered operators: features, cuDNN, and what stands behind.

Nothing waits for the device: the range is measured there, each hidden unit picks its row of the table
there, and a flag says there whether the series holds. Where it does not, exact attention overwrites
the result.

The features are not kept for the backward, which builds them again: what a call keeps grows with the
length times the value dim, not with the width of the features.

Shape legend: B batch, H query heads, K key heads (K divides H), Q queries, L keys, E hidden units, D
value dim, X width of the values as cuDNN gets them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.gpu import launching
from regard.engines.sine.launch import Features
from regard.engines.sine.parts import PARTS, Exact
from regard.engines.sine.widths import Widths, lay_out
from regard.engines.tiled.operators import LIBRARY, apply, below_autograd, differentiated, once
from regard.sine import escapes
from regard.sine.series import can_lend


class Inputs(NamedTuple):
    """The arguments of both operators.

    a (B, H, Q, E), b (B, K, L, E), v (H, E), value (B, K, L, D), any strides. `numbers` is
    (1 / temperature, the error allowed), fp64 on the CPU: `torch.compile` takes floats for symbols
    that two operators cannot share. `kind` and `rank` name the series. `causal` needs Q = L.
    """

    a: Tensor
    b: Tensor
    v: Tensor
    value: Tensor
    numbers: Tensor
    causal: bool
    kind: str
    rank: int

    @property
    def widths(self) -> Widths:
        """The layout for cuDNN, which the engine has checked to exist."""
        lend = can_lend(self.kind, self.rank)
        found = lay_out(2 * self.rank * self.a.shape[-1], self.value.shape[-1], lend)
        if found is None:
            raise ValueError(
                f"rank {self.rank}, {self.a.shape[-1]} hidden units and value dim "
                f"{self.value.shape[-1]} do not fit into cuDNN; see regard.engines.sine.widths"
            )
        return found


class Kept(NamedTuple):
    """What the backward needs beside the inputs.

    attended (B, H, Q, X) in fp16 and lse (B, H, Q) as cuDNN gave them; row (B, K, E), the row of the
    table for each unit; peak (B, K), the largest |value|; holds (1,), whether the series held.
    """

    attended: Tensor
    lse: Tensor
    row: Tensor
    peak: Tensor
    holds: Tensor


ARGUMENTS = (
    "Tensor a, Tensor b, Tensor v, Tensor value, Tensor numbers, bool causal, str kind, int rank"
)
KEPT = "Tensor attended, Tensor lse, Tensor row, Tensor peak, Tensor holds"
LIBRARY.define(f"sine_attend({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"sine_attend_backward({ARGUMENTS}, Tensor grad, {KEPT}) -> (Tensor, Tensor, Tensor, Tensor)"
)
COUNT = len(Inputs._fields)
TENSORS = Inputs._fields.index("causal")


def behind() -> Exact:
    """The exact attention that stands behind the series."""
    if PARTS.exact is None:
        raise RuntimeError("no exact attention stands behind the series: set PARTS.exact first")
    return PARTS.exact


def empty_call(x: Inputs) -> bool:
    """Whether there is nothing to attend from or to."""
    return x.a.numel() == 0 or x.b.numel() == 0 or x.value.numel() == 0


def attend(*flat) -> tuple[Tensor, ...]:
    """The output (B, H, Q, D), and `Kept`."""
    x = Inputs(*flat)
    if empty_call(x):
        return tuple(made.zero_() for made in fake_attend(*flat))
    # Triton launches on the current device.
    with torch.cuda.device_of(x.a):
        features = Features(x)
        row, peak, sound = features.measure()
        wide = features.key(row, peak)
        attended, lse = PARTS.fused.forward(features.query(row), *wide, x.causal)
        del wide
        # Not before: what is launched from here on, the device does after the fused kernel anyway.
        holds = sound.all().reshape(1)
        escapes.note(holds)
        output = features.finish(attended, peak)
        behind().attend(holds, *x[:4], features.rate, x.causal, output)
    return output, attended, lse, row, peak, holds


def attend_backward(*flat) -> tuple[Tensor, ...]:
    """The gradients of a, b, v and value."""
    x, grad, kept = Inputs(*flat[:COUNT]), flat[COUNT], Kept(*flat[COUNT + 1 :])
    if empty_call(x):
        return tuple(made.zero_() for made in fake_attend_backward(*flat))
    with torch.cuda.device_of(x.a):
        features = Features(x)
        size, wide = features.output_gradient(grad, kept.attended)
        q = features.query(kept.row)
        k, v = features.key(kept.row, kept.peak)
        found = PARTS.fused.backward(wide, q, k, v, kept.attended, kept.lse, x.causal)
        grad_q, grad_k, grad_wide = (part.contiguous() for part in found)
        del found, wide, q, k, v
        grad_a, from_queries = features.query_gradient(kept, size, grad_q)
        grad_b, grad_value, from_keys = features.key_gradient(kept, size, grad_k, grad_wide)
        grad_v = from_queries + from_keys
        # Gradients that overflowed fp16 on the way have made it NaN.
        skip = kept.holds & grad_v.isfinite().all()
        grads = (grad_a, grad_b, grad_v, grad_value)
        behind().backward(skip, grad, *x[:4], features.rate, x.causal, *grads)
    return grad_a, grad_b, grad_v.to(x.v.dtype), grad_value


def fake_attend(*flat) -> tuple[Tensor, ...]:
    """What `attend` returns as far as shapes, dtypes and strides go."""
    x = Inputs(*flat)
    (batch, heads, queries, hidden), key_heads = x.a.shape, x.b.shape[1]
    full = x.a.new_empty((batch, heads, queries), dtype=torch.float32)
    return (
        x.value.new_empty((batch, heads, queries, x.value.shape[-1])),
        x.a.new_empty((batch, heads, queries, x.widths.values), dtype=torch.float16),
        full,
        x.a.new_empty((batch, key_heads, hidden), dtype=torch.int32),
        full.new_empty((batch, key_heads)),
        x.a.new_empty((1,), dtype=torch.bool),
    )


def fake_attend_backward(*flat) -> tuple[Tensor, ...]:
    """What `attend_backward` returns as far as shapes, dtypes and strides go."""
    x = Inputs(*flat[:COUNT])
    return tuple(y.new_empty(y.shape) for y in (x.a, x.b, x.v, x.value))


class Attend(torch.autograd.Function):
    """`sine_attend` with its gradient; what is kept has none."""

    @staticmethod
    def forward(*flat):
        """Run the operator; `flat` is `Inputs`."""
        return torch.ops.regard.sine_attend(*flat)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Keep what the backward recomputes from."""
        ctx.save_for_backward(*inputs[:TENSORS], *output[1:])
        ctx.settings = inputs[TENSORS:]
        ctx.mark_non_differentiable(*output[1:])
        # Zeros for what has no gradient would be made and not read.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, *_):  # type: ignore[override] # fixed arity
        """Build the features again and take their gradient."""
        if grad is None:
            return (None,) * COUNT
        saved = ctx.saved_tensors
        inputs = (*saved[:TENSORS], *ctx.settings)
        grads = once("sine", "attend_backward", *inputs, grad, *saved[TENSORS:])
        needed = ctx.needs_input_grad
        return *(g if needed[i] else None for i, g in enumerate(grads)), *[None] * (COUNT - 4)


def needs_gradient(x: Inputs) -> bool:
    """Whether autograd has to know of the call."""
    return differentiated((x.a, x.b, x.v, x.value))


def with_autograd(*flat):
    """The operator as autograd sees it, so that an exported program has gradients too."""
    if needs_gradient(Inputs(*flat)):
        return Attend.apply(*flat)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.regard.sine_attend(*flat)


def run(x: Inputs) -> Tensor:
    """The output (B, H, Q, D); the operator alone where no gradient is needed."""
    if needs_gradient(x):
        return apply(Attend, *x)[0]
    return below_autograd(torch.ops.regard.sine_attend, *x)[0]


# On the CPU the kernels run in Triton's interpreter, with other parts: that is how they are tested.
for device in ("CUDA", "CPU"):
    LIBRARY.impl("sine_attend", launching(attend), device)
    LIBRARY.impl("sine_attend_backward", launching(attend_backward), device)
LIBRARY.impl("sine_attend", with_autograd, "Autograd")
torch.library.register_fake("regard::sine_attend", fake_attend, lib=LIBRARY)
torch.library.register_fake("regard::sine_attend_backward", fake_attend_backward, lib=LIBRARY)
