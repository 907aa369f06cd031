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
