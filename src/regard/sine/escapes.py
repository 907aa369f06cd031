"""Counts of calls that left the range of the series, so that exact attention ran in its place.

The counts of a device are a tensor on it: counting does not wait for the device, reading does. `note`
is for eager code and for the inside of registered operators; a compiled graph must not trace it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# For each device an int64 tensor of two: the number of calls, and of those for which the series held.
_counts: dict[torch.device, Tensor] = {}
# The same two numbers for calls on the CPU that were noted with a plain bool.
_plain = [0, 0]


class Escapes(NamedTuple):
    """The number of calls offered to the series, and of those for which it did not hold."""

    calls: int
    escapes: int


def note(held: Tensor | bool) -> None:
    """Count one call; `held` says whether the series held for it.

    `held` may be a tensor of one element of any dtype, which is counted on its device without reading it.
    """
    if isinstance(held, Tensor):
        if held.numel() != 1:
            raise ValueError(
                f"held says whether the series held for one call, but has {held.numel()} elements; "
                "pass held.all()"
            )
        counts = counter(held.device)
        counts[1].add_(held.detach().reshape(()).to(torch.bool))
        counts[0].add_(1)
    else:
        # Python numbers, because torch.func transforms do not allow writing to an outer tensor.
        _plain[0] += 1
        _plain[1] += bool(held)


def count(device: torch.device | str | None = None) -> Escapes:
    """The counts since the last `reset`; waits for the device.

    Args:
        device: one device ("cuda:1"), all devices of a type ("cuda"), or None for all devices.
    """
    wanted = None if device is None else torch.device(device)
    calls = held = 0
    if wanted is None or wanted.type == "cpu":
        calls, held = _plain
    for place, counts in _counts.items():
        if wanted is None or wanted in (place, torch.device(place.type)):
            here = counts.tolist()
            calls, held = calls + here[0], held + here[1]
    return Escapes(calls, calls - held)


def reset() -> None:
    """Set all counts to 0."""
    _plain[:] = [0, 0]
    # In place: a captured CUDA graph goes on counting into the same tensors.
    for counts in _counts.values():
        counts.zero_()


def counter(device: torch.device) -> Tensor:
    """The tensor of the counts of a device (calls, calls that held), for kernels that count themselves."""
    if device not in _counts:
        # A tensor made in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            # Copied from the CPU, which synchronises: every stream finds zeros.
            fresh = torch.zeros(2, dtype=torch.int64, device="cpu").to(device)
        _counts.setdefault(device, fresh)
    return _counts[device]
