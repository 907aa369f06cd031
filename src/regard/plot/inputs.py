"""What the pictures take, checked: every mistake is one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def checked(weights: object, dims: Sequence[int], shape: str) -> Tensor:
    """The weights in fp64 on the CPU.

    Args:
        weights: a tensor, or what `torch.as_tensor` takes.
        dims: how many dims it may have; a leading dim of 1 is dropped where that makes it fit.
        shape: what the dims are, in words for the error.

    Raises:
        TypeError: where it is no tensor of real numbers.
        ValueError: on a wrong shape, nothing in it, NaN, infinity or a negative number.
    """
    try:
        given = weights if isinstance(weights, Tensor) else torch.as_tensor(weights)
    except (TypeError, ValueError, RuntimeError):
        name = type(weights).__name__
        raise TypeError(f"weights are a tensor {shape}, not a {name}") from None
    if given.is_complex():
        raise TypeError(f"weights are real numbers, not {given.dtype}")
    found = given.detach().to("cpu", torch.float64)
    while found.ndim > max(dims) and found.shape[0] == 1:
        found = found[0]
    if found.ndim not in dims:
        hint = "; of a batch draw one at a time: weights[0]" if found.ndim > max(dims) else ""
        raise ValueError(f"weights are {shape}, but these have shape {tuple(given.shape)}{hint}")
    if found.numel() == 0:
        raise ValueError(f"weights of shape {tuple(given.shape)} have nothing to draw")
    if not found.isfinite().all():
        place = tuple((~found.isfinite()).nonzero()[0].tolist())
        raise ValueError(f"weights have to be finite, but at {place} stands {found[place].item()}")
    if (found < 0).any():
        raise ValueError(
            "weights have to be 0 or more: negative ones may be scores before the softmax"
        )
    return found


def by_head(weights: object) -> Tensor:
    """The weights as (heads, queries, keys); without heads there is one."""
    found = checked(weights, (2, 3), "(queries, keys) or (heads, queries, keys)")
    return found if found.ndim == 3 else found[None]


def tokens_of(tokens: Sequence[str] | None, count: int, name: str, other: int = -1) -> list[str]:
    """One label for each of `count` places: the tokens, or their numbers where there are none.

    Args:
        tokens: what was given.
        count: how many there should be.
        name: what they are called in the error.
        other: the length of the other axis; if that fits, the weights are the wrong way round.
    """
    if tokens is None:
        return [str(place) for place in range(count)]
    found = [str(token) for token in tokens]
    if len(found) != count:
        hint = (
            ": are the weights the wrong way round? Try weights.mT" if len(found) == other else ""
        )
        raise ValueError(f"{name} has {len(found)} tokens, but the weights have {count}{hint}")
    return found
