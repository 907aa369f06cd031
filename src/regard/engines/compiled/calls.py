"""The operators of the `compiled` engine: cuts a call into blocks, runs them, and adds up what they leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.engines.base import jacobian_norm
from regard.engines.compiled.inputs import BIAS, BLOCKS, TILE_QUERIES, TileInputs, read, turned
from regard.engines.native import run
from regard.engines.tiled import Arguments

# Parts of the gradients of keys and values for each head: each is as large as the keys and values are.
PARTS = 8


class Block(NamedTuple):
    """What one thread does at a time: a chunk of the queries of some heads."""

    heads: np.ndarray
    chunk: int
    begin: int
    end: int


def blocks_of(
    args: Arguments, most: int = BLOCKS, groups: list[list[int]] | None = None
) -> tuple[list[Block], int]:
    """About `BLOCKS` blocks, and the number of chunks, at most `most`, that the queries are cut into.

    Heads that share a slice of a learned bias are one group and in one block, for they add to the same numbers.
    """
    count, queries = math.prod(args.sizes[:3]), args.sizes[3]
    groups = [[head] for head in range(count)] if groups is None else groups
    tiles = -(-queries // TILE_QUERIES)
    chunks = max(min(-(-BLOCKS // max(len(groups), 1)), tiles, most), 1)
    step = max(-(-tiles // chunks) * TILE_QUERIES, 1)
    ends = [(begin, min(begin + step, queries)) for begin in range(0, queries, step)]
    together = max(len(groups) // BLOCKS, 1)
    blocks = [
        Block(np.array([*chain(*groups[i : i + together])], np.int64), chunk, begin, end)
        for i in range(0, len(groups), together)
        for chunk, (begin, end) in enumerate(ends)
    ]
    return blocks, max(len(ends), 1)


def for_each_block(args: Arguments, work: Callable[[Block], None]) -> None:
    """Run `work` on every block of queries."""
    blocks, _ = blocks_of(args)
    run(lambda i: work(blocks[i]), len(blocks))


def rows_like(args: Arguments, *last: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A new tensor (B, K, G, Q, ...) of zeros."""
    return torch.zeros(*args.sizes[:4], *last, dtype=dtype)


def by_head(x: Tensor | None, args: Arguments, dtype: torch.dtype = torch.float32) -> np.ndarray:
    """(B, K, G, Q, ...) as an array (heads, Q, ...); without heads for None."""
    heads, queries = math.prod(args.sizes[:3]), args.sizes[3]
    if x is None:
        return torch.empty(0, queries, dtype=dtype).numpy()
    return x.detach().to(dtype).reshape(heads, queries, *x.shape[4:]).contiguous().numpy()


def attend(args: Arguments, entropy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, tail, entropy and largest logit of each query."""
    from regard.engines.compiled.forward import forward_heads

    x = read(args)
    output = rows_like(args, args.value.shape[-1])
    tail, spread = rows_like(args, dtype=torch.float64), rows_like(args)
    peak = rows_like(args)
    places = by_head(output, args), by_head(tail, args, torch.float64), by_head(spread, args)
    top = by_head(peak, args)

    def work(block: Block) -> None:
        forward_heads(x, block.heads, block.begin, block.end, entropy, *places, top)

    for_each_block(args, work)
    return output, tail, spread, peak


def output(args: Arguments) -> Tensor:
    """The output alone; it takes as long as with statistics."""
    return attend(args, False)[0]


def attend_backward(
    args: Arguments,
    grad: Tensor,
    output: Tensor,
    peak: Tensor,
    tail: Tensor,
    grad_tail: Tensor | None,
    spread: Tensor | None,
    grad_spread: Tensor | None,
    bias_gradient: bool,
) -> tuple[Tensor, ...]:
    """All gradients; every tile is computed again."""
    from regard.engines.compiled.backward import Gradients, RowInputs, backward_heads

    x, double = read(args, grad), torch.float64
    rows = RowInputs(
        by_head(grad, args),
        by_head(output, args),
        by_head(peak, args),
        by_head(tail, args, double),
        by_head(grad_tail, args, double),
        by_head(spread, args),
        by_head(grad_spread, args),
    )
    heads = math.prod(args.sizes[:3])
    blocks, chunks = blocks_of(args, PARTS, sharing(x, heads) if bias_gradient else None)
    form = form_gradients(x, heads, chunks)
    bias = np.zeros((0, 1, 1, 1), np.float32)
    if bias_gradient:
        slices, queries, keys = x.bias.shape
        bias = np.zeros((slices, chunks if queries == 1 else 1, queries, keys), np.float32)
    grads = Gradients(
        *form,
        np.zeros((heads * chunks, x.value.shape[1], x.keys), np.float32),
        np.zeros((heads if len(x.rate) else 0, x.queries), np.float32),
        bias,
    )

    def work(block: Block) -> None:
        own, chunk, begin, end = block
        backward_heads(x, rows, grads, own, chunk, chunks, begin, end)

    run(lambda i: work(blocks[i]), len(blocks))
    value = turned(added(grads.value, args, args.value))[..., : args.value.shape[-1]]
    of_value = torch.from_numpy(value).reshape(args.value.shape)
    rate = None if args.rate is None else added_rows(grads.rate, args, args.rate)
    of_bias = None
    if bias_gradient and args.bias is not None:
        of_bias = torch.from_numpy(bias.sum(1)).reshape(args.bias.shape)
    return returned(args, *of_form(form, args), of_value, rate, of_bias)


def form_gradients(
    x: TileInputs, heads: int, chunks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Zeros for the gradients of a, b and v."""
    units = x.a.shape[2]
    return (
        np.zeros((heads, x.queries, units), np.float32),
        np.zeros((heads * chunks, units, x.keys), np.float32),
        np.zeros((heads * chunks, units), np.float64),
    )


def sharing(x: TileInputs, heads: int) -> list[list[int]]:
    """The heads that read each slice of the bias."""
    groups: list[list[int]] = [[] for _ in range(len(x.bias))]
    for head in range(heads):
        groups[x.places[head, BIAS]].append(head)
    return groups


def added(parts: np.ndarray, args: Arguments, like: Tensor) -> np.ndarray:
    """Parts (heads * chunks, ...) added up to one for each slice of `like`, in their order.

    By NumPy, on one thread: the order in which PyTorch adds may depend on the number of threads.
    """
    chunks = len(parts) // max(math.prod(args.sizes[:3]), 1)
    split = parts.reshape(*args.sizes[:3], chunks, *parts.shape[1:])
    axes = tuple(i for i in range(3) if like.shape[i] == 1 and split.shape[i] != 1)
    total = split.sum((*axes, 3)) if axes or split.shape[3] != 1 else split
    return np.ascontiguousarray(total).reshape(math.prod(like.shape[:3]), *parts.shape[1:])


def added_rows(rows: np.ndarray, args: Arguments, like: Tensor) -> Tensor:
    """Gradients of rows (heads, Q, ...) added up to the shape of `like`."""
    split = rows.reshape(*args.sizes[:4], math.prod(rows.shape[2:]))
    axes = tuple(i for i in range(4) if like.shape[i] == 1 and split.shape[i] != 1)
    return torch.from_numpy(split.sum(axes) if axes else split).reshape(like.shape)


def of_form(
    form: tuple[np.ndarray, np.ndarray, np.ndarray], args: Arguments
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    assert args.v is not None
    a, b, v = form
    of_k = torch.from_numpy(turned(added(b, args, args.k))).reshape(args.k.shape)
    of_v = torch.from_numpy(added(v, args, args.v)).reshape(args.v.shape)
    return added_rows(a, args, args.q), of_k, of_v


def returned(
    args: Arguments,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    value: Tensor | None = None,
    rate: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of `Arguments.differentiable()` in the dtypes of the inputs, empty where there is none."""
    found = (q, k, value, v, None, None, rate, bias)
    return tuple(
        args.q.new_empty(0) if g is None or x is None else g.to(x.dtype).contiguous()
        for g, x in zip(found, args.differentiable(), strict=True)
    )


def best_keys(args: Arguments, hard: Tensor) -> Tensor:
    """The index of the best visible key of each hard row."""
    from regard.engines.compiled.passes import best_heads

    x, best = read(args), rows_like(args, dtype=torch.int64).fill_(-1)
    wanted = by_head(hard.expand(*args.sizes[:4], 1).squeeze(-1), args, torch.bool)
    found = by_head(best, args, torch.int64)

    def work(block: Block) -> None:
        best_heads(x, block.heads, block.begin, block.end, wanted, found)

    for_each_block(args, work)
    return best


def jacobian(args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor) -> Tensor:
    """The norm of the softmax Jacobian of each row."""
    from regard.engines.compiled.passes import jacobian_heads

    x, sums = read(args), rows_like(args, 3)
    given = tuple(by_head(t, args) for t in (peak, tail, share))
    found = by_head(sums, args)

    def work(block: Block) -> None:
        jacobian_heads(x, block.heads, block.begin, block.end, *given, found)

    for_each_block(args, work)
    largest = torch.where(peak == -torch.inf, 0, torch.exp(-tail) * share)
    return jacobian_norm(largest, left + sums[..., 0], sums[..., 1], sums[..., 2])


def scores(args: Arguments) -> Tensor:
    """Raw scores (B, K, G, Q, L)."""
    from regard.engines.compiled.passes import score_heads

    x, found = read(args), torch.empty(args.sizes)
    out = by_head(found, args)
    for_each_block(args, lambda block: score_heads(x, block.heads, block.begin, block.end, out))
    return found


def scores_backward(args: Arguments, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the form's inputs from the gradient of raw scores."""
    from regard.engines.compiled.passes import score_backward_heads

    x, given = read(args, grad), by_head(grad, args)
    blocks, chunks = blocks_of(args, PARTS)
    form = form_gradients(x, math.prod(args.sizes[:3]), chunks)

    def work(block: Block) -> None:
        own, chunk, begin, end = block
        score_backward_heads(x, own, chunk, chunks, begin, end, given, *form)

    run(lambda i: work(blocks[i]), len(blocks))
    return returned(args, *of_form(form, args))
