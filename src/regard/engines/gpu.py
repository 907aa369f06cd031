"""What this machine has for GPU engines, asked once or in a way that compilers take for a constant."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# Older ones lack what the kernels are written with: arguments in named groups, among others.
OLDEST_TRITON = (3, 6)


def has_triton() -> bool:
    """Whether a Triton that is new enough is installed; it is not imported, which takes a second."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build of somebody's own
        return True
    return tuple(int(n) for n in version.split(".")[:2]) >= OLDEST_TRITON


# At import: compilers cannot trace the question.
HAS_TRITON = has_triton()
HAS_CUDNN = torch.backends.cudnn.is_available()


def generation(index: int | None) -> int:
    """The first number of a GPU's compute capability: 8 for Ampere, 9 for Hopper."""
    return _generation(index or 0)


@functools.cache
def _generation(index: int) -> int:
    # Every call asks, and torch takes as long to answer as a launch.
    return torch.cuda.get_device_properties(index).major


# What torch.compiler.assume_constant_result says, which would import all of the compiler here.
generation._dynamo_marked_constant = True  # type: ignore[attr-defined]


# Kernels number rows in 32 bits, up to the end of a block.
MOST_ROWS = 2**31 - 2**16


def too_large(rows: int, units: int) -> list[str]:
    """Why kernels of a pairwise form cannot take heads of so many rows and hidden units, if so.

    They count places within a head in 32 bits, and pad rows to blocks of 64 and units to an even number.
    """
    if (rows + 63) * (units + 1) < 2**31:
        return []
    return [
        f"{rows:,} rows of {units} hidden units are too many for one head: 2**31 numbers or more"
    ]


def is_known(*sizes: int) -> bool:
    """Whether sizes are numbers: under a compiler they may stand for many, and a question is a guard."""
    return not torch.compiler.is_compiling() and all(type(size) is int for size in sizes)


def device_current(device: torch.device) -> AbstractContextManager:
    """Triton launches on the current device, wherever the tensors are: in this, that is `device`."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def on_own_device(run: Callable) -> Callable:
    """An operator's kernels, which are launched on the device of its first tensor."""

    @functools.wraps(run)
    def launch(first: torch.Tensor, *others: Any) -> Any:
        with device_current(first.device):
            return run(first, *others)

    return launch
