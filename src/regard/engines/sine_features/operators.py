"""The sine engine on a GPU as two registered operators: features, cuDNN, and the exact fallback.

The host never waits for the device. The device measures the range, picks a table row for each hidden unit,
and sets a flag that says whether the series holds. Where it does not, exact attention overwrites the
result.

The backward builds the features again. The memory that a call saves for it is therefore proportional to
the value dim, not to the width of the features.

Shape legend: B batch, H query heads, K key heads (K divides H), Q queries, L keys, E hidden units, D
value dim, X width of the values as cuDNN gets them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.gpu import on_own_device
from regard.engines.hiding import Hiding
from regard.engines.sine_features import wide as by_parts
from regard.engines.sine_features.launch import feature_call, feature_signature, features_of
from regard.engines.sine_features.memory import Notes, note_words
from regard.engines.sine_features.parts import PARTS, ExactFallback
from regard.engines.sine_features.widths import Widths, fits_cudnn, widths_of
from regard.engines.tiled.eager import apply, below_autograd, differentiated
from regard.engines.tiled.operators import LIBRARY, once
from regard.observed import needs_dispatcher


class SineInputs(NamedTuple):
    """The arguments of both operators.

    a (B, H, Q, E), b (B, K, L, E), v (H, E), value (B, K, L, D), any strides. `numbers` is
    (1 / temperature, the allowed error, the share of weights that are dropped), fp64 on the CPU: a
    tensor, because `torch.compile` makes floats symbols that two operators cannot share; the last is 0
    where it is left out. `kind` and `rank` name the series. `causal` needs Q = L. The rest are the fields
    of `Hiding`.
    """

    a: Tensor
    b: Tensor
    v: Tensor
    value: Tensor
    numbers: Tensor
    causal: bool
    kind: str
    rank: int
    start: Tensor | None = None
    stop: Tensor | None = None
    query_segment: Tensor | None = None
    key_segment: Tensor | None = None
    seed: Tensor | None = None

    @property
    def wide(self) -> bool:
        """Whether the wide kernels run the features, not cuDNN."""
        if any(x is not None for x in self[FIRST_MASK:]):
            return True
        single = self.a.shape[2] < 2 or self.b.shape[2] < 2
        return single or not fits_cudnn(*self.shape_of_features)

    @property
    def widths(self) -> Widths:
        """The layout of features and values; the engine has checked that there is one."""
        return widths_of(*self.shape_of_features, self.wide)

    @property
    def shape_of_features(self) -> tuple[str, int, int, int]:
        """The series, the hidden units and the width of the values."""
        return self.kind, self.rank, self.a.shape[-1], self.value.shape[-1]

    @property
    def hiding(self) -> Hiding:
        """What hides pairs or drops weights."""
        dropout = 0.0 if self.seed is None else self.numbers.tolist()[2]
        masks = (self.start, self.stop, self.query_segment, self.key_segment, self.seed)
        return Hiding(self.causal, *masks, dropout)


class Kept(NamedTuple):
    """What the backward needs besides the inputs.

    attended (B, H, Q, X) in fp16 and lse (B, H, Q) of the attention over features; notes, the memory of
    `Notes`.
    """

    attended: Tensor
    lse: Tensor
    notes: Tensor


SINE_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor v, Tensor value, Tensor numbers, bool causal, str kind, int rank, "
    "Tensor? start, Tensor? stop, Tensor? query_segment, Tensor? key_segment, Tensor? seed"
)
KEPT_TENSORS = "Tensor attended, Tensor lse, Tensor notes"
LIBRARY.define(f"sine_attend({SINE_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"sine_attend_backward({SINE_ARGUMENTS}, Tensor grad, {KEPT_TENSORS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
INPUT_COUNT = len(SineInputs._fields)
TENSOR_COUNT, FIRST_MASK = (SineInputs._fields.index(name) for name in ("causal", "start"))
# Tensors that are saved for the backward before the fields of `Kept`.
MASKS_SAVED = TENSOR_COUNT + INPUT_COUNT - FIRST_MASK


def behind() -> ExactFallback:
    """The exact attention that runs where the series does not hold."""
    if PARTS.exact is None:
        raise RuntimeError("no exact attention is set as the fallback: set PARTS.exact first")
    return PARTS.exact


def empty_call(x: SineInputs) -> bool:
    """Whether an input is empty, so that there is nothing to compute."""
    return x.a.numel() == 0 or x.b.numel() == 0 or x.value.numel() == 0


def attend(*flat) -> tuple[Tensor, ...]:
    """The output (B, H, Q, D), then the fields of `Kept`."""
    x = SineInputs(*flat)
    if empty_call(x):
        return tuple(made.zero_() for made in fake_attend(*flat))
    features, call = features_of(feature_signature(x)), feature_call(x)
    memory, notes = features.measure(call)
    if x.wide:
        attended, lse = by_parts.attend(x, features, notes)
    else:
        keys = features.key(call, notes)
        attended, lse = PARTS.fused.forward(features.query(call, notes), *keys, x.causal)
        # Features are the largest tensors of the call: freed before the output is allocated.
        del keys
    output = features.finish(call, attended, notes)
    # Returns at once on the device where the series holds; otherwise it overwrites the output.
    behind().attend(notes.holds, x.a, x.b, notes.weight, x.value, x.hiding, output)
    return output, attended, lse, memory


def attend_backward(*flat) -> tuple[Tensor, ...]:
    """The gradients of a, b, v and value."""
    x, grad, kept = (
        SineInputs(*flat[:INPUT_COUNT]),
        flat[INPUT_COUNT],
        Kept(*flat[INPUT_COUNT + 1 :]),
    )
    if empty_call(x):
        return tuple(made.zero_() for made in fake_attend_backward(*flat))
    features, call = features_of(feature_signature(x)), feature_call(x)
    notes = Notes(*features.notes.cut(kept.notes))
    # Addresses do not keep memory alive: the name `memory` does, until the last launch.
    memory, scratch, given = features.output_gradient(call, grad, notes)
    if x.wide:
        grads = by_parts.backward(x, features, notes, scratch, given, kept)
        del given
    else:
        phi, keys = features.query(call, notes), features.key(call, notes)
        found = PARTS.fused.backward(given, phi, *keys, kept.attended, kept.lse, x.causal)
        # Each group of large tensors is freed before the next one is allocated.
        del given, phi, keys
        found = tuple(part.contiguous() for part in found)
        grads = features.input_gradients(call, notes, scratch, found)
        del found
    known = (scratch.skip, grad, x.a, x.b, notes.weight, x.value)
    behind().backward(*known, call.rate, x.hiding, *grads)
    del memory
    return grads


def fake_attend(*flat) -> tuple[Tensor, ...]:
    """Results of `attend` with the right shapes, dtypes and strides, and no data."""
    x = SineInputs(*flat)
    batch, heads, queries, _ = x.a.shape
    words = sum(count for count, _ in note_words(x.a.shape, x.b.shape))
    return (
        x.value.new_empty((batch, heads, queries, x.value.shape[-1])),
        x.a.new_empty((batch, heads, queries, x.widths.values), dtype=torch.float16),
        x.a.new_empty((batch, heads, queries), dtype=torch.float32),
        x.a.new_empty((words,), dtype=torch.int32),
    )


def fake_attend_backward(*flat) -> tuple[Tensor, ...]:
    """Results of `attend_backward` with the right shapes, dtypes and strides, and no data."""
    x = SineInputs(*flat[:INPUT_COUNT])
    return tuple(y.new_empty(y.shape) for y in (x.a, x.b, x.v, x.value))


class SineAttend(torch.autograd.Function):
    """`sine_attend` with its gradient; the fields of `Kept` have none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*flat):
        """Run the operator; `flat` is `SineInputs`."""
        return forward(*flat)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Save what the backward starts from."""
        masks = inputs[FIRST_MASK:]
        ctx.save_for_backward(*inputs[:TENSOR_COUNT], *masks, *output[1:])
        ctx.settings = inputs[TENSOR_COUNT:FIRST_MASK]
        ctx.mark_non_differentiable(*output[1:])
        # None instead of zeros for results without gradient: no kernel would read the zeros.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, grad, *_):  # type: ignore[override] # fixed arity
        """Build the features again and take their gradient."""
        if grad is None:
            return (None,) * INPUT_COUNT
        saved = ctx.saved_tensors
        flat = (*saved[:TENSOR_COUNT], *ctx.settings, *saved[TENSOR_COUNT:MASKS_SAVED], grad)
        flat = (*flat, *saved[MASKS_SAVED:])
        # Under create_graph or an observer the operator runs, else its kernels are launched directly.
        if torch.is_grad_enabled() or needs_dispatcher((grad, *saved)):
            grads = once("sine", "attend_backward", *flat)
        else:
            grads = launched_backward(*flat)
        needed = ctx.needs_input_grad
        return *(g if needed[i] else None for i, g in enumerate(grads)), *[None] * (INPUT_COUNT - 4)


def needs_gradient(x: SineInputs) -> bool:
    """Whether autograd has to record the call."""
    return differentiated((x.a, x.b, x.v, x.value))


def with_autograd(*flat):
    """The operator's entry for autograd, which gives an exported program gradients."""
    if needs_gradient(SineInputs(*flat)):
        return SineAttend.apply(*flat)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.regard.sine_attend(*flat)


def run(x: SineInputs) -> Tensor:
    """The output (B, H, Q, D); without autograd where no gradient is needed."""
    return apply(SineAttend, *x)[0] if needs_gradient(x) else forward(*x)[0]


def forward(*flat) -> tuple[Tensor, ...]:
    """`sine_attend` below autograd."""
    if needs_dispatcher(flat[:TENSOR_COUNT]):
        return below_autograd(torch.ops.regard.sine_attend.default, *flat)
    with torch._C._AutoDispatchBelowAutograd():
        return launched(*flat)


launched, launched_backward = on_own_device(attend), on_own_device(attend_backward)
# Tests run the kernels on the CPU, in Triton's interpreter, with other parts in `PARTS`.
for device in ("CUDA", "CPU"):
    LIBRARY.impl("sine_attend", launched, device)
    LIBRARY.impl("sine_attend_backward", launched_backward, device)
LIBRARY.impl("sine_attend", with_autograd, "Autograd")
torch.library.register_fake("regard::sine_attend", fake_attend, lib=LIBRARY)
torch.library.register_fake("regard::sine_attend_backward", fake_attend_backward, lib=LIBRARY)
