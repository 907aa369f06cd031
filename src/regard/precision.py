"""The working dtype: what half precision inputs are computed in."""

from __future__ import annotations

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for logits, softmax and sums: fp32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in HALF else dtype


def widened(x: Tensor) -> Tensor:
    """The tensor in its working dtype."""
    return x.to(working_dtype(x.dtype))
