"""What encoders, attention and decoders hand on, as values: nothing here lives in a module.

So there is nothing to reset, two sentences can be decoded in turns by one module, and a beam is
reordered by `reorder`.

Shape legend: B batch, H heads, T queries (decoder steps), L keys (source length), V value width,
N layers, D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.describe import sizes
from regard.forms import InnerKey, KeySide, PairwiseKey, key_tensor


class Hidden(NamedTuple):
    """What a step hides, made once for all of them.

    Args:
        by: the very tensor (B, L) that says what is visible.
        keys: (B, 1, L), True where a key is hidden.
        whole: (B, 1), True where all keys of the sequence are.
        logit: (B, 1, 1), that of a hidden key: -inf, or 0 in a sequence without a visible key, which
            would become NaN, and so would its gradient.
    """

    by: Tensor
    keys: Tensor
    whole: Tensor
    logit: Tensor

    __repr__ = sizes


class Memory(NamedTuple):
    """Keys that were lowered once, their values, and which of them are real.

    Args:
        side: the lowered keys (B, H or 1, L, width).
        value: (B, 1, L, V), 0 where hidden.
        visible: (B, L), True = attend, or None where all keys are real.
        zeroed: the very tensor by which keys and values were set to 0 where they are hidden; where it is
            not `visible`, they may hold anything there.
        hidden: what `zeroed` hides, as a step reads it; None where it was not made.

    `visible` is not to be changed in place, as zeros and `hidden` were made by it; `_replace` takes another.
    """

    side: KeySide
    value: Tensor
    visible: Tensor | None
    zeroed: Tensor | None = None
    hidden: Hidden | None = None

    def reorder(self, index: Tensor) -> Memory:
        """The memory with its sequences taken in the order `index`, repeats allowed."""
        visible = None if self.visible is None else self.visible.index_select(0, index)
        side, value = self.side.reorder(index), self.value.index_select(0, index)
        if self.zeroed is not self.visible:
            return Memory(side, value, visible)
        return Memory(side, value, visible, visible, hidden_by(visible))

    __repr__ = sizes


class AttentionState(NamedTuple):
    """What an attention remembers of earlier steps, (B, H, L) each.

    Args:
        weights: those of the last step; 0 before the first one (`MonotonicAttention`: 1 at the
            first key).
        total: the sum over all steps so far, which is See's coverage vector.
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
    """What one call of an attention returns.

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
    """What an encoder returns.

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
    """What a decoder carries from step to step.

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
    """What a decoder returns.

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
    """Lowered keys with 0 where they are hidden: a score may make anything of a key of zeros."""
    if visible is None:
        return side
    seen = visible[:, None]
    if isinstance(side, PairwiseKey):
        return PairwiseKey(torch.where(seen.unsqueeze(-1), side.b, 0))
    beta = None if side.beta is None else torch.where(seen, side.beta, 0)
    return InnerKey(torch.where(seen.unsqueeze(-1), side.psi, 0), beta, side.origin)


def hidden_by(visible: Tensor | None) -> Hidden | None:
    """What `visible` (B, L) hides; None where it hides nothing."""
    if visible is None:
        return None
    hidden = ~visible
    whole = hidden.all(-1, keepdim=True)
    # Where logits are in double precision, this is brought to it.
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
