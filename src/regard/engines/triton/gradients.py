"""The backward of common calls, with its launches bound; see `bound.py` for what is common.

Shape legend: see `structs`; (B, K, G, rows, columns) as in `regard.engines.tiled.operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.launching import AtSecondSight, Pieces, Steps, piece
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
    arguments,
    kind_of,
)
from regard.engines.triton.buffers import SIDES, DecodeBuffers, GradientBuffers, collecting
from regard.engines.triton.decode_backward import decode_backward_kernel, sum_copies_kernel
from regard.engines.triton.flagged import collect_kernel, ready_kernel
from regard.engines.triton.structs import Rows

Tensors = Sequence[Tensor]
# Numbers of grad that one program reads, and numbers that one clears.
READ, CLEARED = 4096, 4096


class BackwardKind(NamedTuple):
    """What calls have to agree in, in their backward: also in which gradients come in."""

    call: Kind
    grad: torch.dtype
    grad_tail: torch.dtype | None
    entropy: bool
    grad_spread: torch.dtype | None


def attend_backward(
    args: Arguments,
    grad: Tensor,
    output: Tensor,
    peak: Tensor,
    tail: Tensor,
    grad_tail: Tensor | None,
    spread: Tensor | None,
    grad_spread: Tensor | None,
) -> tuple[Tensor, ...] | None:
    """All gradients of a common call, from a plan; None where there is none.

    That is for other calls, for the first of a kind, and where sums in a fixed order are asked for and
    not made so in any case.
    """
    fixed, entropy = torch.are_deterministic_algorithms_enabled(), spread is not None
    if not prepare.has_own_memory(args) or (fixed and not choices.is_decode(args, entropy)):
        return None
    call = kind_of(args)
    if call is None:
        return None
    of_tail, of_spread = (None if x is None else x.dtype for x in (grad_tail, grad_spread))
    plan = backward_plan(BackwardKind(call, grad.dtype, of_tail, entropy, of_spread))
    if plan is None:
        return None
    rows = [grad, output, peak, tail, grad_tail, spread, grad_spread]
    made = [torch.empty(x, dtype=dtype, device=plan.device) for x, dtype in plan.shapes]
    known = [x.contiguous() for x in rows if x is not None]
    if not plan.run(plan.operands.of(args), known, made):
        # Its sums are wrong. It wrote to its own memory alone: once more, in the other way.
        return attend_backward(args, grad, output, peak, tail, grad_tail, spread, grad_spread)
    # And none of what a common call does not have.
    nothing = [torch.empty(0, dtype=args.q.dtype, device=args.q.device) for _ in range(4)]
    return (*made, *nothing)


class Known:
    """What the forward has left and what comes in, without memory: as `Rows`, but with 5 dims.

    `given` lists them in the order of `attend_backward`.
    """

    def __init__(self, kind: BackwardKind, args: Arguments) -> None:
        rows, dims = tuple(args.sizes[:4]), args.value.shape[-1]

        def row(dtype: torch.dtype | None, *last: int) -> Tensor | None:
            return (
                None if dtype is None else torch.empty((*rows, *last), dtype=dtype, device="meta")
            )

        self.rows = Rows(
            grad=row(kind.grad, dims),
            output=row(FLOAT, dims),
            peak=row(FLOAT),
            tail=row(DOUBLE),
            grad_tail=row(kind.grad_tail),
            entropy=row(FLOAT if kind.entropy else None),
            grad_entropy=row(kind.grad_spread),
        )
        x = self.rows
        given = (x.grad, x.output, x.peak, x.tail, x.grad_tail, x.entropy, x.grad_entropy)
        self.given = [tensor for tensor in given if tensor is not None]


class Backward:
    """The launches of the backward of all calls of one kind."""

    def __init__(self, kind: BackwardKind) -> None:
        call = kind.call
        self.device, self.operands = call.device, Operands(call, exponentials=True)
        x = self.operands
        self.by_lanes = choices.in_lanes(x.args)
        self.grads = GradientBuffers(x.args, True, False, None, self.by_lanes).pointers()
        self.hides = prepare.hides(x.args)
        self.known = Known(kind, x.args)
        grad = self.known.rows.grad
        self.shift = torch.empty(grad.shape[:-1], dtype=FLOAT, device="meta")
        self.used = torch.empty_like(grad) if self.hides else grad
        self.shapes = gradient_shapes(x, call)
        results = described_results(self.shapes)
        self.sums = [*x.zeros, self.grads.q, self.grads.k, self.grads.v, self.grads.value]
        pieces = [self.shift, *([self.used] if self.hides else []), *x.pieces, *self.sums]
        self.steps = Steps([*x.given, *self.known.given, *results], pieces)
        self.bind_ready()
        x.add_preparation(self.steps)
        self.first_kernel = len(self.steps.launches)
        self.bind_kernels()
        self.steps.add(collect_kernel, *collecting(x.args, self.grads, results))

    def bind_ready(self) -> None:
        """What the backward starts from, and sums of 0."""
        x = self.operands
        rows, dims = x.count * x.args.sizes[3], x.args.value.shape[-1]
        wide = power_of_two(dims)
        block = max(READ // wide, 1)
        blocks = blocks_in(rows, block)
        # The sums lie one after another, up to the end of the memory.
        count = Pieces(*map(piece, self.sums)).words
        known = self.known.rows
        empty = (known.peak, self.used) if self.hides else (None, None)
        rest = (self.shift, self.sums[0], None, rows, dims, count, blocks)
        self.steps.add(
            ready_kernel,
            blocks + blocks_in(count, CLEARED),
            (known.grad, known.output, known.grad_tail, *empty, *rest),
            (block, wide, CLEARED),
        )

    def bind_kernels(self) -> None:
        """The launches that compute every tile again."""
        x, by_lanes = self.operands, self.by_lanes
        sides = choices.backward_tile(x.args, by_lanes)
        programs = x.count * blocks_in(x.args.sizes[4], sides[1])
        parts = choices.query_parts(x.args, programs, sides, by_lanes)
        # Without what the shift was made of: a kernel is not given what it does not read.
        known = self.known.rows._replace(
            grad=self.used, shift=self.shift, output=None, grad_tail=None
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

    def run(self, given: Tensors, known: Tensors, made: Tensors) -> bool:
        """Write the gradients; False where what was compiled just now is not to be trusted.

        Args:
            given: what `operands.of` makes of a call.
            known: what the forward has left and what comes in, as `Known` lists it.
            made: memory for the gradients of q, k, value and v.
        """
        compiled = self.steps.run(*given, *known, *made)
        return not self.by_lanes or lanes.trusted(compiled[self.first_kernel])


class DecodeBackward:
    """The launches of the backward of all calls of one kind that have few queries."""

    def __init__(self, kind: BackwardKind) -> None:
        self.device, self.operands = kind.call.device, Operands(kind.call, direct=True)
        x, known = self.operands, Known(kind, self.operands.args)
        sides, wide, dims, parts, even = choices.decode_blocks(x.args)
        self.shapes = gradient_shapes(x, kind.call)
        buffers = DecodeBuffers(x.args, parts)
        found, sums = buffers.pointers(), buffers.sums
        results = {
            name: getattr(found, name) if buffers.is_whole(name) else made
            for name, made in zip(SIDES, described_results(self.shapes), strict=True)
        }
        pieces = [getattr(found, name) for name in sums]
        self.steps = Steps([*x.given, *known.given, *results.values()], [*x.pieces, *pieces])
        x.add_preparation(self.steps)
        ((form, name, units),) = x.forms
        self.steps.add(
            decode_backward_kernel,
            x.count * parts,
            (form, x.pairs, x.sizes, x.values, known.rows, found, parts),
            (choices.tile(x.args, sides, name, units, x.pairs, True), wide, dims, even),
            **choices.DECODE_OPTIONS,
        )
        for name, summing in sums.items():
            self.steps.add(
                sum_copies_kernel,
                summing.programs,
                (getattr(found, name), results[name], *summing.numbers),
                summing.constants,
            )

    def run(self, given: Tensors, known: Tensors, made: Tensors) -> bool:
        """As `Backward.run`; always to be trusted."""
        self.steps.run(*given, *known, *made)
        return True


def gradient_shapes(operands: Operands, call: Kind) -> list[tuple[torch.Size, torch.dtype]]:
    """Shapes and dtypes of the gradients of q, k, value and v, as `Arguments.differentiable()` has them."""
    of_v = Described(operands.v_shape, (), call.v)
    return [(x.shape, x.dtype) for x in (call.q, call.k, call.value, of_v)]


def described_results(shapes: list[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
    """Gradients without memory."""
    return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]


def plan_of(kind: BackwardKind) -> Backward | DecodeBackward:
    """The launches for this kind of call."""
    few = choices.is_decode(arguments(kind.call), kind.entropy)
    return DecodeBackward(kind) if few else Backward(kind)


# The plans that are kept.
backward_plan = AtSecondSight(plan_of, REMEMBERED)
