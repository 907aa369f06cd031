"""Exact additive attention behind a flag on the device, for engine "sine" to fall back to.

Every kernel looks at the flag first. Where the series holds, a call costs a few empty launches; where
it does not, the exact result is written over the approximate one. Nothing waits for the device.

Shape legend: see `regard.engines.sine.parts`; Z = B H.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.launching import (
    REMEMBERED,
    Launch,
    Pieces,
    Place,
    current_stream,
    filling,
    places,
    sizes_between,
)
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments

# Rows that one program takes products of, or collects; numbers that one clears, or sums up.
SHIFTED, COLLECTED, CLEARED, SUMMED = 16, 32, 4096, 1024
INT, FLOAT = torch.int32, torch.float32


class Behind:
    """What `regard.engines.sine.parts.Exact` asks for, by the kernels of this folder."""

    def attend(
        self,
        skip: Place,
        a: Tensor,
        b: Tensor,
        weight: Place,
        value: Tensor,
        causal: bool,
        output: Tensor,
    ) -> None:
        """The output (B, H, Q, D), in place."""
        plan = standby(kind_of(a, b, value, causal))
        # Places keep no memory alive: names do, to the end.
        memory, value, stop = plan.rows.new(a.device), plan.packed(value), plan.stop()
        q, k, values, into, *ends = places(a, b, value, output, *stop)
        plan.forward(
            current_stream(a.device),
            (q, k, weight, values, skip, into, *plan.rows.cut(memory), *ends),
        )

    def backward(
        self,
        skip: Place,
        grad: Tensor,
        a: Tensor,
        b: Tensor,
        weight: Place,
        value: Tensor,
        rate: float,
        causal: bool,
        grad_a: Tensor,
        grad_b: Tensor,
        grad_v: Tensor,
        grad_value: Tensor,
    ) -> None:
        """The gradients, in place; its own forward is computed again."""
        plan, stream = standby(kind_of(a, b, value, causal)), current_stream(a.device)
        memory, value, stop = plan.sums.new(a.device), plan.packed(value), plan.stop()
        grad = grad.contiguous()
        output, tail, peak, shift, *sums = plan.sums.cut(memory)
        q, k, values, given, *ends = places(a, b, value, grad, *stop)
        known = (q, k, weight, values, skip)
        ready, back, collect = plan.of_gradient(grad.dtype, grad_v.dtype)
        plan.forward_again(stream, (*known, output, tail, peak, *ends))
        ready(stream, (given, output, shift, sums[0], skip))
        back(stream, (*known, given, peak, tail, shift, *sums, *ends))
        results = places(grad_a, grad_b, grad_v, grad_value)
        collect(stream, (*sums, *results, skip), rate)


class Kind(NamedTuple):
    """What calls have to agree in to share their launches."""

    a: torch.Size
    a_stride: tuple[int, ...]
    b: torch.Size
    b_stride: tuple[int, ...]
    value: torch.Size
    value_stride: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    causal: bool
    device: torch.device


def kind_of(a: Tensor, b: Tensor, value: Tensor, causal: bool) -> Kind:
    """The kind of this call."""
    shapes = (a.shape, a.stride(), b.shape, b.stride(), value.shape, value.stride())
    return Kind(*shapes, (a.dtype, b.dtype, value.dtype), causal, a.device)


class Standby:
    """The launches of all calls of one kind."""

    def __init__(self, kind: Kind) -> None:
        # Not at the top of the file: `import regard` works without Triton.
        from regard.engines.triton import choices, prepare

        self.choices, self.kind = choices, kind
        self.args = arguments(kind)
        ((form, self.name, self.units),) = prepare.direct(self.args)
        self.form = filling(form, "q", "k", "v")
        self.pairs = prepare.pairs(self.args)
        self.values = filling(prepare.values(self.args), "value")
        given = self.args.value
        self.is_packed = prepare.packed(given) is given
        self.sizes = choices.sizes(self.args)
        self.dtypes = (*kind.dtypes[:2], FLOAT, kind.dtypes[2], INT)
        self.ends = (INT,) if kind.causal else ()
        self.batch, self.heads, self.queries, self.hidden = kind.a
        self.keys, self.dims = kind.value[-2:]
        total = self.batch * self.heads
        row = (total * self.queries, FLOAT)
        self.rows = Pieces(row, row)
        self.bind_forward()
        self.bind_backward(total)

    def packed(self, value: Tensor) -> Tensor:
        """The values as the kernels take them."""
        return value if self.is_packed else value.contiguous()

    def stop(self) -> tuple[Tensor, ...]:
        """Where the keys that a query sees end, if it does not see all."""
        if not self.kind.causal:
            return ()
        ends = torch.arange(1, self.queries + 1, dtype=torch.int32, device=self.kind.device)
        return (ends,)

    def operands(self, q, k, v, value, ends) -> tuple:
        """The first arguments of both kernels."""
        pairs = self.pairs._replace(stop=ends[0]) if ends else self.pairs
        return self.form(q, k, v), pairs, self.sizes, self.values(value)

    def bind_forward(self) -> None:
        """The launches of the forward: to the output, and once more for the backward."""
        from regard.engines.triton.forward import forward_kernel

        choices, args = self.choices, self.args
        sides = choices.forward_tile(args)

        def arguments(q, k, v, value, skip, output, tail, peak, *ends) -> tuple:
            return (*self.operands(q, k, v, value, ends), skip, output, tail, None, peak)

        tile = choices.tile(args, sides, self.name, self.units, self.pairs)
        programs = self.batch * self.heads * blocks_in(self.queries, sides[0])
        constants = (tile, choices.chunk(self.units), False)
        self.forward, self.forward_again = (
            Launch(
                *(forward_kernel, programs, (*self.dtypes, dtype, FLOAT, FLOAT, *self.ends)),
                *(arguments, constants),
                num_warps=sides[2],
            )
            for dtype in (self.kind.dtypes[2], FLOAT)
        )

    def bind_backward(self, total: int) -> None:
        """Where the backward adds up; its launches wait for dtypes."""
        from regard.engines.triton.buffers import GradientBuffers

        grads = GradientBuffers(self.args, True, False, None).pointers()
        shapes = [tuple(x.shape) for x in (grads.q, grads.k, grads.v, grads.value)]
        self.grads = filling(grads, "q", "k", "v", "value")
        counts = [total * self.queries * self.dims, *[total * self.queries] * 3]
        counts += [math.prod(shape) for shape in shapes]
        self.sums = Pieces(*((count, FLOAT) for count in counts))
        self.steps = (shapes[0][1], shapes[0][2], shapes[1][2])
        self.of_gradient = functools.lru_cache(maxsize=4)(self.bind_gradient)

    def bind_gradient(self, dtype: torch.dtype, of_v: torch.dtype) -> tuple[Launch, ...]:
        """The launches of the backward for grad_out in this dtype, and v in that."""
        from regard.engines.triton.backward import backward_kernel
        from regard.engines.triton.flagged import ready_kernel
        from regard.engines.triton.structs import Rows

        choices, args = self.choices, self.args
        rows, count = self.batch * self.heads * self.queries, self.sums.words - self.sums.starts[4]
        blocks = blocks_in(rows, SHIFTED)

        def ready_arguments(grad, output, shift, sums, skip) -> tuple:
            rest = (None, None, None, shift, sums, skip)
            return (grad, output, *rest, rows, self.dims, count, blocks)

        ready = Launch(
            *(ready_kernel, blocks + blocks_in(count, CLEARED)),
            (dtype, FLOAT, FLOAT, FLOAT, INT),
            *(ready_arguments, (SHIFTED, power_of_two(self.dims), CLEARED)),
        )
        sides = choices.backward_tile(args)
        programs = self.batch * self.heads * blocks_in(self.keys, sides[1])
        parts = choices.query_parts(args, programs, sides)

        def arguments(
            a, b, weight, value, skip, grad, peak, tail, shift, by_q, by_k, by_v, by_value, *ends
        ) -> tuple:
            known = Rows(grad=grad, peak=peak, tail=tail, shift=shift)
            grads = self.grads(by_q, by_k, by_v, by_value)
            return (*self.operands(a, b, weight, value, ends), known, grads, skip, parts)

        tile = choices.tile(args, sides, self.name, self.units, self.pairs, backward=True)
        back = Launch(
            *(backward_kernel, programs * parts),
            (*self.dtypes, dtype, *[FLOAT] * 7, *self.ends),
            *(arguments, (tile, choices.chunk(self.units))),
            num_warps=sides[2],
        )
        return ready, back, self.bind_collecting(of_v)

    def bind_collecting(self, of_v: torch.dtype) -> Launch:
        """The launch that makes gradients of what was added up."""
        from regard.engines.triton.flagged import collect_kernel, collected_sizes

        total, shared = self.batch * self.heads, self.args.sizes[2]
        sizes = collected_sizes(
            *(self.batch, self.heads, shared, self.queries, self.keys),
            *(self.steps, self.hidden, self.dims),
        )
        programs = total * blocks_in(self.queries, COLLECTED) + self.heads * self.hidden
        programs += 2 * (total // shared) * blocks_in(self.keys, COLLECTED)
        wide = (min(power_of_two(n), 64) for n in (self.hidden, self.dims))
        a, b, value = self.kind.dtypes
        return Launch(
            *(collect_kernel, programs, (*[FLOAT] * 4, a, b, of_v, value, INT)),
            *(sizes_between(9, *sizes), (COLLECTED, *wide, SUMMED)),
        )


@functools.lru_cache(maxsize=REMEMBERED)
def standby(kind: Kind) -> Standby:
    """The launches of a kind, made once."""
    return Standby(kind)


def arguments(kind: Kind) -> Arguments:
    """A call of this kind as operators take it, without memory: query heads in groups that share keys."""
    (batch, heads, queries, units), (_, groups, keys, _) = kind.a, kind.b
    shared = heads // groups

    def like(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    stop = None
    if kind.causal:
        stop = torch.empty(1, 1, 1, queries, 1, dtype=torch.int32, device="meta")
    return Arguments(
        q=like(kind.a, kind.a_stride, kind.dtypes[0]).unflatten(1, (groups, shared)),
        k=like(kind.b, kind.b_stride, kind.dtypes[1]).unsqueeze(2),
        value=like(kind.value, kind.value_stride, kind.dtypes[2]).unsqueeze(2),
        v=torch.empty(1, groups, shared, 1, units, dtype=torch.float32, device="meta"),
        alpha=None,
        beta=None,
        rate=None,
        bias=None,
        dense=None,
        start=None,
        stop=stop,
        query_segment=None,
        key_segment=None,
        seed=None,
        numbers=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64, device="cpu"),
        sizes=[batch, groups, shared, queries, keys],
        activation="tanh",
    )
