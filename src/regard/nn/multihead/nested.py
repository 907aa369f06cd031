"""Nested tensors as padded ones and back: `torch.nn.TransformerEncoder` makes them in evaluation.

Shape legend: N batch, L query length, S key length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Padded(NamedTuple):
    """Nested tensors padded with zeros: (N, L or S, dim), `ignore` (N, S) with True = padding."""

    query: Tensor
    key: Tensor
    value: Tensor
    ignore: Tensor
    lengths: list[int]


def pad_nested(query: Tensor, key: Tensor, value: Tensor, masked: bool) -> Padded:
    """The three tensors, padded; one tensor given twice stays one object.

    `MultiheadAttention` projects an object that is query, key and value in one product.
    """
    given = (query, key, value)
    if masked or not all(x.is_nested and x.layout == torch.strided for x in given):
        raise ValueError(
            "nested tensors need query, key and value to be all nested, in the strided layout, and "
            "no masks; otherwise pad them and give a key_padding_mask"
        )
    queries, keys, values = ([len(row) for row in x.unbind()] for x in given)
    if keys != values or len(keys) != len(queries):
        raise ValueError(
            f"nested query, key and value must hold the same number of sequences, and each as many "
            f"values as keys, got lengths {queries}, {keys} and {values}"
        )
    made: dict[int, Tensor] = {}
    for x in given:
        if id(x) not in made:
            made[id(x)] = x.to_padded_tensor(0.0)
    q, k, v = (made[id(x)] for x in given)
    ends = torch.tensor(keys, device=k.device).unsqueeze(-1)
    return Padded(q, k, v, torch.arange(k.shape[1], device=k.device) >= ends, queries)


def cut_padding(x: Tensor, lengths: list[int]) -> Tensor:
    """A nested tensor with the first `lengths[i]` rows of each sequence."""
    rows = [row[:length] for row, length in zip(x.unbind(), lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows)
