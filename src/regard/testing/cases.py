"""The sizes and dtypes of the contract's cases, and `ScoreRow`, a row in its table of scores.

The rows are in `scores.py` and `wrappers.py`, masks and options in `options.py`.

Shape legend: B batch, H query heads, Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

import regard
from regard.testing.oracle import Formula

Build = Callable[[int, int, int, int], regard.Score]

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


class CaseSizes(NamedTuple):
    """The shapes of one case.

    `dim` is the width of queries, and of keys unless the score takes unequal widths. Shared tensors have
    a batch of 1 and broadcast.
    """

    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    value_heads: int = 2
    queries: int = 7
    keys: int = 9
    dim: int = 8
    value_dim: int = 5
    shared_queries: bool = False
    shared_keys: bool = False
    shared_values: bool = False


# Tiled engines use blocks of at least 16 keys here. So at lengths around 16 and 32 the last block is
# partly filled, full, or holds a single key.
SIZES = {
    "tiny": CaseSizes(),
    "one query": CaseSizes(queries=1),
    "one key": CaseSizes(keys=1),
    "one head": CaseSizes(heads=1, key_heads=1, value_heads=1),
    "block - 1": CaseSizes(heads=2, key_heads=1, value_heads=1, queries=3, keys=15),
    "block": CaseSizes(heads=2, key_heads=1, value_heads=1, queries=4, keys=16),
    "block + 1": CaseSizes(heads=2, key_heads=1, value_heads=1, queries=5, keys=17),
    "two blocks + 1": CaseSizes(heads=2, key_heads=2, value_heads=2, queries=9, keys=33),
    "more queries than keys": CaseSizes(queries=9, keys=4),
    "shared keys": CaseSizes(shared_keys=True, shared_values=True, value_heads=4, value_dim=8),
    "shared scores": CaseSizes(shared_queries=True, shared_keys=True),
    "one key head": CaseSizes(key_heads=1, value_heads=4, value_dim=11),
    "long": CaseSizes(1, 2, 1, 1, queries=65, keys=130, dim=16, value_dim=16),
}
TINY = SIZES["tiny"]


@dataclass(frozen=True)
class ScoreRow:
    """A score under contract.

    Args:
        name: of the row, in the names of cases.
        build: makes the score for (query_dim, key_dim, heads, key_heads).
        formula: `formula(score, q, k)` gives the raw logits (B, H, Q, L) in the dtype of `q` from
            the score's parameters, written as in a textbook and sharing no code with the library.
        form: of the lowered score.
        unequal: query dim and key dim differ.
        one_input_head: the score makes its heads itself, from inputs with one head.
        softcap: the soft cap that the score itself has, or None.
        kinked: the score has a kink where a sum of query and key entries is 0. Rounding can decide on
            which side a pair falls. So inputs are drawn on a grid whose sums are never 0, and are exact
            in every dtype.
    """

    name: str
    build: Build
    formula: Formula
    form: Literal["inner", "pairwise"] = "inner"
    unequal: bool = False
    one_input_head: bool = False
    softcap: float | None = None
    kinked: bool = False

    def dims(self, sizes: CaseSizes) -> tuple[int, int]:
        """Query dim and key dim."""
        return sizes.dim, max(sizes.dim * 3 // 4, 1) if self.unequal else sizes.dim

    def make(self, sizes: CaseSizes, seed: int = 0) -> regard.Score:
        """The score in fp64, with its parameters moved away from special initial values such as 0."""
        state = torch.random.get_rng_state()
        torch.default_generator.manual_seed(seed)
        score = self.build(*self.dims(sizes), sizes.heads, sizes.key_heads).double()
        with torch.no_grad():
            for parameter in score.parameters():
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
                parameter.add_(0.1 * torch.randn_like(parameter))
                if self.kinked:
                    parameter.copy_(on_grid(parameter))
        torch.random.set_rng_state(state)
        return score


def on_grid(x: Tensor, shift: float = 0.0) -> Tensor:
    """The entries of x rounded to multiples of 1/8, plus `shift`; exact in bf16 up to 16."""
    return torch.round(x * 8) / 8 + shift
