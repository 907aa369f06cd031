"""One-line descriptions of exceptions that ended a measurement, and a test for lack of memory."""

from __future__ import annotations

import torch


def first_line(error: BaseException) -> str:
    """Type and first line of an error, at most 200 characters; a compiler's error can run to pages."""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # `__str__` may be user code that raises
        text = "its message cannot be read"
    return f"{type(error).__name__}: {text[:200]}"


def out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out."""
    # PyTorch's CPU allocator raises a plain RuntimeError, which only its message identifies.
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
