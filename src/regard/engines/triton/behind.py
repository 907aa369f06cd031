"""Exact additive attention behind a flag on the device, for engine "sine" to fall back to.

Every kernel looks at the flag first. Where the series holds, a call costs a few empty launches; where
it does not, the exact result is written over the approximate one. Nothing waits for the device.

Shape legend: see `regard.engines.sine.parts`; Z = B H.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.launching import Launch, Layout, Piece, current_stream
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments

# Rows that one program takes products of, or collects; numbers that one clears, or sums up.
SHIFTED, COLLECTED, CLEARED, SUMMED = 16, 32, 4096, 1024
# Kinds of calls whose launches are kept.
REMEMBERED = 256


class Behind:
    """What `regard.engines.sine.parts.Exact` asks for, by the kernels of this folder."""

    def attend(
        self,
        skip: Piece,
        a: Tensor,
        b: Tensor,
        weight: Piece,
        value: Tensor,
        causal: bool,
        output: Tensor,
    ) -> None:
        """The output (B, H, Q, D), in place."""
        plan = standby(kind_of(a, b, value, causal))
        tail, peak = plan.rows.cut(plan.rows.new(a.device))
        known = (a, b, weight, plan.packed(value), skip)
        plan.forward(current_stream(a.device), (*known, output, tail, peak, *plan.stop()))

    def backward(
        self,
        skip: Piece,
        grad: Tensor,
        a: Tensor,
        b: Tensor,
        weight: Piece,
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
        output, tail, peak, shift, *sums = plan.sums.cut(plan.sums.new(a.device))
        known = (a, b, weight, plan.packed(value), skip)
        stop, grad = plan.stop(), grad.contiguous()
        ready, back = plan.of_gradient(grad.dtype)
        plan.forward_again(stream, (*known, output, tail, peak, *stop))
        ready(stream, (grad, output, shift, sums[0], skip))
        back(stream, (*known, grad, peak, tail, shift, *sums, *stop))
        plan.collect(stream, (*sums, grad_a, grad_b, grad_v, grad_value, skip), rate)


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
        from regard.engines.triton import calls, prepare

        self.calls, self.kind = calls, kind
        self.args = arguments(kind)
        ((form, self.name, self.units),) = prepare.direct(self.args)
        self.form = form._replace(q=None, k=None, v=None)
        self.pairs = prepare.pairs(self.args)
        self.values = prepare.values(self.args)._replace(value=None)
        given = self.args.value
        self.is_packed = prepare.packed(given) is given
        self.batch, self.heads, self.queries, self.hidden = kind.a
        self.keys, self.dims = kind.value[-2:]
        total = self.batch * self.heads
        row = (total * self.queries, torch.float32)
        self.rows = Layout(row, row)
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

    def operands(self, q, k, v, value, stop) -> tuple:
        """The first arguments of both kernels."""
        pairs = self.pairs._replace(stop=stop[0]) if stop else self.pairs
        form = self.form._replace(q=q, k=k, v=v)
        return form, pairs, self.calls.sizes(self.args), self.values._replace(value=value)

    def bind_forward(self) -> None:
        """The launches of the forward: to the output, and once more for the backward."""
        calls, args = self.calls, self.args
        from regard.engines.triton.forward import forward_kernel

        sides = calls.forward_tile(args)

        def given(q, k, v, value, skip, output, tail, peak, *stop) -> tuple:
            # No entropy is asked for: its place is not written to.
            return (*self.operands(q, k, v, value, stop), skip, output, tail, tail, peak)

        tile = calls.tile(args, sides, self.name, self.units, self.pairs)
        programs = self.batch * self.heads * blocks_in(self.queries, sides[0])
        constants = (tile, calls.chunk(self.units), False)
        self.forward, self.forward_again = (
            Launch(forward_kernel, programs, given, constants, num_warps=sides[2]) for _ in range(2)
        )

    def bind_backward(self, total: int) -> None:
        """Where the backward adds up, and the launches that do not read grad_out."""
        from regard.engines.triton.buffers import GradientBuffers
        from regard.engines.triton.flagged import collect_kernel

        grads = GradientBuffers(self.args, True, False, None, None).pointers()
        shapes = [tuple(x.shape) for x in (grads.q, grads.k, grads.v, grads.value)]
        self.grads = grads._replace(q=None, k=None, v=None, value=None)
        counts = [total * self.queries * self.dims, *[total * self.queries] * 3]
        counts += [math.prod(shape) for shape in shapes]
        self.sums = Layout(*((count, torch.float32) for count in counts))
        (_, units, q_step), (_, _, k_step), shared = shapes[0], shapes[1], self.args.sizes[2]
        sizes = (self.batch, self.heads, shared, self.queries, self.keys, units, q_step, k_step)
        sizes = (*sizes, self.hidden, self.dims)
        programs = total * blocks_in(self.queries, COLLECTED) + self.heads * self.hidden
        programs += 2 * (total // shared) * blocks_in(self.keys, COLLECTED)
        wide = (min(power_of_two(n), 64) for n in (self.hidden, self.dims))
        constants = (COLLECTED, *wide, SUMMED)
        self.collect = Launch(collect_kernel, programs, place_last(9, sizes), constants)
        self.of_gradient = functools.lru_cache(maxsize=4)(self.bind_gradient)

    def bind_gradient(self, dtype: torch.dtype) -> tuple[Launch, Launch]:
        """The launches that read grad_out in this dtype."""
        from regard.engines.triton.backward import backward_kernel
        from regard.engines.triton.flagged import ready_kernel
        from regard.engines.triton.structs import Rows

        calls, args, places = self.calls, self.args, self.sums.places
        rows, count = self.batch * self.heads * self.queries, self.sums.words - places[4][0]
        blocks = blocks_in(rows, SHIFTED)
        ready = Launch(
            ready_kernel,
            blocks + blocks_in(count, CLEARED),
            place_last(5, (rows, self.dims, count, blocks)),
            (SHIFTED, power_of_two(self.dims), CLEARED),
        )
        sides = calls.backward_tile(args)
        programs = self.batch * self.heads * blocks_in(self.keys, sides[1])
        parts = calls.query_parts(args, programs, sides)

        def given(
            a, b, weight, value, skip, grad, peak, tail, shift, by_q, by_k, by_v, by_value, *stop
        ) -> tuple:
            known = Rows(grad=grad, peak=peak, tail=tail, shift=shift)
            grads = self.grads._replace(q=by_q, k=by_k, v=by_v, value=by_value)
            return (*self.operands(a, b, weight, value, stop), known, grads, skip, parts)

        tile = calls.tile(args, sides, self.name, self.units, self.pairs, backward=True)
        constants = (tile, calls.chunk(self.units), True)
        back = Launch(backward_kernel, programs * parts, given, constants, num_warps=sides[2])
        return ready, back


@functools.lru_cache(maxsize=REMEMBERED)
def standby(kind: Kind) -> Standby:
    """The launches of a kind, made once."""
    return Standby(kind)


def place_last(pointers: int, sizes: tuple[int, ...]) -> Callable[..., tuple]:
    """Arguments of a kernel that takes pointers, then these sizes, then the rest."""

    def arguments(*operands) -> tuple:
        return (*operands[:pointers], *sizes, *operands[pointers:])

    return arguments


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
