"""Which steps of a decoder run in kernels of their own, and the way to them.

A step has one query for each sequence and head, over keys that were lowered before. Modules call these kernels
directly, because the checks and the plan of a call would take longer than they run. Everything else about a
step (masks by query, statistics, options) goes through `regard.attend`.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from regard.engines.gpu import HAS_TRITON, generation
from regard.engines.triton.engine import (
    KERNEL_ACTIVATIONS,
    LARGEST_VALUE_DIM,
    MOST_KERNEL_ROWS,
    OLDEST_FOR_TRITON,
)

# Device types whose steps run in kernels.
STEPS_ON: tuple[str, ...] = ("cuda",) if HAS_TRITON else ()
MOST_NUMBERS = 2**31
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serves(b: Tensor, value: Tensor) -> bool:
    """Whether the kernels read keys b (B, K, L, E) and these values (B, 1 or K, L, V) as they lie in memory."""
    device = value.device
    if device.type not in STEPS_ON or value.dtype not in DTYPES or b.dtype != value.dtype:
        return False
    if b.stride(3) != 1 or value.stride(3) != 1 or value.stride(2) != value.shape[3]:
        return False
    # A launch that is bound for strides of 32 bits cannot take longer ones.
    if max(b.numel(), value.numel()) >= MOST_NUMBERS:
        return False
    if not 0 < value.shape[3] <= LARGEST_VALUE_DIM or not 0 < b.shape[2] <= MOST_KERNEL_ROWS:
        return False
    return device.type != "cuda" or generation(device.index) >= OLDEST_FOR_TRITON


def computes(activation: str, v: Tensor) -> bool:
    """Whether the kernels have this activation, and read this v (H, E)."""
    return activation in KERNEL_ACTIVATIONS and v.dtype in DTYPES and v.ndim == 2


@functools.cache
def steps() -> ModuleType:
    """The module with the launches, which imports Triton."""
    from regard.engines.triton import steps

    return steps
