"""Exact attention over millions of keys in bounded memory, and the best keys, block by block.

A block of keys is attended to on its own, with the LSE of its logits. Outputs of blocks are merged by these, and
backward computes every block again, so that memory beside the keys does not grow with their number.

Shape legend: Q queries, N keys, D key dim, V value dim, K best keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import regard
from regard import Score

# Keys that are in work at once. Of 500,000 keys with 64 queries, blocks of 65,536 took a third longer on a CPU, and
# smaller ones are more calls.
BLOCK = 16_384
GPU_BLOCK = 2**18  # larger, for a GPU has to be filled
QUERIES = 1024  # queries whose logits with one block are built at once


class SoftRead(NamedTuple):
    """The result of attention: output (Q, V), and the log of the sum of exp of all logits, lse (Q,)."""

    output: Tensor
    lse: Tensor


class Blocks(NamedTuple):
    """Keys and values in blocks; `allowed` (N,) leaves some of them out.

    Keys may be on another device or of another dtype than the queries, such as half precision on a disk: each block
    is brought over by itself.
    """

    keys: Tensor
    values: Tensor | None
    allowed: Tensor | None
    size: int

    def each(self) -> Iterator[tuple[Tensor | None, slice]]:
        """The places of each block: the rows that are allowed, None for all of them, and the slice."""
        for first in range(0, len(self.keys), self.size):
            part = slice(first, min(first + self.size, len(self.keys)))
            if self.allowed is None:
                yield None, part
            elif (rows := self.allowed[part].nonzero()[:, 0]).numel():
                yield rows, part

    def take(self, rows: Tensor | None, part: slice, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a block as the queries are: their dtype and device."""
        key = taken(self.keys, rows, part, like)
        return key, key if self.values is None else taken(self.values, rows, part, like)


def taken(x: Tensor, rows: Tensor | None, part: slice, like: Tensor) -> Tensor:
    """Rows of one block."""
    found = x[part] if rows is None else x[part].index_select(0, rows.to(x.device))
    return found.to(like)


def block_size(device: torch.device, block: int | None) -> int:
    """The block that was asked for, or one that suits the device."""
    return block or (GPU_BLOCK if device.type == "cuda" else BLOCK)


def soft_read(
    query: Tensor,
    keys: Tensor,
    values: Tensor | None = None,
    score: Score | str | None = None,
    *,
    temperature: float | Tensor = 1.0,
    allowed: Tensor | None = None,
    block: int | None = None,
) -> SoftRead:
    """Exact attention of the queries over all keys; the same as `regard.attend` in one piece.

    Gradients reach queries, the score's parameters and the temperature, and, if they ask for one, keys and values,
    whose gradients are as large as they are. There is no second derivative.

    Args:
        query: (Q, D).
        keys: (N, D), of any dtype and device.
        values: (N, V); None for the keys themselves.
        score: as in `regard.attention`, with one head.
        temperature: more than 0, a number or a tensor of one.
        allowed: (N,) boolean, True for the keys that may be attended to; None for all. A query without any has
            output 0 and LSE -inf.
        block: keys that are in work at once.
    """
    blocks = Blocks(keys, values, allowed, block_size(query.device, block))
    own = score if isinstance(score, Score) else None
    parameters = () if own is None else tuple(own.parameters())
    output, lse = BlockwiseRead.apply(query, keys, values, temperature, score, blocks, *parameters)  # type: ignore[not-iterable]
    return SoftRead(output, lse)


class BlockwiseRead(torch.autograd.Function):
    """Forward keeps output and LSE alone; backward visits every block again."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor | None, temperature: Any,
                score: Any, blocks: Blocks, *parameters: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The merged output and LSE."""
        width = (keys if values is None else values).shape[-1]
        output, lse = query.new_zeros(len(query), width), query.new_full((len(query),), -torch.inf)
        for rows, part in blocks.each():
            key, value = blocks.take(rows, part, query)
            found = attended(query, key, value, score, temperature)
            total = torch.logaddexp(lse, found.lse)
            output = output * (lse - total).exp().unsqueeze(-1)
            output += found.output * (found.lse - total).exp().unsqueeze(-1)
            lse = total
        ctx.save_for_backward(query, output, lse, *parameters)
        ctx.given = (keys, values, temperature, score, blocks)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[bad-override] # its decorator hides names
        """Gradients of all inputs that need one, summed over blocks.

        With w = exp(lse of the block - lse), the output is the sum of w times the outputs of blocks.
        """
        query, output, lse, *_ = ctx.saved_tensors
        keys, values, temperature, score, blocks = ctx.given
        by_output, by_lse = grad_outputs
        parameters = list(score.parameters()) if isinstance(score, Score) else []
        need = ctx.needs_input_grad
        wanted = [need[0], need[3], *need[6:]]
        sums = [
            torch.zeros_like(x) if w else None
            for x, w in zip((query, temperature, *parameters), wanted, strict=True)
        ]
        of_keys = torch.zeros_like(keys) if need[1] else None
        of_values = torch.zeros_like(values) if need[2] else None
        for rows, part in blocks.each():
            with torch.enable_grad():
                key, value = (x.detach() for x in blocks.take(rows, part, query))
                key.requires_grad_(need[1])
                value = key if values is None else value.requires_grad_(need[2])
                inputs = [leaf(query, wanted[0]), leaf(temperature, wanted[1]), *parameters]
                found = attended(inputs[0], key, value, score, inputs[1])
            weight = (found.lse - lse).exp()
            moved = (by_output * (found.output - output)).sum(-1)
            pulls = (by_output * weight.unsqueeze(-1), weight * (by_lse + moved))
            asked = [*inputs, key, value]
            asking = [*wanted, need[1], need[2]]
            pulled = iter(
                torch.autograd.grad(
                    found, [x for x, w in zip(asked, asking, strict=True) if w], pulls,
                    allow_unused=True,
                )
            )  # fmt: skip
            for total in sums:
                if total is not None and (one := next(pulled)) is not None:
                    total.add_(one)
            for total in (of_keys, of_values):
                if total is not None and (one := next(pulled)) is not None:
                    add_rows(total, rows, part, one)
        return sums[0], of_keys, of_values, sums[1], None, None, *sums[2:]


def add_rows(total: Tensor, rows: Tensor | None, part: slice, one: Tensor) -> None:
    """Add the gradient of one block at its rows."""
    one = one.to(total)
    if rows is None:
        total[part] += one
    else:
        total[part].index_add_(0, rows.to(total.device), one)


def leaf(x: Any, wanted: bool) -> Any:
    """A tensor that gradients end at, where one is wanted."""
    return x.detach().requires_grad_(wanted) if isinstance(x, Tensor) else x


def attended(query: Tensor, key: Tensor, value: Tensor, score: Any, temperature: Any) -> SoftRead:
    """Output and LSE of one block."""
    found = regard.attend(query, key, value, score, temperature=temperature)
    assert found.lse is not None
    return SoftRead(found.output, found.lse)


@torch.no_grad()
def best_keys(
    query: Tensor,
    keys: Tensor,
    count: int,
    score: Score | str | None = None,
    *,
    allowed: Tensor | None = None,
    block: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The logits (Q, K) of the best keys of each query, the greatest first, and their rows (Q, K).

    Exact for every score, additive too. Args are those of `soft_read`; fewer than `count` keys give fewer columns.
    """
    blocks = Blocks(keys, None, allowed, block_size(query.device, block))
    logits = query.new_empty(len(query), 0)
    places = torch.empty(len(query), 0, dtype=torch.long, device=query.device)
    for rows, part in blocks.each():
        key, _ = blocks.take(rows, part, query)
        own = torch.arange(part.start, part.stop, device=query.device)
        own = own if rows is None else own[rows.to(own.device)]
        for_all = [best_of_block(some, key, own, count, score) for some in query.split(QUERIES)]
        logits = torch.cat([logits, torch.cat([one for one, _ in for_all])], 1)
        places = torch.cat([places, torch.cat([one for _, one in for_all])], 1)
        logits, kept = logits.topk(min(count, logits.shape[1]), 1)
        places = places.gather(1, kept)
    return logits, places


def best_of_block(
    query: Tensor, key: Tensor, rows: Tensor, count: int, score: Score | str | None
) -> tuple[Tensor, Tensor]:
    """The best keys of one block, and their rows among all keys."""
    logits, best = regard.score(query, key, score).topk(min(count, len(key)), 1)
    return logits, rows[best]
