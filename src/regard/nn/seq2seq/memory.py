"""What encoders, attention and decoders pass on, as values: no module holds any of it.

There is therefore nothing to reset, one module can decode two sentences in turns, and beam search
reorders its beams by `reorder`.

Shape legend: B batch, H heads, T queries (decoder steps), L keys (source length), V value width,
N layers, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.describe import sizes
from regard.forms import InnerKey, KeySide, PairwiseKey, key_tensor

if TYPE_CHECKING:
    from regard.nn.seq2seq.ready import Ready


class Hidden(NamedTuple):
    """Which keys are hidden, in the shapes that a step needs; made once for all steps.

    Args:
        by: the `visible` tensor (B, L) it was made from, compared by identity.
        keys: (B, 1, L), True where a key is hidden.
        whole: (B, 1), True where all keys of the sequence are hidden.
        logit: (B, 1, 1), the logit of a hidden key: -inf, or 0 in a sequence without a visible key,
            whose softmax and gradient would be NaN otherwise.
    """

    by: Tensor
    keys: Tensor
    whole: Tensor
    logit: Tensor

    __repr__ = sizes


class Memory(NamedTuple):
    """Keys that were lowered once, their values, and which of them are visible.

    Args:
        side: the lowered keys (B, H or 1, L, width).
        value: (B, 1, L, V), 0 where hidden.
        visible: (B, L), True = attend; None if all keys are visible.
        zeroed: the tensor by which hidden keys and values were set to 0. If it is not the same object
            as `visible`, hidden keys and values may hold anything.
        hidden: what `zeroed` hides, in the shapes that a step needs; None if it was not made.
        ready: what kernels need for steps over it; None if it was not made.

    Do not change `visible` in place: the zeros and `hidden` were made from it. `_replace` sets another.
    """

    side: KeySide
    value: Tensor
    visible: Tensor | None
    zeroed: Tensor | None = None
    hidden: Hidden | None = None
    ready: Ready | None = None

    def reorder(self, index: Tensor) -> Memory:
        """The memory with its sequences taken in the order `index`, repeats allowed."""
        visible = None if self.visible is None else self.visible.index_select(0, index)
        side, value = self.side.reorder(index), self.value.index_select(0, index)
        if self.zeroed is not self.visible:
            return Memory(side, value, visible)
        return Memory(side, value, visible, visible, hidden_by(visible))

    def __repr__(self) -> str:
        """The sizes, without the numbers and what kernels need."""
        parts = zip(self._fields[:-1], self[:-1], strict=True)
        return f"Memory({', '.join(f'{name}={sizes(x)}' for name, x in parts)})"


class AttentionState(NamedTuple):
    """The state of an attention between steps, (B, H, L) each.

    Args:
        weights: the weights of the last step; 0 before the first one (`MonotonicAttention`: 1 at the
            first key).
        total: the sum of the weights over all steps so far, See's coverage vector.
    """

    weights: Tensor
    total: Tensor

    def reorder(self, index: Tensor) -> AttentionState:
        """The state with its sequences taken in the order `index`."""
        return AttentionState(
            self.weights.index_select(0, index), self.total.index_select(0, index)
        )

    __repr__ = sizes


class AttentionResult(NamedTuple):
    """The result of one call of an attention.

    Args:
        context: (B, H * V) for one query (B, d), (B, T, H * V) for several.
        weights: (B, H, L) for one query, (B, H, T, L) for several; before dropout.
        state: to pass to the next call.
    """

    context: Tensor
    weights: Tensor
    state: AttentionState

    __repr__ = sizes


class Encoded(NamedTuple):
    """The result of an encoder.

    Args:
        output: (B, L, D), 0 at padding.
        summary: (B, D), the last states of the top layer, for the decoder to start from.
        lengths: (B,), or None where all positions are real.
    """

    output: Tensor
    summary: Tensor
    lengths: Tensor | None

    __repr__ = sizes


class DecoderState(NamedTuple):
    """The state of a decoder between steps.

    Args:
        hidden: (B, N, D).
        cell: (B, N, D) of an LSTM, else None.
        fed: (B, D), the last attentional vector where it is fed back, else None.
        attention: the state of the attention.
    """

    hidden: Tensor
    cell: Tensor | None
    fed: Tensor | None
    attention: AttentionState

    def reorder(self, index: Tensor) -> DecoderState:
        """The state with its sequences taken in the order `index`, as beam search needs."""
        return DecoderState(
            self.hidden.index_select(0, index),
            None if self.cell is None else self.cell.index_select(0, index),
            None if self.fed is None else self.fed.index_select(0, index),
            self.attention.reorder(index),
        )

    __repr__ = sizes


class Decoded(NamedTuple):
    """The result of a decoder.

    Args:
        logits: (B, vocabulary) for one step, (B, T, vocabulary) for several.
        weights: (B, heads, L) for one step, (B, heads, T, L) for several.
        state: to pass to the next step.
    """

    logits: Tensor
    weights: Tensor
    state: DecoderState

    __repr__ = sizes


class Source(NamedTuple):
    """An encoded source, ready to decode from: the memory, and the state before the first step."""

    memory: Memory
    state: DecoderState

    __repr__ = sizes


def zero_hidden(side: KeySide, visible: Tensor | None) -> KeySide:
    """Lowered keys with 0 where they are hidden: a score may turn a key of zeros into anything."""
    if visible is None:
        return side
    seen = visible[:, None]
    if isinstance(side, PairwiseKey):
        return PairwiseKey(torch.where(seen.unsqueeze(-1), side.b, 0))
    beta = None if side.beta is None else torch.where(seen, side.beta, 0)
    return InnerKey(torch.where(seen.unsqueeze(-1), side.psi, 0), beta, side.origin)


def hidden_by(visible: Tensor | None) -> Hidden | None:
    """What `visible` (B, L) hides; None if it is None."""
    if visible is None:
        return None
    hidden = ~visible
    whole = hidden.all(-1, keepdim=True)
    # torch.where promotes it to double precision if the logits are.
    logit = torch.zeros_like(whole, dtype=torch.float32).masked_fill_(~whole, -torch.inf)
    return Hidden(visible, hidden.unsqueeze(1), whole, logit.unsqueeze(-1))


def next_state(state: AttentionState, weights: Tensor) -> AttentionState:
    """The state after steps with these weights (B, H, T, L)."""
    steps = weights.shape[-2]
    last = weights[..., -1, :] if steps > 0 else state.weights
    return AttentionState(last, state.total + (last if steps == 1 else weights.sum(-2)))


def first_visible(memory: Memory) -> Tensor:
    """One-hot booleans (B, 1, L) of the first visible key; all False where there is none."""
    if memory.visible is None:
        key = key_tensor(memory.side)
        seen = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device)
    else:
        seen = memory.visible
    return (seen & (seen.cumsum(-1) == 1)).unsqueeze(1)
