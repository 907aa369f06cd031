"""Checks of single arguments that constructors and functions share; each error names the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TypeAlias

import torch
from torch import Tensor

from regard.describe import describe

# Lengths or other counts, one for each sequence.
Counts: TypeAlias = Tensor | Sequence[int]


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes that are not integers of 1 or more, naming the first; None passes."""
    for name, size in sizes.items():
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be an integer of 1 or more, got {describe(size)}")


def check_given_sizes(**sizes: int | None) -> None:
    """Refuse sizes that are not integers of 1 or more, None included, naming the first."""
    for name, size in sizes.items():
        if size is None:
            raise ValueError(f"{name} must be an integer of 1 or more, got None")
    check_sizes(**sizes)


def check_positive(*, optional: bool = False, **numbers: float | None) -> None:
    """Refuse numbers that are not positive and finite, naming the first; None if `optional`."""
    wanted = "a positive number or None" if optional else "a positive number"
    for name, number in numbers.items():
        if number is None and optional:
            continue
        if not (is_number(number) and 0 < number < math.inf):  # type: ignore[operator]
            raise ValueError(f"{name} must be {wanted}, got {describe(number)}")


def check_probability(**numbers: float) -> None:
    """Refuse what is not a probability below 1, naming the first."""
    for name, number in numbers.items():
        if not (is_number(number) and 0 <= number < 1):
            raise ValueError(
                f"{name} must be a probability from 0 to below 1, got {describe(number)}"
            )


def check_one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices."""
    choices = list(choices)
    if value not in choices:
        wanted = " or ".join(map(repr, choices))
        raise ValueError(f"{name} must be {wanted}, got {describe(value)}")


def check_divides(heads: int, key_heads: int) -> None:
    """Refuse a number of key heads that does not divide the query heads."""
    if heads % key_heads:
        raise ValueError(f"key_heads={key_heads} does not divide heads={heads}")


def as_counts(counts: Counts, name: str) -> Tensor:
    """Counts as a tensor, on the CPU where they are a list; or an error if they are no integers."""
    if not isinstance(counts, Tensor):
        counts = numbers_as_tensor(counts, name)
        # Without any number in it torch takes floats.
        counts = counts if counts.numel() else counts.long()
    if counts.dtype == torch.bool or counts.is_floating_point() or counts.is_complex():
        raise TypeError(
            f"{name} must be integers, got {describe(counts)}; of a boolean mask (batch, length), "
            "True = real, the lengths are mask.sum(1)"
        )
    return counts


def numbers_as_tensor(counts: Counts | int, name: str) -> Tensor:
    """Numbers as a tensor on the CPU, whatever the default device: their range is checked there."""
    try:
        return torch.as_tensor(counts, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(
            f"{name} must be integers, a tensor or a list of them, got {describe(counts)}"
        ) from None


def check_counts(counts: Counts, name: str, x: Tensor, *, bounded: bool = True) -> Tensor:
    """Counts of tokens, one for each sequence of x (B, L, ...), as int64 on its device; or an error.

    They are 0 or more, and at most L if `bounded`.
    """
    counts = as_counts(counts, name)
    if counts.ndim != 1 or counts.shape[0] != x.shape[0]:
        raise ValueError(
            f"{name} must be one integer for each of the {x.shape[0]} sequences, shape "
            f"({x.shape[0]},), got {describe(counts)}"
        )
    if readable(counts):
        low, high = int(counts.min()), int(counts.max())
        if low < 0 or (bounded and high > x.shape[1]):
            wanted = f"from 0 to the length {x.shape[1]}" if bounded else "0 or more"
            raise ValueError(f"{name} must be {wanted}, got {low} to {high}")
    return counts.to(x.device, torch.int64)


def is_number(x: object) -> bool:
    """Whether x is a real number; a boolean is none."""
    return isinstance(x, Real) and not isinstance(x, bool)


def readable(x: Tensor) -> bool:
    """Whether looking at the numbers costs no wait for a device and breaks no trace or vmap."""
    if x.device.type != "cpu" or x.numel() == 0 or torch.compiler.is_compiling():
        return False
    # No public call tells a tensor inside of vmap or grad, whose numbers cannot be read.
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def autocast_enabled(x: object) -> bool:
    """Whether autocast is on for the device of x; some devices, such as meta, know none."""
    if not isinstance(x, Tensor) or x.device.type == "meta":
        return False
    return torch.is_autocast_enabled(x.device.type)
