"""Errors of `MultiheadAttention` that are also of the types that torch's module raises.

torch's module raises AssertionError for most shapes and kinds of masks and RuntimeError for the others.
Code written for it catches those; ours are ValueError and TypeError as everywhere in the library.
"""

from __future__ import annotations


class WrongValue(ValueError, AssertionError, RuntimeError):
    """A size, shape, device or option that does not fit."""


class WrongType(TypeError, AssertionError, RuntimeError):
    """An argument of another type or dtype."""
