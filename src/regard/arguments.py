"""Checks of single arguments, shared by constructors and functions; each error names the argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TypeAlias

import torch
from torch import Tensor

from regard.describe import describe

# Lengths or other counts, one integer for each sequence.
Counts: TypeAlias = Tensor | Sequence[int]


def check_sizes(**sizes: int | None) -> None:
    """Refuse the first size that is not an integer of 1 or more; None passes."""
    for name, size in sizes.items():
        if size is None:
            continue
        # True is an int to Python, but never meant as a size.
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be an integer of 1 or more, got {describe(size)}")


def check_given_sizes(**sizes: int | None) -> None:
    """Refuse sizes that are not integers of 1 or more, None included, naming the first."""
    for name, size in sizes.items():
        if size is None:
            raise ValueError(f"{name} must be an integer of 1 or more, got None")
    check_sizes(**sizes)


def check_positive(*, optional: bool = False, **numbers: float | None) -> None:
    """Refuse the first number that is not positive and finite; None passes if `optional`."""
    wanted = "a positive number or None" if optional else "a positive number"
    for name, number in numbers.items():
        if number is None and optional:
            continue
        if not (is_number(number) and 0 < number < math.inf):  # type: ignore[operator]
            raise ValueError(f"{name} must be {wanted}, got {describe(number)}")


def check_not_negative(**numbers: float) -> None:
    """Refuse the first number that is negative or not finite."""
    for name, number in numbers.items():
        if not (is_number(number) and 0 <= number < math.inf):
            raise ValueError(f"{name} must be a number of 0 or more, got {describe(number)}")


def check_whole(**numbers: int) -> None:
    """Refuse the first value that is not an integer of 0 or more, and below 2**32 as seeds are."""
    for name, number in numbers.items():
        # True is an int to Python, but never meant as a number.
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
            raise ValueError(
                f"{name} must be an integer from 0 to below 2**32, got {describe(number)}"
            )


def checked_device(device: object) -> torch.device:
    """The device that is named.

    Raises:
        ValueError: torch knows none of that name, or sees none here.
    """
    try:
        found = torch.device(device) if isinstance(device, str | torch.device) else None
    except (RuntimeError, ValueError):
        found = None
    if found is None or found.type == "meta":
        raise ValueError(f"device must be 'cpu' or 'cuda[:N]', got {describe(device)}")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        here = (found.index or 0) < count
        seen = f"{count} GPUs, cuda:0 to cuda:{count - 1}" if count else "no GPU"
    else:
        backend = torch if found.type == "cpu" else getattr(torch, found.type, None)
        here = backend is torch or (hasattr(backend, "is_available") and backend.is_available())
        seen = f"no {found.type}"
    if not here:
        raise ValueError(f"device={str(device)!r}: torch sees {seen} here")
    return found


def check_finite(**numbers: float) -> None:
    """Refuse the first value that is not a finite number."""
    for name, number in numbers.items():
        if not (is_number(number) and math.isfinite(number)):
            raise ValueError(f"{name} must be a finite number, got {describe(number)}")


def check_probability(**numbers: float) -> None:
    """Refuse the first number that is not a probability below 1."""
    for name, number in numbers.items():
        if not (is_number(number) and 0 <= number < 1):
            raise ValueError(
                f"{name} must be a probability from 0 to below 1, got {describe(number)}"
            )


def check_one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices."""
    choices = list(choices)
    if value not in choices:
        wanted = " or ".join(map(repr, choices))
        raise ValueError(f"{name} must be {wanted}, got {describe(value)}")


def check_divides(heads: int, key_heads: int) -> None:
    """Refuse a number of key heads that does not divide the query heads."""
    if heads % key_heads:
        raise ValueError(
            f"key_heads={key_heads} does not divide heads={heads}; give a divisor, so that each key "
            "head serves equally many query heads"
        )


def as_counts(counts: Counts, name: str) -> Tensor:
    """Counts as an integer tensor, or an error; a list becomes a tensor on the CPU."""
    if not isinstance(counts, Tensor):
        counts = numbers_as_tensor(counts, name)
        # An empty list becomes a float tensor.
        counts = counts if counts.numel() else counts.long()
    if counts.dtype == torch.bool or counts.is_floating_point() or counts.is_complex():
        raise TypeError(
            f"{name} must be integers, got {describe(counts)}; from a boolean mask (batch, length) "
            "with True = real, use mask.sum(1)"
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
    """Counts of tokens, one for each sequence of x (B, L, ...), as int64 on x's device; or an error.

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
    """Whether x is a real number and not a boolean."""
    return isinstance(x, Real) and not isinstance(x, bool)


def readable(x: Tensor) -> bool:
    """Whether the numbers in x can be read without waiting for a device or breaking a trace or vmap."""
    if x.device.type != "cpu" or x.numel() == 0 or torch.compiler.is_compiling():
        return False
    # Inside vmap or grad the numbers cannot be read. No public function of torch tells such a tensor.
    return not torch._C._functorch.is_functorch_wrapped_tensor(x)


def autocast_enabled(x: object) -> bool:
    """Whether autocast is on for the device of x; False for the meta device, where torch would raise."""
    if not isinstance(x, Tensor) or x.device.type == "meta":
        return False
    return torch.is_autocast_enabled(x.device.type)
