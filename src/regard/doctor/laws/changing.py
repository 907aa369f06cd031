"""`Replace` and `Swap`: what a pass changes about the inputs of a model.

Shape legend: B samples, T tokens, F features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SEED = 7  # of the vectors that replace others; the random numbers of the model are not touched


class Replace(NamedTuple):
    """Vectors drawn anew, as large as those of the tensor, at some tokens.

    Attributes:
        masks: for each length T, (B, T), True where a token is replaced; a length of 0 stands for inputs
            without tokens, and has (B, 1).
        only: names of the streams to change; None for all.
    """

    masks: dict[int, Tensor]
    only: tuple[str, ...] | None = None

    def of_tokens(self, x: Tensor, length: int) -> Tensor:
        """(B, T, F) with tokens replaced."""
        mask = self.masks.get(length)
        if mask is None:
            return x
        return torch.where(mask.to(x.device).unsqueeze(-1), drawn_like(x), x)

    def of_places(self, x: Tensor, places: Tensor, length: int) -> Tensor:
        """Embeddings (*, F) with tokens replaced; `places` (*) are b * T + t."""
        mask = self.masks.get(length)
        if mask is None:
            return x
        chosen = mask.to(places.device).flatten()[places]
        return torch.where(chosen.unsqueeze(-1), drawn_like(x, places), x)


class Swap(NamedTuple):
    """Two tokens of each sample change places.

    Attributes:
        pairs: for each length, the two tokens.
        only: names of the streams to change; None for all.
    """

    pairs: dict[int, tuple[int, int]]
    only: tuple[str, ...] | None = None

    def of_tokens(self, x: Tensor, length: int) -> Tensor:
        """(B, T, F) with the tokens swapped."""
        if length not in self.pairs:
            return x
        first, second = self.pairs[length]
        x = x.clone()
        x[:, [first, second]] = x[:, [second, first]]
        return x

    def of_places(self, x: Tensor, places: Tensor, length: int) -> Tensor:
        """Embeddings with tokens swapped, where one call reads whole sequences."""
        if length not in self.pairs or places.ndim != 2:
            return x
        if places.shape[1] == length:
            return self.of_tokens(x, length)
        if places.shape[0] == length:
            return self.of_tokens(x.transpose(0, 1), length).transpose(0, 1)
        return x


Change = Replace | Swap


def drawn_like(x: Tensor, places: Tensor | None = None) -> Tensor:
    """Normal numbers with the mean and spread of each feature of x, the same in every call."""
    generator = torch.Generator(device=x.device)
    # A loop that embeds one token at a time must not get the same vector at each.
    generator.manual_seed(SEED + (0 if places is None else int(places.flatten()[0])))
    flat = x.detach().reshape(-1, x.shape[-1]).float()
    spread = flat.std(0, correction=0)
    # A spread of zero, of a constant or a single row, gives no change.
    whole = flat.std(correction=0).clamp(min=1e-3)
    spread = torch.where(spread > 1e-3 * whole, spread, whole)
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return (flat.mean(0) + spread * noise).to(x.dtype)
