"""Checks of the arguments of recurrent decoders, one error each.

Shape legend: B batch, T queries, L keys, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.arguments import autocast_enabled, is_number
from regard.describe import describe
from regard.nn.seq2seq.memory import AttentionState, DecoderState, Memory
from regard.scores import Score


def check_keys(keys: Tensor, score: Score, owner: str) -> None:
    """Refuse keys that are not (B, L, dim) with the dim that the owner's score takes."""
    if not isinstance(keys, Tensor) or not keys.is_floating_point():
        raise TypeError(f"keys must be a floating point tensor, got {describe(keys)}")
    if keys.ndim != 3:
        raise ValueError(
            f"keys must be (batch, length, dim), got shape {tuple(keys.shape)}; batch comes first, "
            "keys of one sequence are keys.unsqueeze(0)"
        )
    _check_dim(keys, score.key_dim, "key", score, owner)
    for parameter in score.parameters():
        if parameter.device != keys.device:
            raise ValueError(
                f"keys are on {keys.device} but {owner} is on {parameter.device}; use "
                f"keys.to({str(parameter.device)!r})"
            )
        if parameter.dtype != keys.dtype and not autocast_enabled(keys):
            raise TypeError(
                f"keys are {keys.dtype} but {owner} is {parameter.dtype}; cast one, or use "
                "torch.autocast"
            )


def check_values(values: Tensor, keys: Tensor) -> None:
    """Refuse values that do not pair with the keys."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise TypeError(f"values must be a floating point tensor, got {describe(values)}")
    if values.ndim != 3 or values.shape[:2] != keys.shape[:2]:
        raise ValueError(
            f"values must be (batch, length, dim) with the batch and length of keys "
            f"{tuple(keys.shape)}, got shape {tuple(values.shape)}"
        )


def check_visible(visible: Tensor, keys: Tensor) -> None:
    """Refuse what is not a boolean (B, L)."""
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        raise TypeError(
            "visible must be a boolean tensor (batch, length) with True = attend, got "
            f"{describe(visible)}; from 0/1 integers use visible.bool()"
        )
    if visible.shape != keys.shape[:2]:
        raise ValueError(
            f"visible must be (batch, length) = {tuple(keys.shape[:2])}, got shape "
            f"{tuple(visible.shape)}"
        )


def check_query(query: Tensor, batch: int, score: Score, owner: str) -> None:
    """Refuse queries of another batch, which broadcasting would hide, or of another dim."""
    if not isinstance(query, Tensor) or not query.is_floating_point():
        raise TypeError(f"query must be a floating point tensor, got {describe(query)}")
    if query.ndim != 2 and query.ndim != 3:
        raise ValueError(
            f"query must be (batch, dim) for one step or (batch, steps, dim), got shape "
            f"{tuple(query.shape)}"
        )
    if query.shape[0] != batch:
        raise ValueError(
            f"query has batch {query.shape[0]}, shape {tuple(query.shape)}, but the memory has "
            f"batch {batch}; for several queries of one sequence repeat it with memory.reorder(index)"
        )
    _check_dim(query, score.query_dim, "query", score, owner)


def check_memory(memory: object) -> None:
    """Refuse what `prepare` did not return, such as the keys themselves."""
    if not isinstance(memory, Memory):
        raise TypeError(
            f"memory must come from attention.prepare(keys, lengths=...), got {describe(memory)}"
        )


def check_attention_state(state: AttentionState, shape: tuple[int, int, int]) -> None:
    """Refuse what is no state of an attention, or one that was made for another memory."""
    if not isinstance(state, AttentionState):
        raise TypeError(
            "state must be the AttentionState that the call before or initial_state(memory) "
            f"returned, got {describe(state)}"
        )
    for x in (state.weights, state.total):
        if tuple(x.shape) != shape:
            raise ValueError(
                f"state is for (batch, heads, keys) = {tuple(x.shape)}, but this memory needs "
                f"{shape}; a state belongs to the memory it was started with, reorder both alike"
            )


def check_decoder_state(
    state: DecoderState, shape: tuple[int, int, int], cell: bool, fed: bool
) -> None:
    """Refuse what is no state of a decoder, or one of another decoder or batch.

    `shape` is (batch, layers, width); `cell` and `fed` say whether those parts are there.
    """
    if not isinstance(state, DecoderState):
        raise TypeError(
            "state must be the DecoderState that the step before or initial_state(summary, memory) "
            f"returned, got {describe(state)}"
        )
    given = (tuple(state.hidden.shape), state.cell is not None, state.fed is not None)
    if given != (shape, cell, fed):
        raise ValueError(
            "state is of another decoder or batch: (batch, layers, width), cell state, fed back = "
            f"{given}, but these tokens and this decoder need {(shape, cell, fed)}"
        )


def check_window(window: tuple[int, int] | None) -> None:
    """Refuse a window that is not (back, ahead) of 0 or more."""
    if window is None:
        return
    sound = isinstance(window, tuple) and len(window) == 2
    if not sound or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in window):
        raise ValueError(
            f"window must be (back, ahead), two integers of 0 or more, or None, got "
            f"{describe(window)}"
        )


def check_token_ids(tokens: Tensor, name: str) -> None:
    """Refuse what is not a (B, length) tensor of token numbers."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be an integer tensor of tokens, got {describe(tokens)}")
    if tokens.ndim != 2:
        raise ValueError(f"{name} must be (batch, length), got shape {tuple(tokens.shape)}")


def check_not_negative(**numbers: float) -> None:
    """Refuse numbers that are not finite and 0 or more, naming the first."""
    for name, number in numbers.items():
        if not (is_number(number) and 0 <= number < math.inf):
            raise ValueError(f"{name} must be a number of 0 or more, got {describe(number)}")


def check_finite(**numbers: float) -> None:
    """Refuse numbers that are not finite, naming the first."""
    for name, number in numbers.items():
        if not (is_number(number) and math.isfinite(number)):
            raise ValueError(f"{name} must be a finite number, got {describe(number)}")


def _check_dim(x: Tensor, dim: int | None, side: str, score: Score, owner: str) -> None:
    """Refuse another last dim than the score takes, in the shape that the user gave.

    A score without dims of its own takes what it calls its width; None is any.
    """
    wanted = score.width if dim is None else dim
    if wanted is not None and x.shape[-1] != wanted:
        raise ValueError(
            f"{owner} was built for {side} dim {wanted}, got {side} of shape {tuple(x.shape)} "
            f"with dim {x.shape[-1]}"
        )
