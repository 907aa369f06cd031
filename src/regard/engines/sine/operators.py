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

from regard.engines.gpu import on_own_device
from regard.engines.sine.launch import Notes, call_of, features_of, kind_of, note_words
from regard.engines.sine.parts import PARTS, Exact
from regard.engines.sine.widths import Widths, widths_of
from regard.engines.tiled.eager import apply, below_autograd, differentiated, looked_at
from regard.engines.tiled.operators import LIBRARY, once


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
        return widths_of(self.kind, self.rank, self.a.shape[-1], self.value.shape[-1])


class Kept(NamedTuple):
    """What the backward needs beside the inputs.

    attended (B, H, Q, X) in fp16 and lse (B, H, Q) as cuDNN gave them; notes, the memory of `Notes`.
    """

    attended: Tensor
    lse: Tensor
    notes: Tensor


ARGUMENTS = (
    "Tensor a, Tensor b, Tensor v, Tensor value, Tensor numbers, bool causal, str kind, int rank"
)
KEPT = "Tensor attended, Tensor lse, Tensor notes"
LIBRARY.define(f"sine_attend({ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
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
    features, call = features_of(kind_of(x)), call_of(x)
    memory, notes = features.measure(call)
    wide = features.key(call, notes)
    attended, lse = PARTS.fused.forward(features.query(call, notes), *wide, x.causal)
    del wide
    output = features.finish(call, attended, notes)
    behind().attend(notes.holds, x.a, x.b, notes.weight, x.value, x.causal, output)
    return output, attended, lse, memory


def attend_backward(*flat) -> tuple[Tensor, ...]:
    """The gradients of a, b, v and value."""
    x, grad, kept = Inputs(*flat[:COUNT]), flat[COUNT], Kept(*flat[COUNT + 1 :])
    if empty_call(x):
        return tuple(made.zero_() for made in fake_attend_backward(*flat))
    features, call = features_of(kind_of(x)), call_of(x)
    notes = Notes(*features.notes.cut(kept.notes))
    # Places keep no memory alive: its name does, to the end.
    memory, scratch, given = features.output_gradient(call, grad, notes)
    phi, wide = features.query(call, notes), features.key(call, notes)
    found = PARTS.fused.backward(given, phi, *wide, kept.attended, kept.lse, x.causal)
    del given, phi, wide
    found = tuple(part.contiguous() for part in found)
    grads = features.input_gradients(call, notes, scratch, found)
    del found
    known = (scratch.skip, grad, x.a, x.b, notes.weight, x.value)
    behind().backward(*known, call.rate, x.causal, *grads)
    del memory
    return grads


def fake_attend(*flat) -> tuple[Tensor, ...]:
    """What `attend` returns as far as shapes, dtypes and strides go."""
    x = Inputs(*flat)
    batch, heads, queries, _ = x.a.shape
    words = sum(count for count, _ in note_words(x.a.shape, x.b.shape))
    return (
        x.value.new_empty((batch, heads, queries, x.value.shape[-1])),
        x.a.new_empty((batch, heads, queries, x.widths.values), dtype=torch.float16),
        x.a.new_empty((batch, heads, queries), dtype=torch.float32),
        x.a.new_empty((words,), dtype=torch.int32),
    )


def fake_attend_backward(*flat) -> tuple[Tensor, ...]:
    """What `attend_backward` returns as far as shapes, dtypes and strides go."""
    x = Inputs(*flat[:COUNT])
    return tuple(y.new_empty(y.shape) for y in (x.a, x.b, x.v, x.value))


class Attend(torch.autograd.Function):
    """`sine_attend` with its gradient; what is kept has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*flat):
        """Run the operator; `flat` is `Inputs`."""
        return forward(*flat)

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
        flat = (*saved[:TENSORS], *ctx.settings, grad, *saved[TENSORS:])
        if torch.is_grad_enabled() or looked_at((grad, *saved)):
            grads = once("sine", "attend_backward", *flat)
        else:
            grads = launched_backward(*flat)
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
    """The output (B, H, Q, D); without autograd where no gradient is needed."""
    return apply(Attend, *x)[0] if needs_gradient(x) else forward(*x)[0]


def forward(*flat) -> tuple[Tensor, ...]:
    """`sine_attend` below autograd."""
    if looked_at(flat[:TENSORS]):
        return below_autograd(torch.ops.regard.sine_attend.default, *flat)
    with torch._C._AutoDispatchBelowAutograd():
        return launched(*flat)


launched, launched_backward = on_own_device(attend), on_own_device(attend_backward)
# On the CPU the kernels run in Triton's interpreter, with other parts: that is how they are tested.
for device in ("CUDA", "CPU"):
    LIBRARY.impl("sine_attend", launched, device)
    LIBRARY.impl("sine_attend_backward", launched_backward, device)
LIBRARY.impl("sine_attend", with_autograd, "Autograd")
torch.library.register_fake("regard::sine_attend", fake_attend, lib=LIBRARY)
torch.library.register_fake("regard::sine_attend_backward", fake_attend_backward, lib=LIBRARY)
