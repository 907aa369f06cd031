"""What `steps.py` measures against: a decoder's attention, its blocks and their generation by hand.

Shape legend: B batch, L keys, E hidden units, D width of a model, H heads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, scaled_dot_product_attention

from regard.nn import BahdanauAttention, MultiheadAttention

BATCH, HIDDEN, VALUES, STEPS = 16, 512, 512, 30
Caches = list[tuple[Tensor, Tensor]]


class AdditiveByHand(nn.Module):
    """Bahdanau's attention as tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.of_query, self.of_key = (nn.Linear(VALUES, HIDDEN, bias=False) for _ in range(2))
        self.v = nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, query: Tensor, values: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Context (B, V) and weights (B, L)."""
        pairs = torch.tanh(self.of_query(query).unsqueeze(1) + projected)
        weights = torch.softmax(self.v(pairs).squeeze(-1), -1)
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1), weights


class BahdanauPair:
    """A loop of steps of `BahdanauAttention` and the same by hand, with one set of parameters."""

    def __init__(self, keys: int, dtype: torch.dtype, device: torch.device) -> None:
        torch.manual_seed(0)
        self.module, self.hand = BahdanauAttention(VALUES, VALUES, HIDDEN), AdditiveByHand()
        with torch.no_grad():
            self.hand.of_query.weight.copy_(self.module.score.query_weight)
            self.hand.of_key.weight.copy_(self.module.score.key_weight)
            self.hand.v.weight.copy_(self.module.score.score.v)
        self.module.to(device, dtype)
        self.hand.to(device, dtype)
        kind = {"device": device, "dtype": dtype}
        self.keys = torch.randn(BATCH, keys, VALUES, **kind).requires_grad_()
        self.queries = torch.randn(STEPS, BATCH, VALUES, **kind)

    def ours(self) -> Tensor:
        """The contexts of all steps."""
        memory, state, found = self.module.prepare(self.keys), None, []
        for query in self.queries:
            context, _, state = self.module(query, memory, state)
            found.append(context)
        return torch.stack(found)

    def theirs(self) -> Tensor:
        """The same by hand."""
        projected = self.hand.of_key(self.keys)
        return torch.stack([self.hand(x, self.keys, projected)[0] for x in self.queries])

    def trained(self, run: Callable[[], Tensor]) -> Callable[[], object]:
        """A loop that ends in the gradients of the keys and all parameters."""
        owner = self.module if run == self.ours else self.hand
        leaves = [self.keys, *owner.parameters()]
        return lambda: torch.autograd.grad(run().sum(), leaves)

    def error(self) -> float:
        """The largest difference of contexts and gradients, in units of the largest number of each."""
        with torch.no_grad():
            pairs = [(self.ours(), self.theirs())]
        pairs += zip(self.trained(self.ours)(), self.trained(self.theirs)(), strict=True)
        return max(
            float((x.float() - y.float()).abs().max() / y.float().abs().max().clamp(min=1e-9))
            for x, y in ((x.reshape(-1), y.reshape(-1)) for x, y in pairs)
        )


class BlockByHand(nn.Module):
    """A pre-norm decoder block with a cache: one projection for query, key and value, and SDPA."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.sides, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.enter = nn.Linear(dim, 4 * dim, bias=False)
        self.leave = nn.Linear(4 * dim, dim, bias=False)

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The next token (B, 1, D), and the cache with it."""
        batch, count, dim = x.shape
        sides = self.sides(self.first(x)).view(batch, count, 3, self.heads, -1)
        query, key, value = sides.permute(2, 0, 3, 1, 4)
        if cache is not None:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        seen = scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, count, dim))
        return x + self.leave(gelu(self.enter(self.second(x)))), (key, value)


class DecoderByHand(nn.Module):
    """A stack of them through flash attention, chosen once for all layers."""

    def __init__(self, dim: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BlockByHand(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, caches: Caches | None) -> tuple[Tensor, Caches]:
        """The next token, and all caches with it."""
        found = []
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for i, block in enumerate(self.blocks):
                x, cache = block(x, None if caches is None else caches[i])
                found.append(cache)
        return self.norm(x), found


def weights_pair(
    batch: int, length: int, dim: int, heads: int, dtype: torch.dtype, device: torch.device
) -> tuple[nn.Module, nn.Module, Tensor, float]:
    """Our `MultiheadAttention` and torch's with its parameters, an input, and how far their results differ."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(dim, heads, batch_first=True)
    ours = MultiheadAttention(dim, heads, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    ours, theirs = ours.to(device, dtype), theirs.to(device, dtype)
    x = torch.randn(batch, length, dim, device=device, dtype=dtype).requires_grad_()
    with torch.no_grad():
        error = max(
            float((a.float() - b.float()).abs().max() / b.float().abs().max())
            for a, b in zip(ours(x, x, x), theirs(x, x, x), strict=True)
        )
    return ours, theirs, x, error
