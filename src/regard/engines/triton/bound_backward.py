"""The backward of common calls, with its launches bound once; `bound.py` says which calls are common.

Shape legend: see `structs`; (B, K, G, rows, columns) as in `regard.engines.tiled.operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.launching import Pieces, SecondUseCache, Steps, piece
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton import choices, lanes, prepare
from regard.engines.triton.backward import backward_kernel
from regard.engines.triton.bound import (
    DOUBLE,
    FLOAT,
    REMEMBERED,
    CallSignature,
    Described,
    Operands,
    arguments,
    call_signature,
)
from regard.engines.triton.buffers import OPERAND_NAMES, DecodeBuffers, GradientBuffers, collecting
from regard.engines.triton.decode_backward import decode_backward_kernel, sum_copies_kernel
from regard.engines.triton.flagged import collect_kernel, ready_kernel
from regard.engines.triton.structs import BackwardRows

TensorList = Sequence[Tensor]
# Numbers of grad that one program reads, and numbers that one program clears.
GRADS_READ, SUMS_CLEARED = 4096, 4096


class BackwardSignature(NamedTuple):
    """What calls have to agree in to share the launches of their backward: also which gradients come in."""

    call: CallSignature
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
    """All gradients of a common call from bound launches, or None where `calls.py` has to compute them.

    That is for calls that are not common, for the first call of a signature, and for deterministic sums
    over many queries. With few queries sums have a fixed order in any case.
    """
    fixed, entropy = torch.are_deterministic_algorithms_enabled(), spread is not None
    if not prepare.has_own_memory(args) or (fixed and not choices.is_decode(args, entropy)):
        return None
    call = call_signature(args)
    if call is None:
        return None
    of_tail, of_spread = (None if x is None else x.dtype for x in (grad_tail, grad_spread))
    bound = kept_backwards(BackwardSignature(call, grad.dtype, of_tail, entropy, of_spread))
    if bound is None:
        return None
    rows = [grad, output, peak, tail, grad_tail, spread, grad_spread]
    made = [torch.empty(x, dtype=dtype, device=bound.device) for x, dtype in bound.shapes]
    known = [x.contiguous() for x in rows if x is not None]
    if not bound.run(bound.operands.of(args), known, made):
        # The compiled layout is not the one that `lanes.py` needs, so the sums are wrong. Only memory made
        # here was written. Run again: `lanes.refused()` now selects the other backward.
        return attend_backward(args, grad, output, peak, tail, grad_tail, spread, grad_spread)
    # Empty gradients of alpha, beta, rate and bias, which a common call does not have.
    nothing = [torch.empty(0, dtype=args.q.dtype, device=args.q.device) for _ in range(4)]
    return (*made, *nothing)


class KnownRows:
    """Statistics of the forward and incoming gradients on "meta": `BackwardRows` with 5 dims.

    `given` lists them in the order of `attend_backward`.
    """

    def __init__(self, signature: BackwardSignature, args: Arguments) -> None:
        rows, dims = tuple(args.sizes[:4]), args.value.shape[-1]

        def row(dtype: torch.dtype | None, *last: int) -> Tensor | None:
            return (
                None if dtype is None else torch.empty((*rows, *last), dtype=dtype, device="meta")
            )

        self.rows = BackwardRows(
            grad=row(signature.grad, dims),
            output=row(FLOAT, dims),
            peak=row(FLOAT),
            tail=row(DOUBLE),
            grad_tail=row(signature.grad_tail),
            entropy=row(FLOAT if signature.entropy else None),
            grad_entropy=row(signature.grad_spread),
        )
        x = self.rows
        given = (x.grad, x.output, x.peak, x.tail, x.grad_tail, x.entropy, x.grad_entropy)
        self.given = [tensor for tensor in given if tensor is not None]


class BoundBackward:
    """The bound launches of the tiled backward for all calls of one signature."""

    def __init__(self, signature: BackwardSignature) -> None:
        call = signature.call
        self.device, self.operands = call.device, Operands(call, exponentials=True)
        x = self.operands
        self.by_lanes = choices.in_lanes(x.args)
        self.grads = GradientBuffers(x.args, True, False, None, self.by_lanes).pointers()
        self.hides = prepare.hides(x.args)
        self.known = KnownRows(signature, x.args)
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
        """Bind the launch that computes the shift of each row and clears the sums."""
        x = self.operands
        rows, dims = x.count * x.args.sizes[3], x.args.value.shape[-1]
        wide = power_of_two(dims)
        block = max(GRADS_READ // wide, 1)
        blocks = blocks_in(rows, block)
        # The sums are the last pieces of the allocation: one range to clear, from the first of them.
        count = Pieces(*map(piece, self.sums)).words
        known = self.known.rows
        empty = (known.peak, self.used) if self.hides else (None, None)
        rest = (self.shift, self.sums[0], None, rows, dims, count, blocks)
        self.steps.add(
            ready_kernel,
            blocks + blocks_in(count, SUMS_CLEARED),
            (known.grad, known.output, known.grad_tail, *empty, *rest),
            (block, wide, SUMS_CLEARED),
        )

    def bind_kernels(self) -> None:
        """Bind the launches of the backward kernel, one for each form."""
        x, by_lanes = self.operands, self.by_lanes
        sides = choices.backward_tile(x.args, by_lanes)
        programs = x.count * blocks_in(x.args.sizes[4], sides[1])
        parts = choices.query_parts(x.args, programs, sides, by_lanes)
        # Without output and grad_tail, from which the shift was made: the kernel does not read them.
        known = self.known.rows._replace(
            grad=self.used, shift=self.shift, output=None, grad_tail=None
        )
        for form, name, units in x.forms:
            in_lanes = by_lanes and name == "fast"
            tile = choices.tile(x.args, sides, name, units, x.pairs, True, in_lanes)
            self.steps.add(
                backward_kernel,
                programs * parts,
                (form, x.pairs, *x.sizes, x.values, known, self.grads, None, parts),
                (tile, choices.chunk(units)),
                num_warps=sides[2],
                **choices.backward_registers(name, by_lanes),
            )

    def run(self, given: TensorList, known: TensorList, made: TensorList) -> bool:
        """Write the gradients; False where the kernel just compiled has a layout that gives wrong sums.

        Args:
            given: the tensors of the call, from `operands.of`.
            known: statistics of the forward and incoming gradients, as `KnownRows` lists them.
            made: memory for the gradients of q, k, value and v.
        """
        compiled = self.steps.run(*given, *known, *made)
        return not self.by_lanes or lanes.trusted(compiled[self.first_kernel])


class BoundDecodeBackward:
    """The bound launches of the decode backward for all calls of one signature with few queries."""

    def __init__(self, signature: BackwardSignature) -> None:
        self.device, self.operands = signature.call.device, Operands(signature.call, direct=True)
        x, known = self.operands, KnownRows(signature, self.operands.args)
        sides, wide, dims, parts, even = choices.decode_blocks(x.args)
        self.shapes = gradient_shapes(x, signature.call)
        buffers = DecodeBuffers(x.args, parts)
        found, sums = buffers.pointers(), buffers.sums
        # A complete gradient is written to its result at once; the others are summed from copies.
        results = {
            name: getattr(found, name) if buffers.is_whole(name) else made
            for name, made in zip(OPERAND_NAMES, described_results(self.shapes), strict=True)
        }
        pieces = [getattr(found, name) for name in sums]
        self.steps = Steps([*x.given, *known.given, *results.values()], [*x.pieces, *pieces])
        x.add_preparation(self.steps)
        ((form, name, units),) = x.forms
        operands = choices.growing(form, x.pairs, x.sizes, x.values)
        self.steps.add(
            decode_backward_kernel,
            x.count * parts,
            (*operands[:4], known.rows, found, *operands[4:], parts),
            (choices.tile(x.args, sides, name, units, x.pairs, True), wide, dims, even, False),
            **choices.DECODE_OPTIONS,
        )
        for name, summing in sums.items():
            self.steps.add(
                sum_copies_kernel,
                summing.programs,
                (getattr(found, name), results[name], *summing.numbers),
                summing.constants,
            )

    def run(self, given: TensorList, known: TensorList, made: TensorList) -> bool:
        """As `BoundBackward.run`; always True, as these kernels do not depend on the layout of lanes."""
        self.steps.run(*given, *known, *made)
        return True


def gradient_shapes(
    operands: Operands, call: CallSignature
) -> list[tuple[torch.Size, torch.dtype]]:
    """Shapes and dtypes of the gradients of q, k, value and v, the order of `Arguments.differentiable()`."""
    of_v = Described(operands.v_shape, (), call.v)
    return [(x.shape, x.dtype) for x in (call.q, call.k, call.value, of_v)]


def described_results(shapes: list[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
    """Gradients on "meta", of these shapes and dtypes."""
    return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes]


def bind_backward(signature: BackwardSignature) -> BoundBackward | BoundDecodeBackward:
    """The bound launches of the backward for this signature."""
    few = choices.is_decode(arguments(signature.call), signature.entropy)
    return BoundDecodeBackward(signature) if few else BoundBackward(signature)


# Bound backwards by signature.
kept_backwards = SecondUseCache(bind_backward, REMEMBERED)
