"""The launches of a decoder's step: one query for each sequence and head, with weights, forward and backward.

Steps that differ in the number of keys alone share their launches, so that keys may grow by one at each step.
The forward writes each logit once and makes weights of them where it combines the parts. The backward reads
the weights, and computes no score again.

Shape legend: B batch, H heads, K key heads (1 or H), L keys, E hidden units, V value width; Z = B H.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.gpu import device_current
from regard.engines.launching import (
    REMEMBERED,
    Launch,
    Pieces,
    addresses,
    current_stream,
    interpreted,
    slotted,
)
from regard.engines.sizes import blocks_in
from regard.engines.triton import choices, prepare
from regard.engines.triton.choices import Summing
from regard.engines.triton.decode import combine_kernel, decode_kernel
from regard.engines.triton.decode_backward import decode_backward_kernel, sum_copies_kernel
from regard.engines.triton.step_operands import (
    NOMINAL_KEYS,
    Stepped,
    StepSignature,
    meta,
    nominal,
    step_signature,
)
from regard.engines.triton.structs import BackwardRows, DecodePointers, ShownWeights
from regard.precision import HALF

# Modules reach everything that makes a step by the name of this one, which imports Triton.
__all__ = ["MemorySteps", "StepLaunches", "Stepped", "launches_for", "step_signature"]

FLOAT = torch.float32


@functools.lru_cache(maxsize=REMEMBERED)
def launches_for(signature: StepSignature) -> StepLaunches:
    """The launches of all steps of this signature."""
    return StepLaunches(signature)


class Lengths(NamedTuple):
    """How a step over some number of keys is divided, and its scratch memory."""

    parts: int
    share: int
    scratch: Pieces
    blocks: int


class StepLaunches:
    """The launches of all steps of one signature, made when they are first needed. It keeps no operand."""

    def __init__(self, signature: StepSignature) -> None:
        self.signature = x = signature
        self.args = args = nominal(x)
        ((form, self.name, self.units),) = prepare.direct(args)
        self.pairs, values = prepare.pairs(args), prepare.values(args)
        form = form._replace(v=args.v)
        self.operands = choices.growing(form, self.pairs, choices.sizes(args), values)[:4]
        given = (form.q, form.k, form.v, values.value, self.pairs.dense)
        self.given = [one for one in given if one is not None]
        self.rows, (self.block, self.wide) = x.batch * x.heads, choices.decode_tile(args)
        # Whether keys and values have one head each that reads them, which then has their whole gradient.
        self.alone = (x.key_heads == x.heads, x.heads == 1)
        self.forwards: dict[tuple, tuple[Launch, Launch]] = {}
        self.backwards: dict[tuple[torch.dtype, bool, bool], Launch] = {}
        _, _, most = choices.decode_parts(self.rows, NOMINAL_KEYS, x.units + x.dims, self.block)
        self.together = choices.combining(most, x.dims)
        self.chunks = max(blocks_in(x.dims, self.together[1]), 1)
        self.lengths = functools.lru_cache(maxsize=REMEMBERED)(self.divided)
        self.sums = [
            Launch(sum_copies_kernel, 1, (FLOAT, dtype), as_given, summing.constants)
            for summing, dtype in zip(self.summing(1), (x.dtype, x.v_dtype), strict=True)
        ]
        self.shape = (x.batch, x.heads * x.dims)

    def divided(self, keys: int) -> Lengths:
        """How so many keys are divided."""
        x, rows = self.signature, self.rows
        parts, share, _ = choices.decode_parts(rows, keys, x.units + x.dims, self.block)
        numbers = (rows * parts * x.dims, rows * parts, rows * parts, rows * keys)
        scratch = Pieces(*((n, FLOAT) for n in numbers))
        return Lengths(parts, share, scratch, blocks_in(keys, self.block))

    def outputs(self, saves: bool) -> tuple[torch.dtype, ...]:
        """The dtypes that the context is written in: fp32 for a backward, and last that of the values."""
        dtype = self.signature.dtype
        if dtype not in HALF:
            return (dtype,)
        # The interpreter truncates to half precision where a GPU rounds: there the host rounds.
        return (FLOAT,) if interpreted() else (FLOAT, dtype) if saves else (dtype,)

    def forward_launches(
        self, dtypes: tuple[torch.dtype, ...], shown: int
    ) -> tuple[Launch, Launch]:
        """The two launches for outputs of these dtypes: without weights (0), with them (3), and a copy (4)."""
        key = (dtypes, shown)
        if key not in self.forwards:
            x, args = self.signature, self.args
            sums, logits = [meta(FLOAT) for _ in range(3)], meta(FLOAT) if shown else None
            given = [meta(FLOAT) for _ in range(shown)]
            copy = given[1:-2] or [None]
            weights = ShownWeights(given[0], *copy, *given[-2:]) if shown else None
            kept = [] if logits is None else [logits]
            tile = choices.tile(args, (16, self.block, 4), self.name, self.units, self.pairs)
            side = choices.keys_side_by_side(self.block, x.dims)
            first = launch_of(
                decode_kernel,
                [*self.given, *sums, *kept],
                (*self.operands, *sums, logits),
                (tile, self.block, self.wide, side, x.even),
            )
            outputs = [meta(dtype) for dtype in dtypes]
            rounded = outputs[1] if len(outputs) > 1 else None
            second = launch_of(
                combine_kernel,
                [*sums, *outputs, *kept, *given],
                (*sums, outputs[0], None, None, None, rounded, logits, weights),
                (*self.together, choices.COMBINED_KEYS),
            )
            self.forwards[key] = first, second
        return self.forwards[key]

    def sum_up(
        self, which: int, stream: int | None, copies: Tensor, result: Tensor, blocks: int
    ) -> None:
        """Sum the copies of the gradient of a (0) or of v (1)."""
        summing = self.summing(blocks)[which]
        pointers = addresses(copies, result)
        self.sums[which](stream, pointers, *summing.numbers, programs=summing.programs)

    def of_v(self, copies: Tensor, keys: int) -> Tensor:
        """The gradient of v (H, E) from its copies of a call with so many keys."""
        x = self.signature
        found = torch.empty((x.heads, x.units), dtype=x.v_dtype, device=x.device)
        with device_current(x.device):
            self.sum_up(1, current_stream(x.device), copies, found, self.lengths(keys).blocks)
        return found

    def summing(self, blocks: int) -> tuple[Summing, Summing]:
        """The sums of the gradients of a and of v over blocks of keys."""
        x = self.signature
        return (
            choices.summing_q(self.rows, x.units, blocks),
            choices.summing_v(x.heads, x.units, blocks * x.batch),
        )

    def backward_launch(self, dtype: torch.dtype, weighs: bool, adds: bool) -> Launch:
        """The launch for an incoming gradient of this dtype, and with `weighs` one of the weights."""
        key = (dtype, weighs, adds)
        if key not in self.backwards:
            x, args = self.signature, self.args
            sides, wide, dims, _, _ = choices.decode_blocks(args)
            tile = choices.tile(args, sides, self.name, self.units, self.pairs, backward=True)
            rows = [meta(dtype), meta(FLOAT), meta(FLOAT)]
            more = [meta(FLOAT), meta(FLOAT)] if weighs else [None, None]
            known = BackwardRows(
                grad=rows[0], output=rows[1], weights=rows[2], shift=more[0], grad_weights=more[1]
            )
            of_k, of_value = (meta(x.dtype if alone else FLOAT) for alone in self.alone)
            grads = DecodePointers(meta(FLOAT), of_k, meta(FLOAT), of_value, None, None)
            self.backwards[key] = launch_of(
                decode_backward_kernel,
                [*self.given, *rows, *(one for one in more if one is not None), *grads[:4]],
                (*self.operands, known, grads),
                (tile, wide, dims, x.even, adds),
            )
        return self.backwards[key]


class MemorySteps:
    """All steps over the same keys and values: what does not change from step to step is laid out once.

    Args:
        launches: those of the signature.
        b: (B, K, L, E).
        value: (B, 1 or K, L, V).
        visible: (B, L), or None where all keys are visible.
    """

    def __init__(
        self, launches: StepLaunches, b: Tensor, value: Tensor, visible: Tensor | None
    ) -> None:
        self.launches, self.b, self.value, self.visible = launches, b, value, visible
        self.keys, self.device = b.shape[2], b.device
        self.lengths = launches.lengths(self.keys)
        k_b, k_k, *_ = b.stride()
        value_b, by_head, *_ = value.stride()
        # The heads of the values are those of the keys, or the second of two dims of heads, or all one.
        by_head = 0 if value.shape[1] == 1 else by_head
        of_value = (by_head, 0) if b.shape[1] > 1 else (0, by_head)
        seen = 0 if visible is None else visible.stride(0)
        # What depends on the number of keys, in the order of `decode.GROWING`.
        self.growing = (self.keys, k_b, k_k, 0, value_b, *of_value, 0, 0, 0, 0, seen, 0, 0, 0)
        # Triton loads booleans as bytes.
        self.seen = [] if visible is None else [visible.view(torch.uint8)]

    def context(self, a: Tensor, v: Tensor) -> Tensor:
        """The context (B, H V) of queries a (B, H or 1, 1, E) alone, without weights and for no backward."""
        outputs = self.run_forward(a, v, self.launches.outputs(False), ())
        return outputs[-1].to(self.launches.signature.dtype)

    def step(self, a: Tensor, v: Tensor, before: Tensor, saves: bool) -> Stepped:
        """The results; with `saves` also what a backward starts from. `before` (B, H, L) is in fp32."""
        weights, total = torch.empty_like(before), torch.empty_like(before)
        # The caller may change what it is shown; a backward reads the other.
        shown = torch.empty_like(before) if saves else weights
        dtypes = self.launches.outputs(saves)
        results = (shown, weights, before, total) if saves else (weights, before, total)
        outputs = self.run_forward(a, v, dtypes, results)
        context, dtype = outputs[-1], self.launches.signature.dtype
        context = context if context.dtype is dtype else context.to(dtype)
        return Stepped(context, outputs[0] if saves else None, shown, weights, total)

    def run_forward(
        self, a: Tensor, v: Tensor, dtypes: tuple[torch.dtype, ...], shown: Sequence[Tensor]
    ) -> list[Tensor]:
        """The context in these dtypes; the weights too if there is memory for them."""
        own, device = self.launches, self.device
        parts, share, scratch, *_ = self.lengths
        outputs = [torch.empty(own.shape, dtype=dtype, device=device) for dtype in dtypes]
        first, second = own.forward_launches(dtypes, len(shown))
        with device_current(device):
            memory, stream = scratch.new(device), current_stream(device)
            *sums, logits = scratch.cut(memory)
            given = addresses(a, self.b, v, self.value, *self.seen, *outputs, *shown)
            count = 4 + len(self.seen)
            kept = (logits,) if shown else ()
            given, made = given[:count], given[count:]
            made, weights = made[: len(outputs)], made[len(outputs) :]
            rows = own.rows
            first(
                stream, (*given, *sums, *kept), *self.growing, parts, share, programs=rows * parts
            )
            programs = rows * own.chunks
            pointers = (*sums, *made, *kept, *weights)
            second(stream, pointers, self.keys, parts, own.signature.dims, programs=programs)
        return outputs

    def new_sides(self) -> tuple[Tensor, Tensor]:
        """Memory for the gradients of b and the values, for each head: in fp32 where heads share them."""
        x = self.launches.signature
        of_b, of_value = (
            torch.empty(
                (x.batch, x.heads, self.keys, width),
                dtype=x.dtype if alone else FLOAT,
                device=x.device,
            )
            for width, alone in zip((x.units, x.dims), self.launches.alone, strict=True)
        )
        return of_b, of_value

    def new_copies(self) -> Tensor:
        """Memory for the gradient of v, a copy for each block of keys."""
        x = self.launches.signature
        count = self.lengths.blocks * self.launches.rows * x.units
        return torch.empty(count, dtype=FLOAT, device=self.device)

    def backward(
        self,
        a: Tensor,
        v: Tensor,
        known: Sequence[Tensor],
        grad_weights: Tensor | None,
        sums: tuple[Tensor, Tensor, Tensor] | None = None,
        adds: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The gradients of a, b, v and the values.

        `known` is the gradient of the context, the output and the weights. `sums` is memory for the gradients
        of b, of the values and for the copies of that of v, which are then not returned; with `adds` they
        are added to what it holds.
        """
        own, device, x = self.launches, self.device, self.launches.signature
        blocks = self.lengths.blocks
        of_a = torch.empty((x.batch, x.heads, 1, x.units), dtype=x.dtype, device=device)
        of_b, of_value, copies = (*self.new_sides(), self.new_copies()) if sums is None else sums
        grad, output, weights = known
        rows = [grad.contiguous(), output, weights]
        if grad_weights is not None:
            # The average gradient of the weights, which the softmax takes off.
            rows += [(weights * grad_weights).sum(-1), grad_weights.contiguous()]
        launch = own.backward_launch(grad.dtype, grad_weights is not None, adds)
        parts = torch.empty(blocks * own.rows * x.units, dtype=FLOAT, device=device)
        with device_current(device):
            stream = current_stream(device)
            pointers = addresses(
                a, self.b, v, self.value, *self.seen, *rows, parts, of_b, copies, of_value
            )
            launch(stream, pointers, *self.growing, blocks, programs=own.rows * blocks)
            own.sum_up(0, stream, parts, of_a, blocks)
        if sums is not None:
            return of_a, None, None, None
        return of_a, of_b, own.of_v(copies, self.keys), of_value


def as_given(*operands: object) -> tuple:
    """All arguments of a kernel, where they are its pointers and numbers one after the other."""
    return operands


def launch_of(
    kernel: Callable, operands: Sequence[Tensor], template: tuple, constants: tuple
) -> Launch:
    """The launch of a kernel by the addresses of these operands, in this order, and then its numbers."""
    tensors, fill = slotted(template)
    at = {id(one): i for i, one in enumerate(operands)}
    chosen, count = operator.itemgetter(*[at[id(one)] for one in tensors]), len(operands)

    def arguments(*given: object) -> list:
        return [*fill(*chosen(given)), *given[count:]]

    dtypes = [one.dtype for one in operands]
    return Launch(kernel, 1, dtypes, arguments, constants, **choices.DECODE_OPTIONS)
