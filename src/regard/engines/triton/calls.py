"""The Triton implementation of the tiled operators: turns `Arguments` into launches and shapes results.

Every call can take this path. Common calls use bound launches (`bound.py`) once they repeat.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.engines.base import jacobian_norm
from regard.engines.sizes import blocks_in
from regard.engines.tiled import Arguments
from regard.engines.triton import bound, bound_backward, choices, lanes, ordered, prepare
from regard.engines.triton.backward import backward_kernel
from regard.engines.triton.buffers import DecodeBuffers, GradientBuffers
from regard.engines.triton.decode import combine_kernel, decode_kernel
from regard.engines.triton.decode_backward import decode_backward_kernel
from regard.engines.triton.forward import forward_kernel
from regard.engines.triton.rows import best_kernel, jacobian_kernel, scores_kernel
from regard.engines.triton.structs import BackwardRows
from regard.precision import working_dtype


def attend(args: Arguments, entropy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, tail, entropy and largest logit of each query."""
    bound_call = bound.find_forward(args, entropy)
    if bound_call is not None:
        return bound_call.attend(args)
    z, queries, work = prepare.count(args), args.sizes[3], working_dtype(args.q.dtype)
    output = args.q.new_empty((z, queries, args.value.shape[-1]), dtype=work)
    spread, peak = (args.q.new_empty((z, queries), dtype=work) for _ in range(2))
    tail = args.q.new_empty((z, queries), dtype=torch.float64)
    launch_forward(args, entropy, output, tail, spread, peak)
    shape = args.sizes[:4]
    return (
        output.view(*shape, args.value.shape[-1]),
        tail.view(shape),
        spread.view(shape),
        peak.view(shape),
    )


def output(args: Arguments) -> Tensor:
    """The output alone, in the dtype of the values where bound launches write it."""
    bound_call = bound.find_forward(args, entropy=False, alone=True)
    return attend(args, False)[0] if bound_call is None else bound_call.output(args)


def launch_forward(
    args: Arguments,
    entropy: bool,
    output: Tensor,
    tail: Tensor,
    spread: Tensor,
    peak: Tensor,
) -> None:
    """Run the forward kernel, which writes these tensors."""
    if not output.shape[0] * output.shape[1]:
        return
    if choices.is_decode(args, entropy):
        launch_decode(args, output, tail, spread, peak)
        return
    changes, values, sides = prepare.pairs(args), prepare.values(args), choices.forward_tile(args)
    grid = (prepare.count(args) * blocks_in(args.sizes[3], sides[0]),)
    for form, form_name, units in prepare.forms(args):
        forward_kernel[grid](
            form,
            changes,
            *choices.sizes(args),
            values,
            None,
            output,
            tail,
            spread,
            peak,
            choices.tile(args, sides, form_name, units, changes),
            choices.chunk(units),
            entropy,
            num_warps=sides[2],
            **choices.forward_registers(form_name, units),
        )


def launch_decode(
    args: Arguments, output: Tensor, tail: Tensor, spread: Tensor, peak: Tensor
) -> None:
    """Run the decode kernels, for few queries, which write these tensors."""
    rows, block, wide, parts, share, even, most = choices.decode_split(args)
    changes, dims = prepare.pairs(args), output.shape[-1]
    together = choices.combining(most, dims)
    totals, tops = (output.new_empty(rows * parts) for _ in range(2))
    partial = output.new_empty((rows * parts, dims))
    ((form, form_name, units),) = prepare.direct(args)
    operands = choices.growing(form, changes, choices.sizes(args), prepare.values(args))
    decode_kernel[(rows * parts,)](
        *operands[:4],
        partial,
        totals,
        tops,
        None,
        *operands[4:],
        parts,
        share,
        choices.tile(args, (16, block, 4), form_name, units, changes),
        block,
        wide,
        choices.keys_side_by_side(block, dims),
        even,
        **choices.DECODE_OPTIONS,
    )
    combine_kernel[(rows * max(blocks_in(dims, together[1]), 1),)](
        partial,
        totals,
        tops,
        output,
        tail,
        spread,
        peak,
        *(None, None, None),
        args.sizes[4],
        parts,
        dims,
        *together,
        choices.COMBINED_KEYS,
        **choices.DECODE_OPTIONS,
    )


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
    """All gradients; every tile is computed again. `spread` is None where entropy was not requested."""
    given = (grad, output, peak, tail, grad_tail, spread, grad_spread)
    found = bound_backward.attend_backward(args, *given)
    if found is not None:
        return found
    if choices.is_decode(args, entropy=spread is not None) and has_numbers(args):
        known = known_rows(args, grad, peak, tail, spread, grad_spread, grad_tail=grad_tail)
        known = known._replace(output=output.contiguous())
        return launch_decode_backward(args, known, bias_gradient).collected()
    if prepare.hides(args):
        # The gradient of a row that sees nothing is 0, even if the incoming one is NaN.
        empty = peak == -math.inf
        grad = torch.where(empty.unsqueeze(-1), 0, grad)
        grad_tail = None if grad_tail is None else torch.where(empty, 0, grad_tail)
    # d logit = p * (d p + shift): one number for each row, computed once for all tiles.
    shift = (grad * output).sum(-1).neg_()
    if grad_tail is not None:
        shift += grad_tail.to(working_dtype(args.q.dtype))
    known = known_rows(args, grad, peak, tail, spread, grad_spread, shift=shift)
    return launch_backward(args, known, bias_gradient).collected()


def known_rows(
    args: Arguments,
    grad: Tensor,
    peak: Tensor,
    tail: Tensor,
    entropy: Tensor | None,
    grad_entropy: Tensor | None,
    shift: Tensor | None = None,
    grad_tail: Tensor | None = None,
) -> BackwardRows:
    """What a backward is given for each query, in the layout and dtype of its kernels."""
    z, queries, work = prepare.count(args), args.sizes[3], working_dtype(args.q.dtype)

    def row(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(work).reshape(z, queries).contiguous()

    return BackwardRows(
        grad=grad.reshape(z, queries, args.value.shape[-1]).contiguous(),
        peak=row(peak),
        # In fp64, as bound launches read it: both then run the same compiled kernel.
        tail=tail.reshape(z, queries).contiguous(),
        entropy=row(entropy),
        grad_entropy=row(grad_entropy),
        shift=row(shift),
        grad_tail=row(grad_tail),
    )


def has_numbers(args: Arguments) -> bool:
    """Whether no operand is empty; the tiled backward handles empty ones."""
    return all(x.numel() > 0 for x in (args.q, args.k, args.value))


def launch_decode_backward(
    args: Arguments, known: BackwardRows, bias_gradient: bool
) -> DecodeBuffers:
    """Run the decode backward, for few queries; returns its buffers."""
    sides, wide, dims, parts, even = choices.decode_blocks(args)
    changes, grads = prepare.pairs(args), DecodeBuffers(args, parts, bias_gradient)
    ((form, form_name, units),) = prepare.direct(args)
    operands = choices.growing(form, changes, choices.sizes(args), prepare.values(args))
    decode_backward_kernel[(prepare.count(args) * parts,)](
        *operands[:4],
        known,
        grads.pointers(),
        *operands[4:],
        parts,
        choices.tile(args, sides, form_name, units, changes, backward=True),
        wide,
        dims,
        even,
        False,
        **choices.DECODE_OPTIONS,
    )
    return grads


def visible_reach(args: Arguments) -> Tensor | None:
    """The attention to |value|, (Z, Q, dv), or None where every query sees every key."""
    if not prepare.hides(args):
        return None
    shape, work = (prepare.count(args), args.sizes[3]), working_dtype(args.q.dtype)
    output = args.q.new_empty((*shape, args.value.shape[-1]), dtype=work)
    rows = [args.q.new_empty(shape, dtype=work) for _ in range(3)]
    # Without dropout, which `ordered.largest_sum` accounts for.
    sizes_alone = args._replace(value=ordered.finite(args.value), seed=None)
    launch_forward(sizes_alone, False, output, *rows)
    return output


def launch_backward(args: Arguments, known: BackwardRows, bias_gradient: bool) -> GradientBuffers:
    """Run the tiled backward; returns the sums that it added up."""
    by_lanes = choices.in_lanes(args)
    changes, values, sides = (
        prepare.pairs(args),
        prepare.values(args),
        choices.backward_tile(args, by_lanes),
    )
    programs = prepare.count(args) * blocks_in(args.sizes[4], sides[1])
    unit, parts = None, choices.query_parts(args, programs, sides, by_lanes)
    # Integer sums, and one program for each block of keys: no result depends on an order of additions.
    if torch.are_deterministic_algorithms_enabled():
        unit = ordered.unit(args, known, visible_reach(args) if known.given is None else None)
        parts = 1
    grads = GradientBuffers(args, known.given is None, bias_gradient, unit, by_lanes)
    for form, form_name, units in prepare.forms(args, exponentials=True):
        if not programs * args.sizes[3]:
            break
        kernel = backward_kernel[(programs * parts,)](
            form,
            changes,
            *choices.sizes(args),
            values,
            known,
            grads.pointers(),
            None,
            parts,
            choices.tile(
                args, sides, form_name, units, changes, True, by_lanes and form_name == "fast"
            ),
            choices.chunk(units),
            num_warps=sides[2],
            **choices.backward_registers(form_name, by_lanes),
        )
        if by_lanes and form_name == "fast" and not lanes.trusted(kernel):
            # The compiled layout gives wrong sums, in buffers that are dropped here. Run again:
            # `lanes.refused()` now selects the other backward.
            return launch_backward(args, known, bias_gradient)
    return grads


def best_keys(args: Arguments, hard: Tensor) -> Tensor:
    """The index of the best visible key of each row, also of rows that are not `hard`."""
    best = args.q.new_empty(args.sizes[:4], dtype=torch.int32)
    _launch_rows(best_kernel, args, best)
    return best.long()


def jacobian(args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor) -> Tensor:
    """The norm of the softmax Jacobian of each row."""
    sums, squares, cubes = (torch.empty_like(peak) for _ in range(3))
    _launch_rows(jacobian_kernel, args, sums, squares, cubes)
    # The kernel's weights are relative to the largest one: scaled to their true size here.
    largest = torch.where(peak == -math.inf, 0, torch.exp(-tail) * share)
    return jacobian_norm(largest, left + largest * sums, largest**2 * squares, largest**3 * cubes)


def scores(args: Arguments) -> Tensor:
    """Raw scores (B, K, G, Q, L)."""
    work = working_dtype(args.q.dtype)
    found = args.q.new_empty(args.sizes, dtype=work)
    _launch_rows(scores_kernel, args, found, by_tile=True)
    return found


def scores_backward(args: Arguments, grad: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the form's inputs from the gradient of raw scores."""
    given = grad.to(working_dtype(args.q.dtype)).expand(args.sizes).contiguous()
    found = list(launch_backward(args, BackwardRows(given.flatten(0, 2)), False).collected())
    # The kernel leaves out alpha and beta, whose gradients are plain sums.
    for i, x, dim in ((4, args.alpha, -1), (5, args.beta, -2)):
        if x is not None:
            found[i] = given.sum(dim, keepdim=True).sum_to_size(x.shape).to(x.dtype)
    return tuple(found)


def _launch_rows(kernel: Any, args: Arguments, *results: Tensor, by_tile: bool = False) -> None:
    """Run a kernel of `rows.py`, with one program for each block of queries, or for each tile."""
    changes, sides = prepare.pairs(args), choices.forward_tile(args)
    programs = prepare.count(args) * blocks_in(args.sizes[3], sides[0])
    if by_tile:
        programs *= blocks_in(args.sizes[4], sides[1])
    if not programs:
        return
    for form, form_name, units in prepare.forms(args):
        chosen = choices.tile(args, sides, form_name, units, changes)
        kernel[(programs,)](
            form,
            changes,
            *choices.sizes(args),
            *results,
            chosen,
            choices.chunk(units),
            num_warps=sides[2],
        )
