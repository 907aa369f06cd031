"""What this machine offers to GPU engines (Triton, cuDNN, compute capability), and limits of kernels.

Facts are found once, at import or in a function that torch.compile treats as a constant.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# Older releases lack features that the kernels use, such as named tuples as arguments.
OLDEST_TRITON = (3, 6)


def has_triton() -> bool:
    """Whether Triton 3.6 or newer is installed. It is not imported, which would take a second."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # built from source, without metadata
        return True
    return tuple(int(n) for n in version.split(".")[:2]) >= OLDEST_TRITON


# Found at import, because torch.compile cannot trace a look-up of installed packages.
HAS_TRITON = has_triton()
HAS_CUDNN = torch.backends.cudnn.is_available()


def generation(index: int | None) -> int:
    """The first number of a GPU's compute capability: 8 for Ampere, 9 for Hopper."""
    return _generation(index or 0)


@functools.cache
def _generation(index: int) -> int:
    # Cached: every call asks, and torch takes as long to answer as a kernel launch.
    return torch.cuda.get_device_properties(index).major


# The effect of torch.compiler.assume_constant_result, which would import the whole compiler here.
generation._dynamo_marked_constant = True  # type: ignore[attr-defined]


# Kernels index rows with 32 bits, up to the end of the last block.
MOST_KERNEL_ROWS = 2**31 - 2**16


def too_large(rows: int, units: int) -> list[str]:
    """Reasons why pairwise kernels cannot take heads of this many rows and hidden units; empty if they can.

    They index elements of a head with 32 bits, and pad rows to blocks of 64 and units to an even number.
    """
    if (rows + 63) * (units + 1) < 2**31:
        return []
    return [
        f"{rows:,} rows of {units} hidden units are too many for one head: 2**31 numbers or more"
    ]


def is_known(*sizes: int) -> bool:
    """Whether sizes are plain numbers, not symbols of torch.compile, of which each comparison is a guard."""
    return not torch.compiler.is_compiling() and all(type(size) is int for size in sizes)


def device_current(device: torch.device) -> AbstractContextManager:
    """A context in which `device` is current: Triton launches there, wherever the tensors are."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def on_own_device(run: Callable) -> Callable:
    """`run` with the device of its first tensor made current."""

    @functools.wraps(run)
    def launch(first: torch.Tensor, *others: Any) -> Any:
        with device_current(first.device):
            return run(first, *others)

    return launch
