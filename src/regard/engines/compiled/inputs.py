"""`TileInputs`: the arguments of an operator as the arrays that kernels read.

Shape legend: N distinct (batch, group, head) slices of a tensor that broadcasts; Q queries, L keys, E hidden
units, D value dim, padded with zeros to a multiple of 8. `places` says which slice each head reads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.engines.native import run
from regard.engines.tiled import Arguments

# Queries and keys of a tile. Scores and weights of a tile (64 KiB each) stay in a core's own cache of 1 MiB;
# half as many keys take 1.3 times as long in the products, twice as many queries 2 to 4 times.
TILE_QUERIES = 32
TILE_KEYS: int = 512
# Blocks of a pass. Threads take one after the other: with 32 the last one to finish keeps the others waiting
# for a few percent of the time. Their number follows from the shape, never from the threads.
BLOCKS = 32
# Kinds of activation: tanh by exponentials, tanh by itself, LeakyReLU.
BY_EXPONENTIALS, BY_TANH, BY_SLOPE = 0, 1, 2
# With both sides below it no exponential and no product of two leaves the range of fp32, where
# tanh(a + b) = 1 - 2 / (1 + e^2a e^2b) would be wrong: 0.45 of the logarithm of the largest number.
MODERATE = 0.45 * math.log(torch.finfo(torch.float32).max)
# Columns of `places`.
A, B, V, VALUE, RATE, BIAS, DENSE, START, STOP, OWN, OTHER = range(11)


class TileInputs(NamedTuple):
    """One call. Arrays are contiguous, fp32 unless said; one with no slices is absent."""

    a: np.ndarray  # (N, Q, E), or e^2a
    b: np.ndarray  # (N, E, L), or e^2b
    v: np.ndarray  # (N, E)
    value: np.ndarray  # (N, D, L)
    rate: np.ndarray  # (N, Q or 1)
    bias: np.ndarray  # (N, Q or 1, L or 1)
    dense: np.ndarray  # bool (N, Q or 1, L or 1)
    start: np.ndarray  # int64 (N, Q or 1)
    stop: np.ndarray  # int64 (N, Q or 1)
    own: np.ndarray  # segments of queries, int64 (N, Q or 1)
    other: np.ndarray  # segments of keys, int64 (N, L or 1)
    places: np.ndarray  # int64 (heads, 11)
    kind: int
    careful: bool  # something is NaN or Inf, so that 0 times it must be avoided
    parameter: np.float32
    softcap: np.float32  # 0 for none
    threshold: np.uint32  # of dropout, 0 for none
    scale: np.float32  # of the weights that dropout keeps
    seed: np.uint64
    queries: int
    keys: int
    width: int  # keys of a tile


def flat(x: Tensor | None, dtype: torch.dtype, *, columns: bool = True) -> np.ndarray:
    """(B, K, G, rows, columns) as (N, rows, columns), or (N, rows) without columns; empty for None."""
    if x is None:
        return torch.empty((0, 1, 1) if columns else (0, 1), dtype=dtype).numpy()
    # Sizes in full: with an empty dim beside it -1 could be any.
    last = x.shape[3:] if columns else (math.prod(x.shape[3:]),)
    return x.detach().to(dtype).reshape(math.prod(x.shape[:3]), *last).contiguous().numpy()


def turned(x: np.ndarray, multiple: int = 1) -> np.ndarray:
    """(N, rows, columns) as (N, columns, rows), with rows of zeros up to a multiple."""
    from regard.engines.compiled.turning import turn

    slices, rows, columns = x.shape
    out = np.empty((slices, columns + -columns % multiple, rows), np.float32)
    out[:, columns:] = 0
    step = -(-slices // BLOCKS)
    run(lambda i: turn(x, out, i * step, min((i + 1) * step, slices)), -(-slices // max(step, 1)))
    return out


def places_of(args: Arguments) -> np.ndarray:
    """Which slice of each tensor each of the B * K * G heads reads."""
    shape = tuple(args.sizes[:3])
    tensors = (
        args.q, args.k, args.v, args.value, args.rate, args.bias, args.dense, args.start, args.stop,
        args.query_segment, args.key_segment,
    )  # fmt: skip
    found = np.zeros((math.prod(shape), len(tensors)), dtype=np.int64)
    for column, x in enumerate(tensors):
        if x is not None:
            own = np.arange(math.prod(x.shape[:3])).reshape(x.shape[:3])
            found[:, column] = np.broadcast_to(own, shape).reshape(-1)
    return found


def read(args: Arguments, *grads: Tensor | None) -> TileInputs:
    """The arguments of an operator for the kernels; `grads` are looked at for NaN and Inf."""
    _, softcap, dropout, parameter = args.numbers.tolist()
    assert args.v is not None, "the form is pairwise"
    a, b = args.q.detach().float(), args.k.detach().float()
    most = max((largest(x) for x in (a, b)), key=lambda x: (math.isnan(x), x))
    kind = BY_SLOPE if args.activation == "leaky_relu" else BY_TANH
    if kind == BY_TANH and most < MODERATE:
        kind = BY_EXPONENTIALS
        a, b = torch.exp(2 * a), torch.exp(2 * b)
    careful = not all(math.isfinite(largest(x)) for x in (args.value, *grads) if x is not None)
    f32 = torch.float32
    return TileInputs(
        flat(a, f32),
        turned(flat(b, f32)),
        flat(args.v, f32, columns=False),
        turned(flat(args.value, f32), multiple=8),
        flat(args.rate, f32, columns=False),
        flat(args.bias, f32),
        flat(args.dense, torch.bool),
        flat(args.start, torch.int64, columns=False),
        flat(args.stop, torch.int64, columns=False),
        flat(args.query_segment, torch.int64, columns=False),
        flat(args.key_segment, torch.int64, columns=False),
        places_of(args),
        kind,
        careful or not math.isfinite(most),
        np.float32(parameter),
        np.float32(softcap),
        np.uint32(min(round(dropout * 2**32), 2**32 - 1)),
        np.float32(1 / (1 - dropout)),
        np.uint64(0 if args.seed is None else int(args.seed)),
        args.sizes[3],
        args.sizes[4],
        TILE_KEYS,
    )


def largest(x: Tensor) -> float:
    """The largest absolute value, NaN if one is."""
    if x.numel() == 0:
        return 0.0
    low, high = x.detach().aminmax()
    return max(-float(low), float(high)) if low == low else math.nan
