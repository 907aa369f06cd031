"""What an exception that ended a measurement says, and whether it was for want of memory."""

from __future__ import annotations

import torch


def first_line(error: BaseException) -> str:
    """Type and first line of an error, without the pages of a compiler's log."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # `__str__` may be a user's code
        text = "its message cannot be read"
    return f"{type(error).__name__}: {text[:200]}"


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; the CPU's allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
