"""Every wrong argument of the recurrent decoders is met here, with one error.

Shape legend: B batch, T queries, L keys, H heads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.describe import describe


def check_keys(keys: Tensor) -> None:
    """Refuse keys that are not (B, L, dim)."""
    if not isinstance(keys, Tensor) or not keys.is_floating_point():
        raise TypeError(f"keys must be a floating point tensor, got {describe(keys)}")
    if keys.ndim != 3:
        raise ValueError(
            f"keys must be (batch, length, dim), got shape {tuple(keys.shape)}; batch comes first, "
            "keys of one sequence are keys.unsqueeze(0)"
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


def check_lengths(lengths: Tensor, sequences: Tensor, name: str = "lengths") -> Tensor:
    """Lengths as int64 on the device of `sequences` (B, L, ...), or an error."""
    if not isinstance(lengths, Tensor):
        # A CPU tensor, whatever the default device: the range is checked there.
        lengths = torch.as_tensor(lengths, device="cpu")
    if lengths.dtype == torch.bool or lengths.is_floating_point():
        raise TypeError(
            f"{name} must be integers, got {describe(lengths)}; of a boolean mask, True = real, "
            "they are mask.sum(1)"
        )
    batch, longest = sequences.shape[0], sequences.shape[1]
    if lengths.ndim != 1 or lengths.shape[0] != batch:
        raise ValueError(
            f"{name} must be one number for each of the {batch} sequences, shape ({batch},), got "
            f"shape {tuple(lengths.shape)}"
        )
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and lengths.numel():
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > longest:
            raise ValueError(f"{name} must be from 0 to {longest}, got {low} to {high}")
    return lengths.to(sequences.device, torch.int64)


def check_visible(mask: Tensor, keys: Tensor) -> None:
    """Refuse a mask that is not boolean (B, L)."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be a boolean tensor with True = attend, got {describe(mask)}; from 0/1 "
            "integers use mask.bool()"
        )
    if mask.shape != keys.shape[:2]:
        raise ValueError(
            f"mask must be (batch, length) = {tuple(keys.shape[:2])}, got shape {tuple(mask.shape)}"
        )


def check_query(query: Tensor, batch: int) -> None:
    """Refuse queries of another batch: broadcasting one would hide a mistake."""
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


def check_memory(memory: object) -> None:
    """Refuse what `prepare` did not return, such as the keys themselves."""
    if not hasattr(memory, "side"):
        raise TypeError(f"memory must be what prepare(keys) returned, got {describe(memory)}")


def check_state(state: Any, shape: tuple[int, int, int]) -> None:
    """Refuse what is no state of an attention, or one that was made for another memory."""
    if not hasattr(state, "total"):
        raise TypeError(
            f"state must be the AttentionState that the call before or start(memory) returned, got "
            f"{describe(state)}"
        )
    for x in (state.weights, state.total):
        if tuple(x.shape) != shape:
            raise ValueError(
                f"state is for (batch, heads, keys) = {tuple(x.shape)}, but this memory needs "
                f"{shape}; a state belongs to the memory it was started with, reorder both alike"
            )


def check_decoder_state(state: Any, shape: tuple[int, int, int], cell: bool, fed: bool) -> None:
    """Refuse what is no state of a decoder, or one of another decoder or batch.

    `shape` is (batch, layers, width); `cell` and `fed` say whether those parts are there.
    """
    if not hasattr(state, "hidden"):
        raise TypeError(
            "state must be the DecoderState that the step before or start(summary, memory) "
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
    if not sound or any(not _is_count(size, 0) for size in window):
        raise ValueError(
            f"window must be (back, ahead), two integers of 0 or more, or None, got "
            f"{describe(window)}"
        )


def check_count(least: int = 1, **counts: int) -> None:
    """Refuse counts that are not integers of `least` or more, naming the first."""
    for name, count in counts.items():
        if not _is_count(count, least):
            raise ValueError(f"{name} must be an integer of {least} or more, got {describe(count)}")


def check_one_of(name: str, given: object, choices: tuple[str, ...]) -> None:
    """Refuse a name that is not one of the choices."""
    if given not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {given!r}")


def check_tokens(tokens: Tensor, name: str) -> None:
    """Refuse what is not a (B, length) tensor of token numbers."""
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be an integer tensor of tokens, got {describe(tokens)}")
    if tokens.ndim != 2:
        raise ValueError(f"{name} must be (batch, length), got shape {tuple(tokens.shape)}")


def check_probability(**numbers: float) -> None:
    """Refuse numbers that are not from 0 to below 1, naming the first."""
    for name, number in numbers.items():
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not (real and 0 <= number < 1):
            raise ValueError(f"{name} must be from 0 to below 1, got {describe(number)}")


def check_not_negative(**numbers: float) -> None:
    """Refuse numbers that are not finite and 0 or more, naming the first."""
    for name, number in numbers.items():
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not (real and 0 <= number < math.inf):
            raise ValueError(f"{name} must be a number of 0 or more, got {describe(number)}")


def check_finite(**numbers: float) -> None:
    """Refuse numbers that are not finite, naming the first."""
    for name, number in numbers.items():
        real = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not (real and math.isfinite(number)):
            raise ValueError(f"{name} must be a finite number, got {describe(number)}")


def _is_count(count: object, least: int) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and count >= least
