"""How often a call left the range of the series, so that exact attention answered in its place.

The counts of a device stay on it as a tensor: counting waits for nothing, reading does. `note` is
for eager code and for the inside of registered operators; a compiled graph must not trace it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# For each device an int64 tensor of two: the calls, and those of them that the series held for.
_counts: dict[torch.device, Tensor] = {}
# The same of calls on the CPU whose answer was a plain bool.
_plain = [0, 0]


class Escapes(NamedTuple):
    """Calls that were offered to the series, and how many of them it did not hold for."""

    calls: int
    escapes: int


def note(held: Tensor | bool) -> None:
    """Count one call; `held` says whether the series held for it.

    A tensor has one element, of any dtype, and is counted on its own device without being read.
    """
    if isinstance(held, Tensor):
        if held.numel() != 1:
            raise ValueError(
                f"held says of one call whether the series held, but has {held.numel()} elements; "
                "use held.all()"
            )
        counts = counter(held.device)
        counts[1].add_(held.detach().reshape(()).to(torch.bool))
        counts[0].add_(1)
    else:
        # Numbers and not a tensor: inside torch.func transforms none may be written to.
        _plain[0] += 1
        _plain[1] += bool(held)


def count(device: torch.device | str | None = None) -> Escapes:
    """What was counted since the last `reset`; waits for the device.

    Args:
        device: one device ("cuda:1"), all of a type ("cuda"), or None for all there are.
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
    """Count from 0 again. In place: a captured CUDA graph goes on counting into the same tensors."""
    _plain[:] = [0, 0]
    for counts in _counts.values():
        counts.zero_()


def counter(device: torch.device) -> Tensor:
    """The counts of a device, for kernels that count by themselves: calls, and those that held."""
    if device not in _counts:
        # Made in inference mode it could not be written to outside of it.
        with torch.inference_mode(False):
            # From the CPU: a copy waits, so that every stream finds zeros.
            fresh = torch.zeros(2, dtype=torch.int64, device="cpu").to(device)
        _counts.setdefault(device, fresh)
    return _counts[device]
