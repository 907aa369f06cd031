"""The operators' kernels in Triton: `Arguments` into launches, and the results back."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

import triton
from regard.engines.base import jacobian_norm
from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton import lanes, ordered, prepare
from regard.engines.triton.backward import backward_kernel
from regard.engines.triton.buffers import GradientBuffers
from regard.engines.triton.decode import combine_kernel, decode_kernel
from regard.engines.triton.forward import forward_kernel
from regard.engines.triton.rows import best_kernel, jacobian_kernel, scores_kernel
from regard.engines.triton.structs import Pairs, Rows, Sizes, Tile
from regard.precision import working_dtype

# Set by TRITON_INTERPRET when Triton is imported: kernels then run on the CPU, in NumPy.
INTERPRETED = triton.knobs.runtime.interpret
WORK = {torch.float32: tl.float32, torch.float64: tl.float64}
DOT = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}
# Numbers of the keys that one program of the kernel for few queries holds at once; and programs enough
# to fill a GPU of 132 multiprocessors four times.
DECODE_TILE = 4096
DECODE_PROGRAMS = 528
# Registers of a thread: fewer than the compiler would take, so that more warps hide the waiting.
FORWARD_REGISTERS = 112
FORWARD_REGISTERS_FEW_UNITS = 128
BACKWARD_REGISTERS = 128
LANES_REGISTERS = 168
# Registers of the warps of 132 multiprocessors; and how often programs fill them all at least, if
# there are queries enough: at the end of a launch some wait for the others.
ALL_REGISTERS = 132 * 65536 // 32
ROUNDS = 16


def sizes(args: Arguments) -> Sizes:
    """Sizes as kernels read them."""
    _, groups, heads, queries, keys = args.sizes
    return Sizes(groups, heads, queries, keys, args.value.shape[-1])


def chunk(units: int) -> int:
    """Features of an inner product that are read at once."""
    return min(max(power_of_two(units), 16), 64)


def forward_tile(args: Arguments) -> tuple[int, int, int]:
    """Queries, keys and warps of one program of the forward."""
    wide = power_of_two(args.value.shape[-1])
    queries = 16 if args.sizes[3] <= 16 or wide > 256 else 32 if wide > 128 else 64
    return queries, 64 if wide <= 256 else 32, 4


@functools.lru_cache(maxsize=512)
def fixed(*choices: Any) -> Tile:
    """The same tuple for the same choices: making one takes longer than a short kernel."""
    return Tile(*(tl.constexpr(x) for x in choices))


def tile(
    args: Arguments,
    sides: tuple[int, int, int],
    kind: str,
    units: int,
    changes: Pairs,
    backward: bool = False,
    by_lanes: bool = False,
) -> Tile:
    """What is fixed for a kernel; `sides` are queries, keys and warps of a program."""
    dtype = args.q.dtype
    dot = torch.float32 if INTERPRETED and dtype == torch.bfloat16 else dtype
    # Gradients of a mean may be 1e-9, which fp16 does not hold: TF32 has its digits and the range.
    shifted = backward and dtype == torch.float16
    dot = torch.float32 if shifted else dot
    sparse = any(x is not None for x in (changes.bias, changes.dense, changes.query_segment))
    hides = sparse or changes.start is not None or changes.stop is not None
    return fixed(
        *sides,
        units,
        args.q.shape[-1],
        max(power_of_two(args.value.shape[-1]), 16),
        kind,
        args.activation,
        WORK[working_dtype(dtype)],
        DOT[dot],
        "tf32" if shifted and not INTERPRETED else "ieee",
        kind != "inner" and not backward,
        hides,
        sparse,
        by_lanes,
        INTERPRETED,
    )


def attend(args: Arguments, entropy: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, tail, entropy and largest logit."""
    z, queries, work = prepare.count(args), args.sizes[3], working_dtype(args.q.dtype)
    output = args.q.new_empty((z, queries, args.value.shape[-1]), dtype=work)
    tail, peak = (args.q.new_empty((z, queries), dtype=work) for _ in range(2))
    # 0 where it is not asked for: the same call gives the same numbers.
    spread = torch.empty_like(tail) if entropy else torch.zeros_like(tail)
    launch_forward(args, entropy, output, tail, spread, peak)
    shape = args.sizes[:4]
    return (
        output.view(*shape, args.value.shape[-1]),
        tail.double().view(shape),
        spread.view(shape),
        peak.view(shape),
    )


def launch_forward(
    args: Arguments,
    entropy: bool,
    output: Tensor,
    tail: Tensor,
    spread: Tensor,
    peak: Tensor,
) -> None:
    """Run the forward kernel into these tensors."""
    if not output.shape[0] * output.shape[1]:
        return
    few = args.v is not None and args.sizes[3] < prepare.FEWEST_QUERIES
    if few and not entropy and args.seed is None:
        launch_decode(args, output, tail, peak)
        return
    changes, values, sides = prepare.pairs(args), prepare.values(args), forward_tile(args)
    grid = (prepare.count(args) * blocks_in(args.sizes[3], sides[0]),)
    for form, kind, units in prepare.forms(args):
        forward_kernel[grid](
            form,
            changes,
            sizes(args),
            values,
            None,
            output,
            tail,
            spread,
            peak,
            tile(args, sides, kind, units, changes),
            chunk(units),
            entropy,
            num_warps=sides[2],
            **registers(kind, FORWARD_REGISTERS if units >= 32 else FORWARD_REGISTERS_FEW_UNITS),
        )


def launch_decode(args: Arguments, output: Tensor, tail: Tensor, peak: Tensor) -> None:
    """Run the kernel for few queries into these tensors."""
    queries, keys = args.sizes[3:]
    rows, changes = prepare.count(args) * queries, prepare.pairs(args)
    wide = min(power_of_two(args.q.shape[-1]), 128)
    block = max(16, min(64, DECODE_TILE // wide))
    programs = rows * 2 if INTERPRETED else DECODE_PROGRAMS
    parts = max(min(programs // max(rows, 1), blocks_in(keys, 4 * block)), 1)
    share = blocks_in(blocks_in(keys, parts), block) * block
    totals, tops = (output.new_empty(rows * parts) for _ in range(2))
    partial = output.new_empty((rows * parts, output.shape[-1]))
    ((form, kind, units),) = prepare.direct(args)
    chosen = tile(args, (16, block, 4), kind, units, changes)
    decode_kernel[(rows * parts,)](
        form,
        changes,
        sizes(args),
        prepare.values(args),
        partial,
        totals,
        tops,
        parts,
        share,
        chosen,
        block,
        wide,
    )
    combine_kernel[(rows,)](
        partial,
        totals,
        tops,
        output,
        tail,
        peak,
        parts,
        output.shape[-1],
        power_of_two(parts),
        max(power_of_two(output.shape[-1]), 16),
    )


def registers(kind: str, most: int) -> dict[str, Any]:
    """The most registers that a thread of this kernel may take."""
    return {"maxnreg": most} if kind == "fast" and not INTERPRETED else {}


def attend_backward(
    args: Arguments,
    grad: Tensor,
    output: Tensor,
    peak: Tensor,
    tail: Tensor,
    grad_tail: Tensor | None,
    spread: Tensor,
    grad_spread: Tensor | None,
    bias_gradient: bool,
) -> tuple[Tensor, ...]:
    """All gradients, recomputing every tile."""
    z, queries, work = prepare.count(args), args.sizes[3], working_dtype(args.q.dtype)
    if prepare.hides(args):
        # A row that sees nothing has no gradient, whatever comes in for it.
        empty = peak == -math.inf
        grad = torch.where(empty.unsqueeze(-1), 0, grad)
        grad_tail = None if grad_tail is None else torch.where(empty, 0, grad_tail)
    shift = (grad * output).sum(-1).neg_()
    if grad_tail is not None:
        shift += grad_tail.to(work)

    def row(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(work).reshape(z, queries).contiguous()

    known = Rows(
        grad=grad.reshape(z, queries, args.value.shape[-1]).contiguous(),
        peak=row(peak),
        tail=row(tail),
        shift=row(shift),
        entropy=row(spread),
        grad_entropy=row(grad_spread),
    )
    return launch_backward(args, known, bias_gradient).collected()


def backward_tile(args: Arguments, by_lanes: bool = False) -> tuple[int, int, int]:
    """Queries, keys and warps of one program of the backward."""
    wide = power_of_two(args.value.shape[-1])
    if args.v is None:
        return (32, 32, 4)
    if by_lanes:
        return (lanes.SIDE, lanes.SIDE, 1)
    return (32, 32, 1) if wide <= 64 else (32, 32, 2) if wide <= 128 else (16, 32, 4)


def in_lanes(args: Arguments) -> bool:
    """Whether the backward sums as in `lanes.py`."""
    return args.q.dtype == torch.bfloat16 and prepare.is_fast(args) and not lanes.refused()


def query_parts(
    args: Arguments, programs: int, sides: tuple[int, int, int], by_lanes: bool = False
) -> int:
    """How many programs share the queries of one block of keys, so that a GPU stays full."""
    most = blocks_in(args.sizes[3], sides[0])
    warps = ALL_REGISTERS // (LANES_REGISTERS if by_lanes else BACKWARD_REGISTERS)
    return max(min(blocks_in(ROUNDS * warps, max(programs * sides[2], 1)), most), 1)


def visible_reach(args: Arguments) -> Tensor | None:
    """The attention to |value|, (Z, Q, dv), or None where every query sees every key."""
    if not prepare.hides(args):
        return None
    shape, work = (prepare.count(args), args.sizes[3]), working_dtype(args.q.dtype)
    output = args.q.new_empty((*shape, args.value.shape[-1]), dtype=work)
    rows = [args.q.new_empty(shape, dtype=work) for _ in range(3)]
    sizes_alone = args._replace(value=ordered.finite(args.value), seed=None)
    launch_forward(sizes_alone, False, output, *rows)
    return output


def launch_backward(args: Arguments, known: Rows, bias_gradient: bool) -> GradientBuffers:
    """Run the backward kernel."""
    by_lanes = in_lanes(args)
    changes, values, sides = (
        prepare.pairs(args),
        prepare.values(args),
        backward_tile(args, by_lanes),
    )
    programs = prepare.count(args) * blocks_in(args.sizes[4], sides[1])
    unit, parts = None, query_parts(args, programs, sides, by_lanes)
    if torch.are_deterministic_algorithms_enabled():
        unit = ordered.unit(args, known, visible_reach(args) if known.given is None else None)
        parts = 1
    grads = GradientBuffers(args, known.given is None, bias_gradient, unit, by_lanes)
    for form, kind, units in prepare.forms(args, exponentials=True):
        if not programs * args.sizes[3]:
            break
        kernel = backward_kernel[(programs * parts,)](
            form,
            changes,
            sizes(args),
            values,
            known,
            grads.pointers(),
            None,
            parts,
            tile(args, sides, kind, units, changes, True, by_lanes and kind == "fast"),
            chunk(units),
            num_warps=sides[2],
            **registers(kind, LANES_REGISTERS if by_lanes else BACKWARD_REGISTERS),
        )
        if by_lanes and kind == "fast" and not lanes.trusted(kernel):
            # Its sums are wrong. It wrote to its own memory alone: once more, in the other way.
            return launch_backward(args, known, bias_gradient)
    return grads


def best_keys(args: Arguments, hard: Tensor) -> Tensor:
    """The best visible key of each row; rows that are not `hard` are computed all the same."""
    best = args.q.new_empty(args.sizes[:4], dtype=torch.int32)
    _launch_rows(best_kernel, args, best)
    return best.long()


def jacobian(args: Arguments, peak: Tensor, tail: Tensor, share: Tensor, left: Tensor) -> Tensor:
    """The norm of the softmax Jacobian of each row."""
    sums, squares, cubes = (torch.empty_like(peak) for _ in range(3))
    _launch_rows(jacobian_kernel, args, sums, squares, cubes)
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
    found = list(launch_backward(args, Rows(given.flatten(0, 2)), False).collected())
    # Terms of one side alone need no kernel.
    for i, x, dim in ((4, args.alpha, -1), (5, args.beta, -2)):
        if x is not None:
            found[i] = given.sum(dim, keepdim=True).sum_to_size(x.shape).to(x.dtype)
    return tuple(found)


def _launch_rows(kernel: Any, args: Arguments, *results: Tensor, by_tile: bool = False) -> None:
    """Run a kernel of `rows.py`, one program for each block of queries, or for each tile."""
    changes, sides = prepare.pairs(args), forward_tile(args)
    programs = prepare.count(args) * blocks_in(args.sizes[3], sides[0])
    if by_tile:
        programs *= blocks_in(args.sizes[4], sides[1])
    if not programs:
        return
    for form, kind, units in prepare.forms(args):
        chosen = tile(args, sides, kind, units, changes)
        kernel[(programs,)](
            form, changes, sizes(args), *results, chosen, chunk(units), num_warps=sides[2]
        )
