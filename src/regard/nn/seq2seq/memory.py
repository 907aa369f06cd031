"""What a decoder carries from step to step, as values: the memory, the state, the result.

Nothing here lives in a module, so that there is nothing to reset, two sentences can be decoded in
turns by one module, and a beam is reordered by `reorder`.

Shape legend: B batch, H heads, T queries (decoder steps), L keys (source length), V value width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.forms import InnerKey, KeySide
from regard.nn.seq2seq.checks import check_keys, check_lengths, check_values, check_visible
from regard.scores import Score


class Memory(NamedTuple):
    """Keys that were lowered once, their values, and which of them are real.

    Args:
        side: the lowered keys (B, H or 1, L, width).
        value: (B, 1, L, V), 0 where hidden.
        visible: (B, L), True = attend, or None where all keys are real.
    """

    side: KeySide
    value: Tensor
    visible: Tensor | None

    def reorder(self, index: Tensor) -> Memory:
        """The memory with its sequences taken in the order `index`, repeats allowed."""
        visible = None if self.visible is None else self.visible.index_select(0, index)
        return Memory(self.side.reorder(index), self.value.index_select(0, index), visible)


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


class AttentionResult(NamedTuple):
    """What one call returns.

    Args:
        context: (B, H * V) for one query (B, d), (B, T, H * V) for several.
        weights: (B, H, L) for one query, (B, H, T, L) for several; before dropout.
        state: to pass to the next call.
    """

    context: Tensor
    weights: Tensor
    state: AttentionState


def build_memory(
    score: Score,
    keys: Tensor,
    values: Tensor | None,
    lengths: Tensor | None,
    visible: Tensor | None,
) -> Memory:
    """Check the keys, zero what is padding, and lower them.

    Padding is zeroed before the projection: 0 * NaN is NaN, so that whatever padding holds would
    reach the gradient of the projection.
    """
    check_keys(keys)
    if values is not None:
        check_values(values, keys)
    if lengths is not None:
        lengths = check_lengths(lengths, keys)
        within = torch.arange(keys.shape[1], device=keys.device) < lengths.unsqueeze(-1)
    else:
        within = None
    if visible is not None:
        check_visible(visible, keys)
        within = visible if within is None else within & visible
    values = keys if values is None else values
    if within is not None:
        keys = torch.where(within.unsqueeze(-1), keys, 0)
        values = torch.where(within.unsqueeze(-1), values, 0)
    return Memory(score.key(keys.unsqueeze(1)), values.unsqueeze(1), within)


def lowered(side: KeySide) -> Tensor:
    """The tensor (B, H or 1, L, width) of lowered keys."""
    return side.psi if isinstance(side, InnerKey) else side.b


def after(state: AttentionState, weights: Tensor) -> AttentionState:
    """The state after steps with these weights (B, H, T, L)."""
    last = weights[..., -1, :] if weights.shape[-2] > 0 else state.weights
    return AttentionState(last, state.total + weights.sum(-2))


def first_visible(memory: Memory) -> Tensor:
    """One-hot booleans (B, 1, L) of the first visible key; all False where there is none."""
    if memory.visible is None:
        key = lowered(memory.side)
        seen = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool, device=key.device)
    else:
        seen = memory.visible
    return (seen & (seen.cumsum(-1) == 1)).unsqueeze(1)
