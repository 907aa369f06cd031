"""What this machine has for GPU engines, asked once or in a way that compilers take for a constant."""

from __future__ import annotations

import importlib.util

import torch

# At import: compilers cannot trace the question.
HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_CUDNN = torch.backends.cudnn.is_available()


def generation(index: int | None) -> int:
    """The first number of a GPU's compute capability: 8 for Ampere, 9 for Hopper."""
    return torch.cuda.get_device_properties(index or 0).major


# What torch.compiler.assume_constant_result says, which would import all of the compiler here.
generation._dynamo_marked_constant = True  # type: ignore[attr-defined]
