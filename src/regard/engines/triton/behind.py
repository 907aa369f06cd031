"""Exact additive attention that runs by a flag on the device: the fallback of engine "sine".

Every kernel reads the flag first. Where the series holds, a call costs a few empty launches; where it
does not, the exact result overwrites the approximate one. The host never waits for the device.

Shape legend: see `regard.engines.sine_features.parts`; Z = B H.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.hiding import Hiding
from regard.engines.launching import (
    REMEMBERED,
    Address,
    Launch,
    Pieces,
    addresses,
    current_stream,
    filling,
    sizes_between,
)
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments

# For one program: rows whose shift it computes, rows it collects, numbers it clears, numbers it sums.
ROWS_SHIFTED, ROWS_COLLECTED, NUMBERS_CLEARED, NUMBERS_SUMMED = 16, 32, 4096, 1024
INT, FLOAT = torch.int32, torch.float32
# The fields of `Hiding` that are ends of spans, which all heads may share.
SPANS = ("start", "stop")


class Behind:
    """`regard.engines.sine_features.parts.ExactFallback` by the kernels of this folder."""

    def attend(
        self,
        skip: Address,
        a: Tensor,
        b: Tensor,
        weight: Address,
        value: Tensor,
        hiding: Hiding,
        output: Tensor,
    ) -> None:
        """Write the output (B, H, Q, D) in place."""
        bound = standby(fallback_signature(a, b, value, hiding))
        # Addresses do not keep memory alive: these names do, until the launch is queued.
        memory, value, masks = bound.rows.new(a.device), bound.packed(value), bound.masks(hiding)
        q, k, values, into, *hides = addresses(a, b, value, output, *masks)
        bound.forward(
            current_stream(a.device),
            (q, k, weight, values, skip, into, *bound.rows.cut(memory), *hides),
        )

    def backward(
        self,
        skip: Address,
        grad: Tensor,
        a: Tensor,
        b: Tensor,
        weight: Address,
        value: Tensor,
        rate: float,
        hiding: Hiding,
        grad_a: Tensor,
        grad_b: Tensor,
        grad_v: Tensor,
        grad_value: Tensor,
    ) -> None:
        """Write the gradients in place, after a forward of its own for the statistics of each row."""
        bound, stream = standby(fallback_signature(a, b, value, hiding)), current_stream(a.device)
        memory, value, masks = bound.sums.new(a.device), bound.packed(value), bound.masks(hiding)
        grad = grad.contiguous()
        output, tail, peak, shift, *sums = bound.sums.cut(memory)
        q, k, values, given, *hides = addresses(a, b, value, grad, *masks)
        known = (q, k, weight, values, skip)
        ready, back, collect = bound.of_gradient(grad.dtype, grad_v.dtype)
        bound.forward_again(stream, (*known, output, tail, peak, *hides))
        ready(stream, (given, output, shift, sums[0], skip))
        back(stream, (*known, given, peak, tail, shift, *sums, *hides))
        results = addresses(grad_a, grad_b, grad_v, grad_value)
        collect(stream, (*sums, *results, skip), rate)


class FallbackSignature(NamedTuple):
    """The shapes, strides, dtypes, device and masks that calls share to use the same launches.

    `hides` are the fields of `Hiding` that are tensors here, `spans` the number of heads that have a
    span of their own, 1 if all share it.
    """

    a: torch.Size
    a_stride: tuple[int, ...]
    b: torch.Size
    b_stride: tuple[int, ...]
    value: torch.Size
    value_stride: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    hides: tuple[str, ...]
    spans: int
    dropout: float
    device: torch.device


def fallback_signature(a: Tensor, b: Tensor, value: Tensor, hiding: Hiding) -> FallbackSignature:
    """The signature of this call."""
    shapes = (a.shape, a.stride(), b.shape, b.stride(), value.shape, value.stride())
    ends = [x.shape[0] for x in (hiding.start, hiding.stop) if x is not None]
    hides = hiding.names(with_stop=hiding.causal)
    return FallbackSignature(
        *(*shapes, (a.dtype, b.dtype, value.dtype), hides, max(ends, default=1)),
        *(hiding.dropout, a.device),
    )


class Standby:
    """The bound launches for all calls of one signature."""

    def __init__(self, signature: FallbackSignature) -> None:
        # Not at the top of the file: `import regard` works without Triton.
        from regard.engines.triton import choices, prepare

        self.choices, self.signature = choices, signature
        self.args = arguments(signature)
        ((form, self.name, self.units),) = prepare.direct(self.args)
        # Templates: everything but the addresses of a call is fixed here.
        self.form = filling(form, "q", "k", "v")
        self.pairs = prepare.pairs(self.args)
        seeded = ("seed",) if "seed" in signature.hides else ()
        self.values = filling(prepare.values(self.args), "value", *seeded)
        self.hidden_by = filling(self.pairs, *(x for x in signature.hides if x != "seed"))
        given = self.args.value
        # Decided once: strides of the values are part of the signature.
        self.is_packed = prepare.packed(given) is given
        self.sizes = choices.sizes(self.args)
        self.dtypes = (*signature.dtypes[:2], FLOAT, signature.dtypes[2], INT)
        self.mask_dtypes = tuple(INT if x in SPANS else torch.int64 for x in signature.hides)
        self.batch, self.heads, self.queries, self.hidden = signature.a
        self.keys, self.dims = signature.value[-2:]
        total = self.batch * self.heads
        # Tail and largest logit, which the forward kernel writes and `attend` does not need.
        row = (total * self.queries, FLOAT)
        self.rows = Pieces(row, row)
        self.bind_forward()
        self.bind_backward(total)

    def packed(self, value: Tensor) -> Tensor:
        """The values with their last two dims dense, as the kernels need them."""
        return value if self.is_packed else value.contiguous()

    def masks(self, hiding: Hiding) -> list[Tensor]:
        """The tensors that hide pairs or drop weights, in the order of `signature.hides`."""
        if hiding.causal and hiding.stop is None:
            ends = torch.arange(1, self.queries + 1, dtype=INT, device=self.signature.device)
            hiding = hiding._replace(stop=ends)
        return hiding.tensors()

    def operands(self, q, k, v, value, masks) -> tuple:
        """The first arguments of both kernels."""
        if "seed" in self.signature.hides:
            *masks, seed = masks
            values = self.values(value, seed)
        else:
            values = self.values(value)
        return self.form(q, k, v), self.hidden_by(*masks), *self.sizes, values

    def bind_forward(self) -> None:
        """Bind two launches of the forward: one to the output, one in fp32 for the backward."""
        from regard.engines.triton.forward import forward_kernel

        choices, args = self.choices, self.args
        sides = choices.forward_tile(args)

        def arguments(q, k, v, value, skip, output, tail, peak, *masks) -> tuple:
            return (*self.operands(q, k, v, value, masks), skip, output, tail, None, peak)

        tile = choices.tile(args, sides, self.name, self.units, self.pairs)
        programs = self.batch * self.heads * blocks_in(self.queries, sides[0])
        constants = (tile, choices.chunk(self.units), False)
        self.forward, self.forward_again = (
            Launch(
                *(forward_kernel, programs, (*self.dtypes, dtype, FLOAT, FLOAT, *self.mask_dtypes)),
                *(arguments, constants),
                num_warps=sides[2],
            )
            for dtype in (self.signature.dtypes[2], FLOAT)
        )

    def bind_backward(self, total: int) -> None:
        """Lay out the sums of the backward; its launches are bound when dtypes of gradients are known."""
        from regard.engines.triton.buffers import GradientBuffers

        # On "meta", for the shapes alone; the sums of a call are in `self.sums`.
        grads = GradientBuffers(self.args, True, False, None).pointers()
        shapes = [tuple(x.shape) for x in (grads.q, grads.k, grads.v, grads.value)]
        self.grads = filling(grads, "q", "k", "v", "value")
        # Output, tail, largest logit and shift of its own forward, then the sums of q, k, v and value.
        counts = [total * self.queries * self.dims, *[total * self.queries] * 3]
        counts += [math.prod(shape) for shape in shapes]
        self.sums = Pieces(*((count, FLOAT) for count in counts))
        self.steps = (shapes[0][1], shapes[0][2], shapes[1][2])
        self.of_gradient = functools.lru_cache(maxsize=4)(self.bind_gradient)

    def bind_gradient(self, dtype: torch.dtype, of_v: torch.dtype) -> tuple[Launch, ...]:
        """The launches of the backward for grad_out in `dtype` and the gradient of v in `of_v`."""
        from regard.engines.triton.backward import backward_kernel
        from regard.engines.triton.flagged import ready_kernel
        from regard.engines.triton.structs import BackwardRows

        choices, args = self.choices, self.args
        # The sums begin at piece 4 and are cleared up to the end of the allocation.
        rows, count = self.batch * self.heads * self.queries, self.sums.words - self.sums.starts[4]
        blocks = blocks_in(rows, ROWS_SHIFTED)

        def ready_arguments(grad, output, shift, sums, skip) -> tuple:
            rest = (None, None, None, shift, sums, skip)
            return (grad, output, *rest, rows, self.dims, count, blocks)

        ready = Launch(
            *(ready_kernel, blocks + blocks_in(count, NUMBERS_CLEARED)),
            (dtype, FLOAT, FLOAT, FLOAT, INT),
            *(ready_arguments, (ROWS_SHIFTED, power_of_two(self.dims), NUMBERS_CLEARED)),
        )
        sides = choices.backward_tile(args)
        programs = self.batch * self.heads * blocks_in(self.keys, sides[1])
        parts = choices.query_parts(args, programs, sides)

        def arguments(
            a, b, weight, value, skip, grad, peak, tail, shift, by_q, by_k, by_v, by_value, *masks
        ) -> tuple:
            known = BackwardRows(grad=grad, peak=peak, tail=tail, shift=shift)
            grads = self.grads(by_q, by_k, by_v, by_value)
            return (*self.operands(a, b, weight, value, masks), known, grads, skip, parts)

        tile = choices.tile(args, sides, self.name, self.units, self.pairs, backward=True)
        back = Launch(
            *(backward_kernel, programs * parts),
            (*self.dtypes, dtype, *[FLOAT] * 7, *self.mask_dtypes),
            *(arguments, (tile, choices.chunk(self.units))),
            num_warps=sides[2],
        )
        return ready, back, self.bind_collecting(of_v)

    def bind_collecting(self, of_v: torch.dtype) -> Launch:
        """The launch that turns the sums into gradients."""
        from regard.engines.triton.flagged import collect_kernel, collected_sizes

        total, shared = self.batch * self.heads, self.args.sizes[2]
        sizes = collected_sizes(
            *(self.batch, self.heads, shared, self.queries, self.keys),
            *(self.steps, self.hidden, self.dims),
        )
        programs = total * blocks_in(self.queries, ROWS_COLLECTED) + self.heads * self.hidden
        programs += 2 * (total // shared) * blocks_in(self.keys, ROWS_COLLECTED)
        wide = (min(power_of_two(n), 64) for n in (self.hidden, self.dims))
        a, b, value = self.signature.dtypes
        return Launch(
            *(collect_kernel, programs, (*[FLOAT] * 4, a, b, of_v, value, INT)),
            *(sizes_between(9, *sizes), (ROWS_COLLECTED, *wide, NUMBERS_SUMMED)),
        )


@functools.lru_cache(maxsize=REMEMBERED)
def standby(signature: FallbackSignature) -> Standby:
    """The launches of a signature, bound once."""
    return Standby(signature)


def arguments(signature: FallbackSignature) -> Arguments:
    """The `Arguments` of a call of this signature on "meta", with query heads grouped by key head."""
    (batch, heads, queries, units), (_, groups, keys, _) = signature.a, signature.b
    shared = heads // groups

    def like(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    def mask(name: str, queries: int, keys: int) -> Tensor | None:
        if name not in signature.hides:
            return None
        lead = (1, 1, 1) if name in SPANS and signature.spans == 1 else (batch, groups, shared)
        dtype = INT if name in SPANS else torch.int64
        return torch.empty(*lead, queries, keys, dtype=dtype, device="meta")

    seeded = "seed" in signature.hides
    return Arguments(
        q=like(signature.a, signature.a_stride, signature.dtypes[0]).unflatten(1, (groups, shared)),
        k=like(signature.b, signature.b_stride, signature.dtypes[1]).unsqueeze(2),
        value=like(signature.value, signature.value_stride, signature.dtypes[2]).unsqueeze(2),
        v=torch.empty(1, groups, shared, 1, units, dtype=torch.float32, device="meta"),
        alpha=None,
        beta=None,
        rate=None,
        bias=None,
        dense=None,
        start=mask("start", queries, 1),
        stop=mask("stop", queries, 1),
        query_segment=mask("query_segment", queries, 1),
        key_segment=mask("key_segment", 1, keys),
        seed=torch.empty((), dtype=torch.int64, device="meta") if seeded else None,
        numbers=torch.tensor([1.0, 0.0, signature.dropout, 0.0], dtype=torch.float64, device="cpu"),
        sizes=[batch, groups, shared, queries, keys],
        activation="tanh",
    )
