"""Forward and backward over features: launches of the two kernels, and library products.

Shape legend: Z heads, Q queries, L keys, W width of the features, X width of the values. All tensors are
contiguous; features, values and gradients are in fp16, the LSE in fp32.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.gpu import generation
from regard.engines.hiding import TENSOR_FIELDS, Hiding
from regard.engines.launching import (
    REMEMBERED,
    Launch,
    addresses,
    current_stream,
    has_addresses,
    sizes_between,
)
from regard.engines.sizes import blocks_in
from regard.engines.wide.sizes import (
    PAIR_BYTES,
    ROWS_SUMMED,
    SLOPE_SCALE,
    WEIGHT_SCALE,
    WideTile,
    aligned,
    chunk_rows,
    tile_for,
)

HALF, FLOAT = torch.float16, torch.float32


class Wide:
    """Attention over features; see `regard.engines.sine_features.parts.WideAttention`."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, hiding: Hiding, head: int, out: Tensor, lse: Tensor
    ) -> None:
        """Write the output (Z, Q, X) and the LSE (Z, Q); `head` is the number of the first head."""
        launch = attend_launch(signature_of(q, k, v, hiding))
        pointers = addresses(q, k, v, out, lse, *hiding.tensors())
        launch(current_stream(q.device), pointers, head)

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hiding: Hiding,
        head: int,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v in fp16, from `out` and `lse` as the forward wrote them."""
        signature = signature_of(q, k, v, hiding)
        (heads, queries, _), keys = q.shape, k.shape[1]
        by_q, by_k, by_v = (torch.empty_like(x) for x in (q, k, v))
        chunk = chunk_rows(heads, queries, keys, hiding.causal)
        memory = q.new_empty(2 * heads * chunk * aligned(keys))
        stream, masks = current_stream(q.device), hiding.tensors()
        along = torch.empty_like(lse)
        along_launch(heads * queries, v.shape[2], q.device)(stream, addresses(grad, out, along))
        later = 0  # 1 once the gradients of keys hold something to add to
        # The last queries first: under a causal mask they see every key, the others only the first ones.
        for first in reversed(range(0, queries, chunk)):
            rows = min(chunk, queries - first)
            seen = min(first + rows, keys) if hiding.causal else keys
            p, slope = matrices(memory, heads, rows, seen)
            launch = slopes_launch(signature, rows, seen)
            pointers = addresses(q, k, v, grad, along, lse, p, slope, *masks)
            launch(stream, pointers, head, first)
            p, slope, here = p[..., :seen], slope[..., :seen], slice(first, first + rows)
            # What alpha undoes is undone before the result is rounded.
            add_product(by_q[:, here], slope, k[:, :seen], 0, 1 / SLOPE_SCALE)
            add_product(by_k[:, :seen], slope.mT, q[:, here], later, 1 / SLOPE_SCALE)
            undo = 1 / WEIGHT_SCALE / (1 - hiding.dropout)
            add_product(by_v[:, :seen], p.mT, grad[:, here], later, undo)
            later = 1
        return by_q, by_k, by_v

    def workspace(self, heads: int, queries: int, keys: int) -> int:
        """Bytes that a backward over so many heads takes besides its arguments and results."""
        rows = chunk_rows(heads, queries, keys, False)
        return heads * (PAIR_BYTES * rows * aligned(keys) + FLOAT.itemsize * queries)


def add_product(total: Tensor, x: Tensor, y: Tensor, beta: int, alpha: float) -> None:
    """`total = beta total + alpha x @ y` in place; with beta 0 whatever it held is not read."""
    torch.baddbmm(total, x, y, beta=beta, alpha=alpha, out=total)


def matrices(memory: Tensor, heads: int, rows: int, keys: int) -> tuple[Tensor, Tensor]:
    """Weights and gradients of logits of a chunk, (Z, rows, aligned keys) each, in the memory of both."""
    step = aligned(keys)
    count = heads * rows * step
    shape = (heads, rows, step)
    return memory[:count].view(shape), memory[count : 2 * count].view(shape)


class WideSignature(NamedTuple):
    """What calls share that use the same launches. `spans` says whether each head has its own span."""

    heads: int
    queries: int
    keys: int
    features: int
    columns: int
    causal: bool
    spans: bool
    masks: tuple[str, ...]
    dropout: float
    device: torch.device


def signature_of(q: Tensor, k: Tensor, v: Tensor, hiding: Hiding) -> WideSignature:
    """The signature of a call."""
    ends = [x for x in (hiding.start, hiding.stop) if x is not None]
    (heads, queries, features), keys, columns = q.shape, k.shape[1], v.shape[2]
    spans = any(x.shape[0] > 1 for x in ends)
    masks = (hiding.names(), hiding.dropout, q.device)
    return WideSignature(*(heads, queries, keys, features, columns, hiding.causal, spans, *masks))


def tile_of(s: WideSignature, slopes: bool = False) -> WideTile:
    """The tile for these calls, of the forward or of the backward."""
    compiled = has_addresses(s.device)
    number = generation(s.device.index) if compiled else 0
    return tile_for(number, not compiled, s.columns, slopes, s.dropout > 0)


@functools.lru_cache(maxsize=REMEMBERED)
def attend_launch(s: WideSignature) -> Launch:
    """The launch of the forward, of q, k, v, out, lse and masks, and the first head."""
    # Not at the top of the file: `import regard` works without Triton.
    from regard.engines.wide.kernels import attend_kernel

    tile = tile_of(s)
    blocks = blocks_in(s.queries, tile.queries)
    return launch_of(
        *(attend_kernel, s, tile, s.heads * blocks, (HALF,) * 4 + (FLOAT,)),
        (s.queries, s.keys, blocks, s.queries if s.spans else 0, s.dropout),
    )


@functools.lru_cache(maxsize=REMEMBERED)
def slopes_launch(s: WideSignature, rows: int, seen: int) -> Launch:
    """The launch for a chunk of the backward, of the tensors, the first head and the first query."""
    from regard.engines.wide.kernels import slopes_kernel

    tile = tile_of(s, slopes=True)
    programs = s.heads * blocks_in(rows, tile.queries) * blocks_in(seen, tile.keys)
    sizes = (s.queries, s.keys, rows, seen, aligned(seen), s.queries if s.spans else 0)
    return launch_of(
        *(slopes_kernel, s, tile, programs, (HALF,) * 4 + (FLOAT, FLOAT, HALF, HALF)),
        (*sizes, s.dropout, WEIGHT_SCALE, SLOPE_SCALE),
    )


@functools.lru_cache(maxsize=REMEMBERED)
def along_launch(rows: int, columns: int, device: torch.device) -> Launch:
    """The launch of the sums of grad times out."""
    from regard.engines.wide.kernels import along_kernel

    programs, dtypes = blocks_in(rows, ROWS_SUMMED), (HALF, HALF, FLOAT)
    sizes = sizes_between(len(dtypes), rows)
    return Launch(along_kernel, programs, dtypes, sizes, (columns, ROWS_SUMMED))


def launch_of(
    kernel, s: WideSignature, tile: WideTile, programs: int, dtypes: tuple, sizes: tuple
) -> Launch:
    """A launch of pointers and masks, then numbers of the call, then `sizes` and the tile."""
    mask_dtypes = {"start": torch.int32, "stop": torch.int32}
    dtypes = (*dtypes, *(mask_dtypes.get(name, torch.int64) for name in s.masks))
    own = len(dtypes) - len(s.masks)
    slots = [s.masks.index(name) if name in s.masks else None for name in TENSOR_FIELDS]

    def arguments(*operands) -> tuple:
        given = operands[own : len(dtypes)]
        masks = (None if slot is None else given[slot] for slot in slots)
        return (*operands[:own], *masks, *operands[len(dtypes) :], *sizes)

    constants = (s.features, s.columns, s.causal, *tile[:3])
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    if tile.registers is not None and has_addresses(s.device):
        options["maxnreg"] = tile.registers
    return Launch(kernel, programs, dtypes, arguments, constants, **options)
