"""Short texts for values in error messages and in `__repr__`, however much a value holds."""

from __future__ import annotations

from torch import Tensor


def describe(x: object) -> str:
    """A value in words: a tensor's dtype and shape, or the start of the repr and the type."""
    if isinstance(x, Tensor):
        return f"a tensor of {x.dtype} and shape {tuple(x.shape)}"
    if isinstance(x, type):
        return f"the class {x.__name__} itself, not an object of it"
    text = repr(x)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if isinstance(x, (int, float)) else f"{text} ({type(x).__name__})"


def sizes(x: object) -> str:
    """A named tuple with only the shapes of its tensors, for a `__repr__` that fits on a line."""
    if isinstance(x, Tensor):
        return str(tuple(x.shape))
    names = getattr(x, "_fields", None)
    if names is None:
        return repr(x)
    return f"{type(x).__name__}({', '.join(f'{n}={sizes(getattr(x, n))}' for n in names)})"
