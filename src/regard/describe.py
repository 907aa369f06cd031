"""How a value is named in an error message or printed: short, whatever it holds."""

from __future__ import annotations

from torch import Tensor


def describe(x: object) -> str:
    """A tensor by dtype and shape, a class as a class, anything else by its start and type."""
    if isinstance(x, Tensor):
        return f"a tensor of {x.dtype} and shape {tuple(x.shape)}"
    if isinstance(x, type):
        return f"the class {x.__name__} itself, not an object of it"
    text = repr(x)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if isinstance(x, (int, float)) else f"{text} ({type(x).__name__})"


def sizes(x: object) -> str:
    """A named tuple with each tensor by its shape alone: for a `__repr__` that fits a line."""
    if isinstance(x, Tensor):
        return str(tuple(x.shape))
    names = getattr(x, "_fields", None)
    if names is None:
        return repr(x)
    return f"{type(x).__name__}({', '.join(f'{n}={sizes(getattr(x, n))}' for n in names)})"
