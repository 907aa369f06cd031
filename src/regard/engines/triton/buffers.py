"""Memory that the backward kernels write to, and the gradients made from it.

Shape legend: see `structs`; (B, K, G, rows, columns) as in `regard.engines.tiled.operators`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.engines.sizes import blocks_in, power_of_two
from regard.engines.tiled import Arguments
from regard.engines.triton import choices, prepare
from regard.engines.triton.decode_backward import sum_copies_kernel
from regard.engines.triton.flagged import collect_kernel, collected_sizes
from regard.engines.triton.lanes import SIDE
from regard.engines.triton.structs import DecodePointers, GradientPointers
from regard.precision import working_dtype

# A sum for every head, and its 5 dims.
Total = tuple[Tensor | None, tuple[int, ...]]
# Operands of a pairwise call, in the order of `Arguments.differentiable()`.
OPERAND_NAMES = ("q", "k", "value", "v")
# Rows that one program collects, and numbers that one program sums.
ROWS_COLLECTED_AT_ONCE, NUMBERS_SUMMED_AT_ONCE = 32, 1024


class GradientBuffers:
    """The sums of the tiled backward, in working precision, separate for every head.

    With `unit`, sums that several programs add to are integers, see `ordered.py`. Those of pairwise forms are
    padded to whole tiles, so that kernels compiled for one length serve all, and for `lanes.py` to an even number
    of hidden units.
    """

    def __init__(
        self,
        args: Arguments,
        of_attention: bool,
        with_bias: bool,
        unit: Tensor | None,
        by_lanes: bool = False,
    ) -> None:
        self.args, self.unit = args, unit
        z, (queries, keys), units = prepare.count(args), args.sizes[3:], args.q.shape[-1]
        work = working_dtype(args.q.dtype)
        pairwise = args.v is not None
        self.units = units + units % 2 if by_lanes else units
        self.steps = (aligned(queries, SIDE), aligned(keys, SIDE)) if pairwise else (queries, keys)
        # Pairwise: hidden units before lengths, the order in which the kernel adds to them.
        of_q = (z, self.units, self.steps[0]) if pairwise else (z, queries, units)
        of_k = (z, self.units, self.steps[1]) if pairwise else (z, keys, units)
        of_value = (z, keys, args.value.shape[-1])
        self.v: Tensor | None = None
        self.value: Tensor | None = None
        self.rate: Tensor | None = None
        self.alpha: Tensor | None = None
        self.beta: Tensor | None = None
        self.bias: Tensor | None = None
        self.broken_rows: Tensor | None = None

        def zeros(*shape: int, dtype: torch.dtype = work) -> Tensor:
            return args.q.new_zeros(shape, dtype=dtype)

        shared = work if unit is None else torch.int64
        nothing = (0,)
        q, self.k, v, value = zeroed(
            args.q,
            work,
            of_q if unit is None else nothing,
            of_k,
            of_k if pairwise else nothing,
            of_value if of_attention else nothing,
        )
        self.q = q if unit is None else zeros(*of_q, dtype=shared)
        self.v = v if pairwise else None
        self.value = value if of_attention else None
        if unit is not None:
            self.broken_rows = zeros(z, queries, dtype=torch.int32)
        if not of_attention:
            return
        if args.rate is not None:
            self.rate = zeros(z, queries, dtype=shared)
        if args.alpha is not None:
            self.alpha = zeros(z, queries, dtype=shared)
        if args.beta is not None:
            self.beta = zeros(z, keys)
        if args.bias is not None and with_bias:
            # For a fixed order of sums each pair has a number of its own, and torch sums them afterwards.
            self.bias = zeros(*(args.bias.shape if unit is None else args.sizes))

    def pointers(self) -> GradientPointers:
        """The sums as the kernel takes them."""
        return GradientPointers(
            self.q,
            self.k,
            self.v,
            self.units,
            *self.steps,
            self.value,
            self.rate,
            self.alpha,
            self.beta,
            self.bias,
            *prepare.strides(self.bias),
            self.unit,
            self.broken_rows,
        )

    def counted(self, x: Tensor | None) -> Tensor | None:
        """The numbers that integers (..., Q) stand for; NaN in broken rows."""
        if x is None or self.unit is None or self.broken_rows is None:
            return x
        unit, broken = self.unit, self.broken_rows > 0
        # Sums of q have hidden units before the rows, those of rate and alpha have rows alone.
        if x.ndim == 3:
            unit, broken = unit.unsqueeze(-2), broken.unsqueeze(-2)
        found = (x.double() / unit).to(working_dtype(self.args.q.dtype))
        return torch.where(broken, torch.nan, found)

    def is_common(self) -> bool:
        """Whether `collect_kernel` makes the gradients, so that this call sums in the order of bound launches."""
        counts = self.unit is None and self.value is not None and self.q.dtype == torch.float32
        return counts and prepare.has_own_memory(self.args) and self.q.numel() > 0

    def collected(self) -> tuple[Tensor, ...]:
        """The gradients of `Arguments.differentiable()`, each summed to the shape of its input."""
        args = self.args
        b, k, g, queries, keys = args.sizes
        terms = [
            (self.counted(self.alpha), (b, k, g, queries, 1)),
            (self.beta, (b, k, g, 1, keys)),
            (self.counted(self.rate), (b, k, g, queries, 1)),
            (self.bias, () if self.bias is None else tuple(self.bias.shape)),
        ]
        sides = collected_at_once(args, self.pointers()) if self.is_common() else self.sides()
        return (*sides, *in_shape(args, terms, args.differentiable()[4:]))

    def sides(self) -> tuple[Tensor, ...]:
        """The gradients of q, k, value and v."""
        args = self.args
        b, k, g, queries, keys = args.sizes
        units = args.q.shape[-1]
        if args.v is None:
            of_q = self.counted(self.q.mT) if self.unit is not None else self.q.mT
            of_k, of_v = self.k.mT, None
        else:
            assert self.v is not None
            of_q = self.counted(self.q[:, :units, :queries])
            of_k, of_v = (x[:, :units, :keys] for x in (self.k, self.v))
        assert of_q is not None
        totals: list[Total] = [
            (of_q.mT, (b, k, g, queries, units)),
            (of_k.mT, (b, k, g, keys, units)),
            (self.value, (b, k, g, keys, args.value.shape[-1])),
            (None if of_v is None else of_v.sum(-1), (b, k, g, 1, units)),
        ]
        return in_shape(args, totals, args.differentiable()[:4])


def collected_at_once(args: Arguments, grads: GradientPointers) -> list[Tensor]:
    """The gradients of q, k, value and v, for a call where `prepare.has_own_memory`."""
    assert args.v is not None
    like = (args.q, args.k, args.value, args.v)
    made = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in like]
    programs, arguments, constants = collecting(args, grads, made)
    collect_kernel[(programs,)](*arguments, *constants)
    return made


def collecting(
    args: Arguments, grads: GradientPointers, results: list[Tensor]
) -> tuple[int, tuple, tuple]:
    """Programs, arguments and constants of `collect_kernel`, which makes gradients from the sums."""
    batch, groups, shared, queries, keys = args.sizes
    units, dims = args.q.shape[-1], args.value.shape[-1]
    of_q, of_k, of_value, of_v = results
    sums, heads = (grads.q, grads.k, grads.v, grads.value), groups * shared
    steps = (grads.units, grads.q_step, grads.k_step)
    sizes = collected_sizes(batch, heads, shared, queries, keys, steps, units, dims)
    programs = batch * heads * blocks_in(queries, ROWS_COLLECTED_AT_ONCE) + heads * units
    programs += 2 * batch * groups * blocks_in(keys, ROWS_COLLECTED_AT_ONCE)
    wide = (min(power_of_two(n), 64) for n in (units, dims))
    arguments = (*sums, of_q, of_k, of_v, of_value, None, *sizes, 1.0)
    return programs, arguments, (ROWS_COLLECTED_AT_ONCE, *wide, NUMBERS_SUMMED_AT_ONCE)


class DecodeBuffers:
    """The results of the decode backward, see `DecodePointers`.

    Copies that are left to sum are in working precision. A gradient that is complete as written is in its
    final dtype. That holds for bound and other launches alike: the dtype decides how the kernel is
    compiled, and with it the order of its sums.
    """

    def __init__(self, args: Arguments, parts: int, with_bias: bool = False) -> None:
        self.args, self.own = args, prepare.has_own_memory(args)
        self.sums = choices.decode_sums(args, parts) if self.own else {}
        z, (queries, keys), units = prepare.count(args), args.sizes[3:], args.q.shape[-1]
        work = working_dtype(args.q.dtype)

        def empty(*shape: int, dtype: torch.dtype = work) -> Tensor:
            return args.q.new_empty(shape, dtype=dtype)

        def gradient(name: str, *shape: int) -> Tensor:
            x = getattr(args, name)
            return empty(*x.shape, dtype=x.dtype) if self.is_whole(name) else empty(*shape)

        self.q = gradient("q", z, parts, queries, units)
        self.k = gradient("k", z, keys, units)
        self.v = gradient("v", parts, z, units)
        self.value = gradient("value", z, keys, args.value.shape[-1])
        self.rate = None if args.rate is None else empty(z, parts, queries)
        self.bias = empty(z, queries, keys) if with_bias and args.bias is not None else None

    def is_whole(self, name: str) -> bool:
        """Whether this gradient is complete as the kernel writes it, with nothing left to sum."""
        return self.own and name not in self.sums

    def pointers(self) -> DecodePointers:
        """The results as the kernel takes them."""
        return DecodePointers(self.q, self.k, self.v, self.value, self.rate, self.bias)

    def collected(self) -> tuple[Tensor, ...]:
        """The gradients of `Arguments.differentiable()`, each summed to the shape of its input."""
        args = self.args
        b, k, g, queries, keys = args.sizes
        rate = None if self.rate is None else self.rate.sum(1)
        terms = [
            (None, ()),
            (None, ()),
            (rate, (b, k, g, queries, 1)),
            (self.bias, (b, k, g, queries, keys)),
        ]
        return (*self.sides(), *in_shape(args, terms, args.differentiable()[4:]))

    def sides(self) -> tuple[Tensor, ...]:
        """The gradients of q, k, value and v."""
        args = self.args
        if self.own:
            return tuple(
                summed(found, self.sums[name], getattr(args, name)) if name in self.sums else found
                for name, found in zip(
                    OPERAND_NAMES, (self.q, self.k, self.value, self.v), strict=True
                )
            )
        b, k, g, queries, keys = args.sizes
        units = args.q.shape[-1]
        totals: list[Total] = [
            (self.q.sum(1), (b, k, g, queries, units)),
            (self.k, (b, k, g, keys, units)),
            (self.value, (b, k, g, keys, args.value.shape[-1])),
            (self.v.sum(0), (b, k, g, 1, units)),
        ]
        return in_shape(args, totals, args.differentiable()[:4])


def summed(found: Tensor, summing: choices.Summing, like: Tensor) -> Tensor:
    """The sum of the copies of each row, in the shape and dtype of `like` and the order of bound launches."""
    result = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    sum_copies_kernel[(summing.programs,)](found, result, *summing.numbers, *summing.constants)
    return result


def in_shape(
    args: Arguments, totals: Sequence[Total], inputs: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Each total summed to the shape of its input; an empty tensor where there is none."""
    return tuple(
        args.q.new_empty(0) if total is None or x is None else summed_to(total.reshape(shape), x)
        for (total, shape), x in zip(totals, inputs, strict=True)
    )


def zeroed(like: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Zeros of these shapes in one allocation, which one launch clears."""
    sizes = [math.prod(shape) for shape in shapes]
    # Each starts at a multiple of 16 bytes: Triton compiles another kernel for other pointers.
    parts = like.new_zeros(sum(aligned(n) for n in sizes), dtype=dtype).split(
        [aligned(n) for n in sizes]
    )
    return [part[:n].view(shape) for part, n, shape in zip(parts, sizes, shapes, strict=True)]


def aligned(count: int, to: int = 4) -> int:
    """`count` rounded up to a multiple of `to`."""
    return -(-count // to) * to


def summed_to(total: Tensor, x: Tensor) -> Tensor:
    """A gradient for each head, summed to the shape of x where heads share it, in the dtype of x.

    It is always a copy: a view would keep the whole buffer alive. `to` followed by `contiguous` would
    copy a transposed tensor twice.
    """
    if total.shape != x.shape:
        total = total.sum_to_size(x.shape)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(total)
