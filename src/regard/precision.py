"""The dtype to compute in."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which logits, softmax and sums are computed: fp32 at least."""
    return torch.float32 if dtype in HALF else dtype


def widened(x: Tensor) -> Tensor:
    """The tensor in its working dtype."""
    return x.to(working_dtype(x.dtype))
