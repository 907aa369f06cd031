"""Nested tensors as padded ones and back: `torch.nn.TransformerEncoder` makes them in evaluation.

Both layouts of torch are taken: strided, which torch's encoder makes, and jagged, whose values are one
tensor of all tokens with the offset of each sequence.

Shape legend: N batch, L query length, S key length, D width, T tokens of all sequences.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.nn.multihead.errors import WrongValue


class Padded(NamedTuple):
    """Nested tensors padded with zeros: (N, L or S, D), `ignore` (N, S) with True = padding."""

    query: Tensor
    key: Tensor
    value: Tensor
    ignore: Tensor


def pad_nested(query: Tensor, key: Tensor, value: Tensor, masked: bool) -> Padded:
    """The three tensors, padded; one tensor given twice stays one object.

    `MultiheadAttention` projects an object that is query, key and value in one product.
    """
    given = (query, key, value)
    layouts = {x.layout if x.is_nested else "dense" for x in given}
    if masked or len(layouts) > 1:
        raise WrongValue(
            "nested tensors need query, key and value to be all nested, in one layout, and no masks; "
            "otherwise pad them, x.to_padded_tensor(0.0), and give a key_padding_mask; got "
            + ", ".join(f"{name} {_kind(x)}" for name, x in zip(NAMES, given, strict=True))
            + (", and a mask" if masked else "")
        )
    lengths = {id(x): sequence_lengths(x, name) for name, x in zip(NAMES, given, strict=True)}
    queries, keys, values = (lengths[id(x)] for x in given)
    if len(keys) != len(queries) or not torch.equal(keys, values):
        raise WrongValue(
            f"nested query, key and value must hold the same number of sequences, and each as many "
            f"values as keys, got lengths {queries.tolist()}, {keys.tolist()} and {values.tolist()}"
        )
    made: dict[int, Tensor] = {}
    for x in given:
        if id(x) not in made:
            made[id(x)] = _padded(x, lengths[id(x)])
    q, k, v = (made[id(x)] for x in given)
    return Padded(q, k, v, torch.arange(k.shape[1], device=k.device) >= keys.unsqueeze(-1))


NAMES = ("query", "key", "value")


def _kind(x: Tensor) -> str:
    if not x.is_nested:
        return f"a tensor of shape {tuple(x.shape)}"
    return f"nested, {str(x.layout).removeprefix('torch.')}"


def sequence_lengths(x: Tensor, name: str) -> Tensor:
    """How many tokens each sequence of a nested tensor (N, *, D) has, (N,) on its device."""
    if x.dim() != 3 or (x.layout == torch.jagged and x._ragged_idx != 1):  # type: ignore[missing-attribute]
        raise WrongValue(
            f"a nested {name} must be (batch, length, dim) with lengths that differ, got {_kind(x)} "
            f"with {x.dim()} dims" + ("; transpose it back" if x.dim() == 3 else "")
        )
    if x.layout == torch.strided:
        return torch.tensor([len(row) for row in x.unbind()], device=x.device, dtype=torch.int64)
    lengths = x.lengths()  # type: ignore[missing-attribute]
    return x.offsets().diff() if lengths is None else lengths  # type: ignore[missing-attribute]


def _padded(x: Tensor, lengths: Tensor) -> Tensor:
    """(N, longest, D) with zeros after the end of each sequence."""
    if x.layout == torch.strided:
        return x.to_padded_tensor(0.0)
    values, starts = x.values(), x.offsets()[:-1]  # type: ignore[missing-attribute]
    longest = int(lengths.max()) if len(lengths) else 0
    position = torch.arange(longest, device=values.device)
    real = position < lengths.unsqueeze(-1)
    # Padding reads token 0, if there is one, and is set to 0 afterwards.
    index = torch.where(real, starts.unsqueeze(-1) + position, 0)
    if values.shape[0] == 0:
        return values.new_zeros(len(lengths), longest, values.shape[-1])
    return torch.where(real.unsqueeze(-1), values[index], 0)


def cut_padding(x: Tensor, like: Tensor) -> Tensor:
    """A nested tensor with the rows of `x` (N, L, D) at which `like` has tokens, in its layout."""
    lengths = sequence_lengths(like, "query")
    if like.layout == torch.strided:
        rows = [row[:n] for row, n in zip(x.unbind(), lengths.tolist(), strict=True)]
        return torch.nested.as_nested_tensor(rows)
    real = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(-1)
    offsets = like.offsets()  # type: ignore[missing-attribute]
    if like.lengths() is not None:  # type: ignore[missing-attribute] # tokens between sequences are left out
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    # The same offsets, where they are: torch adds and compares jagged tensors that share them.
    return torch.nested.nested_tensor_from_jagged(x[real], offsets)
