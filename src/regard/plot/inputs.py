"""Checks of the plots' arguments: weights and tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def checked(weights: object, dims: Sequence[int], shape: str) -> Tensor:
    """The weights in fp64 on the CPU, or an error.

    Args:
        weights: a tensor, or anything that `torch.as_tensor` takes.
        dims: the numbers of dims that it may have; leading dims of 1 are dropped if that makes it fit.
        shape: the shape in words, for the error.

    Raises:
        TypeError: the weights are not a tensor of real numbers.
        ValueError: they have a wrong shape, are empty, or hold NaN, infinity or negative numbers.
    """
    try:
        given = weights if isinstance(weights, Tensor) else torch.as_tensor(weights)
    except (TypeError, ValueError, RuntimeError):
        name = type(weights).__name__
        raise TypeError(f"weights must be a tensor {shape}, got a {name}") from None
    if given.is_complex():
        raise TypeError(f"weights must be real numbers, got {given.dtype}")
    found = given.detach().to("cpu", torch.float64)
    while found.ndim > max(dims) and found.shape[0] == 1:
        found = found[0]
    if found.ndim not in dims:
        hint = "; draw one item of a batch, such as weights[0]" if found.ndim > max(dims) else ""
        raise ValueError(f"weights must be {shape}, got shape {tuple(given.shape)}{hint}")
    if found.numel() == 0:
        raise ValueError(
            f"weights of shape {tuple(given.shape)} are empty: there is nothing to draw"
        )
    if not found.isfinite().all():
        place = tuple((~found.isfinite()).nonzero()[0].tolist())
        raise ValueError(f"weights must be finite, got {found[place].item()} at {place}")
    if (found < 0).any():
        raise ValueError(
            "weights must be 0 or more, got negative ones; are these scores before the softmax?"
        )
    return found


def by_head(weights: object) -> Tensor:
    """The weights as (heads, queries, keys); a matrix counts as one head."""
    found = checked(weights, (2, 3), "(queries, keys) or (heads, queries, keys)")
    return found if found.ndim == 3 else found[None]


def tokens_of(tokens: Sequence[str] | None, count: int, name: str, other: int = -1) -> list[str]:
    """A label for each of `count` positions: the tokens, or 0, 1, ... if there are none.

    Args:
        tokens: the argument of the plot.
        count: how many there must be.
        name: of the argument, for the error.
        other: the length of the other axis; if that fits instead, the weights may be transposed.
    """
    if tokens is None:
        return [str(place) for place in range(count)]
    found = [str(token) for token in tokens]
    if len(found) != count:
        hint = "; are the weights transposed? Try weights.mT" if len(found) == other else ""
        raise ValueError(f"{name} has {len(found)} tokens, but the weights have {count}{hint}")
    return found
