"""The backward of common calls, with its launches bound; see `bound.py` for what is common.

Shape legend: see `structs`; (B, K, G, rows, columns) as in `regard.engines.tiled.operators`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.launching import AtSecondSight, Layout, Steps, piece
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton import choices, lanes, prepare
from regard.engines.triton.backward import backward_kernel
from regard.engines.triton.bound import (
    DOUBLE,
    FLOAT,
    REMEMBERED,
    Described,
    Kind,
    Operands,
    kind_of,
)
from regard.engines.triton.buffers import GradientBuffers
from regard.engines.triton.flagged import collect_kernel, collected_sizes, ready_kernel
from regard.engines.triton.structs import Rows

# Numbers of grad that one program reads; numbers that one clears; rows that one collects, and numbers
# that one sums up.
READ, CLEARED, COLLECTED, SUMMED = 4096, 4096, 32, 1024


class BackwardKind(NamedTuple):
    """What calls have to agree in, in their backward: also in which gradients come in."""

    call: Kind
    grad: torch.dtype
    grad_tail: torch.dtype | None
    grad_spread: torch.dtype | None


def attend_backward(
    args: Arguments,
    grad: Tensor,
    output: Tensor,
    peak: Tensor,
    tail: Tensor,
    grad_tail: Tensor | None,
    spread: Tensor,
    grad_spread: Tensor | None,
) -> tuple[Tensor, ...] | None:
    """All gradients of a common call, from a plan; None where there is none.

    That is for other calls, for the first of a kind, and where sums in a fixed order are asked for.
    """
    if torch.are_deterministic_algorithms_enabled() or not has_own_memory(args):
        return None
    call = kind_of(args)
    if call is None:
        return None
    of_tail, of_spread = (None if x is None else x.dtype for x in (grad_tail, grad_spread))
    plan = backward_plan(BackwardKind(call, grad.dtype, of_tail, of_spread))
    if plan is None:
        return None
    rows = [grad, output, peak, tail, grad_tail, spread, grad_spread]
    found = plan.run(args, [x.contiguous() for x in rows if x is not None])
    if found is None:
        # Its sums are wrong. It wrote to its own memory alone: once more, in the other way.
        return attend_backward(args, grad, output, peak, tail, grad_tail, spread, grad_spread)
    return found


def has_own_memory(args: Arguments) -> bool:
    """Whether each sequence has queries, keys and values of its own, and each head its v.

    Then what is added up for each head is summed over the heads of a group, and nothing else.
    """
    b, k, g, queries, keys = args.sizes
    units = args.q.shape[-1]
    return (
        args.v is not None
        and args.q.shape == (b, k, g, queries, units)
        and args.k.shape == (b, k, 1, keys, units)
        and args.value.shape[:4] == (b, k, 1, keys)
        and args.v.shape == (1, k, g, 1, units)
    )


class Backward:
    """The launches of the backward of all calls of one kind."""

    def __init__(self, kind: BackwardKind) -> None:
        call = kind.call
        self.device, self.operands = call.device, Operands(call, exponentials=True)
        x = self.operands
        self.by_lanes = choices.in_lanes(x.args)
        self.grads = GradientBuffers(x.args, True, False, None, self.by_lanes).pointers()
        self.hides = prepare.hides(x.args)
        self.describe_rows(kind)
        of_v = Described(x.v_shape, (), call.v)
        # In the order of `Arguments.differentiable()`.
        self.shapes = [(y.shape, y.dtype) for y in (call.q, call.k, call.value, of_v)]
        results = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self.shapes]
        self.sums = [*x.zeros, self.grads.q, self.grads.k, self.grads.v, self.grads.value]
        pieces = [self.shift, *([self.used] if self.hides else []), *x.pieces, *self.sums]
        self.steps = Steps([*x.given, *self.known, *results], pieces)
        self.bind_ready()
        x.add_preparation(self.steps)
        self.first_kernel = len(self.steps.launches)
        self.bind_kernels()
        self.bind_collecting(results)

    def describe_rows(self, kind: BackwardKind) -> None:
        """What the forward has left and what comes in, without memory."""
        sizes = self.operands.args.sizes
        rows, dims = tuple(sizes[:4]), self.operands.args.value.shape[-1]

        def row(dtype: torch.dtype, *last: int) -> Tensor:
            return torch.empty((*rows, *last), dtype=dtype, device="meta")

        self.grad, self.output = row(kind.grad, dims), row(FLOAT, dims)
        self.peak, self.tail, self.spread = row(FLOAT), row(DOUBLE), row(FLOAT)
        self.grad_tail, self.grad_spread = (
            None if dtype is None else row(dtype) for dtype in (kind.grad_tail, kind.grad_spread)
        )
        self.shift, self.used = row(FLOAT), row(kind.grad, dims)
        known = (self.grad, self.output, self.peak, self.tail)
        known = (*known, self.grad_tail, self.spread, self.grad_spread)
        self.known = [x for x in known if x is not None]

    def bind_ready(self) -> None:
        """What the backward starts from, and sums of 0."""
        x = self.operands
        rows, dims = x.count * x.args.sizes[3], x.args.value.shape[-1]
        wide = power_of_two(dims)
        block = max(READ // wide, 1)
        blocks = blocks_in(rows, block)
        # The sums lie one after another, up to the end of the memory.
        count = Layout(*map(piece, self.sums)).words
        empty = (self.peak, self.used) if self.hides else (None, None)
        rest = (self.shift, self.sums[0], None, rows, dims, count, blocks)
        self.steps.add(
            ready_kernel,
            blocks + blocks_in(count, CLEARED),
            (self.grad, self.output, self.grad_tail, *empty, *rest),
            (block, wide, CLEARED),
        )

    def bind_kernels(self) -> None:
        """The launches that compute every tile again."""
        x, by_lanes = self.operands, self.by_lanes
        sides = choices.backward_tile(x.args, by_lanes)
        programs = x.count * blocks_in(x.args.sizes[4], sides[1])
        parts = choices.query_parts(x.args, programs, sides, by_lanes)
        known = Rows(
            grad=self.used if self.hides else self.grad,
            peak=self.peak,
            tail=self.tail,
            shift=self.shift,
            entropy=self.spread,
            grad_entropy=self.grad_spread,
        )
        for form, name, units in x.forms:
            in_lanes = by_lanes and name == "fast"
            tile = choices.tile(x.args, sides, name, units, x.pairs, True, in_lanes)
            self.steps.add(
                backward_kernel,
                programs * parts,
                (form, x.pairs, x.sizes, x.values, known, self.grads, None, parts),
                (tile, choices.chunk(units)),
                num_warps=sides[2],
                **choices.backward_registers(name, by_lanes),
            )

    def bind_collecting(self, results: list[Tensor]) -> None:
        """The launch that makes gradients of what was added up."""
        args, grads = self.operands.args, self.grads
        batch, groups, shared, queries, keys = args.sizes
        units, dims = args.q.shape[-1], args.value.shape[-1]
        of_q, of_k, of_value, of_v = results
        sums, heads = (grads.q, grads.k, grads.v, grads.value), groups * shared
        steps = (grads.units, grads.q_step, grads.k_step)
        sizes = collected_sizes(batch, heads, shared, queries, keys, steps, units, dims)
        programs = batch * heads * blocks_in(queries, COLLECTED) + heads * units
        programs += 2 * batch * groups * blocks_in(keys, COLLECTED)
        wide = (min(power_of_two(n), 64) for n in (units, dims))
        self.steps.add(
            collect_kernel,
            programs,
            (*sums, of_q, of_k, of_v, of_value, None, *sizes, 1.0),
            (COLLECTED, *wide, SUMMED),
        )

    def run(self, args: Arguments, known: list[Tensor]) -> tuple[Tensor, ...] | None:
        """All gradients; None where a kernel that was compiled just now is not to be trusted."""
        made = [torch.empty(x, dtype=dtype, device=self.device) for x, dtype in self.shapes]
        compiled = self.steps.run(*self.operands.of(args), *known, *made)
        if self.by_lanes and not lanes.trusted(compiled[self.first_kernel]):
            return None
        nothing = [torch.empty(0, dtype=args.q.dtype, device=self.device) for _ in range(4)]
        return (*made, *nothing)


# The plans that are kept.
backward_plan = AtSecondSight(Backward, REMEMBERED)
