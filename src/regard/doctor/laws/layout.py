"""Which dims of a tensor are the samples and the tokens.

Shape legend: B samples, T tokens, H heads, F all other dims as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

DEPTH = 4  # of nested outputs


class Sizes(NamedTuple):
    """What is known about dims.

    Attributes:
        batch: number of samples.
        lengths: numbers of tokens of the model's inputs.
        batch_first: False where the first dim of inputs is the tokens.
    """

    batch: int
    lengths: tuple[int, ...]
    batch_first: bool = True


def arranged(x: Tensor, sizes: Sizes, *, of_call: bool = False) -> tuple[Tensor, bool] | None:
    """The tensor as (B, T, F) and True; as (B, 1, F) and False without tokens; None for neither.

    Args:
        x: a tensor of floats.
        sizes: the sizes to look for.
        of_call: whether it is a side of an attention call, (B, H, T, D) or (B * H, T, D).
    """
    if x.ndim == 0 or x.is_nested or x.numel() == 0:
        return None
    b, lengths, s = sizes.batch, sizes.lengths, x.shape
    if of_call:
        found = call_side(x, b, lengths)
        if found is not None:
            return found, True
    first, second = (s[0], s[1]) if x.ndim > 1 else (s[0], -1)
    turned = second == b and first in lengths
    if turned and (not sizes.batch_first or first != b):
        x, s, first, second = x.transpose(0, 1), (s[1], s[0], *s[2:]), b, s[0]
    if first == b and second in lengths:
        return x.reshape(b, second, -1), True
    if first == b and x.ndim == 4 and s[2] in lengths:
        return x.transpose(1, 2).reshape(b, s[2], -1), True
    if first == b and x.ndim == 3 and s[2] in lengths:  # channels first, as convolutions have it
        return x.transpose(1, 2), True
    return as_flat(x, sizes) if first != b else (x.reshape(b, 1, -1), False)


def as_flat(x: Tensor, sizes: Sizes) -> tuple[Tensor, bool] | None:
    """Tokens of all samples in one dim, as experts and some projections have them."""
    for length in sizes.lengths:
        if x.shape[0] == sizes.batch * length and x.ndim <= 3:
            lead = (sizes.batch, length) if sizes.batch_first else (length, sizes.batch)
            found = x.reshape(*lead, -1)
            return (found if sizes.batch_first else found.transpose(0, 1)), True
    return None


def call_side(x: Tensor, batch: int, lengths: Sequence[int]) -> Tensor | None:
    """A side of an attention call as (B, T, H * D); None where its dims are others."""
    if x.ndim == 4 and x.shape[0] == batch and x.shape[2] in lengths:
        return x.transpose(1, 2).flatten(2)
    # Beyond B itself the first dim holds batch and heads.
    if x.ndim == 3 and x.shape[0] % batch == 0 and x.shape[0] > batch and x.shape[1] in lengths:
        return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2)
    return None


def tensors_in(x: Any, name: str = "", depth: int = DEPTH) -> Iterator[tuple[str, Tensor]]:
    """The tensors of floats in nested tuples, lists, dicts and dataclasses, with their places."""
    if isinstance(x, Tensor):
        if x.is_floating_point() and x.layout == torch.strided:
            yield name, x
        return
    if depth == 0:
        return
    if isinstance(x, Mapping):
        parts = [(str(key), value) for key, value in x.items()]
    elif isinstance(x, list | tuple):
        named = getattr(x, "_fields", None) or range(len(x))
        parts = [(str(key), value) for key, value in zip(named, x, strict=True)]
    elif is_dataclass(x) and not isinstance(x, type):
        parts = [(field.name, getattr(x, field.name)) for field in fields(x)]
    else:
        return
    for key, value in parts:
        yield from tensors_in(value, f"{name}.{key}".lstrip("."), depth - 1)
