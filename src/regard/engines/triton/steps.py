"""The launches of a decoder's step: one query for each sequence and head, with weights, forward and backward.

Steps that differ in the number of keys alone share their launches, so that keys may grow by one at each step.
The forward writes each logit once and makes weights of them where it combines the parts. The backward reads
the weights, and computes no score again.

Shape legend: B batch, H heads, K key heads (1 or H), L keys, E hidden units, V value width; Z = B H.
"""

from __future__ import annotations

import functools
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
    StepOperands,
    Stepped,
    StepSignature,
    meta,
    nominal,
    readable,
    step_signature,
)
from regard.engines.triton.structs import BackwardRows, DecodePointers, ShownWeights
from regard.precision import HALF

# Modules reach everything that makes a step by the name of this one, which imports Triton.
__all__ = ["StepLaunches", "StepOperands", "Stepped", "launches_for", "step_signature"]

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
    copies: Pieces


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

    def divided(self, keys: int) -> Lengths:
        """How so many keys are divided."""
        x, rows = self.signature, self.rows
        parts, share, _ = choices.decode_parts(rows, keys, x.units + x.dims, self.block)
        numbers = (rows * parts * x.dims, rows * parts, rows * parts, rows * keys)
        blocks = blocks_in(keys, self.block)
        copies = (rows * blocks * x.units, FLOAT)
        scratch = Pieces(*((n, FLOAT) for n in numbers))
        return Lengths(parts, share, scratch, blocks, Pieces(copies, copies))

    def growing(self, x: StepOperands) -> tuple[int, ...]:
        """What depends on the number of keys, in the order of `decode.GROWING`."""
        k_b, k_k, *_ = x.b.stride()
        value_b, by_head, *_ = x.value.stride()
        # The heads of the values are those of the keys, or the second of two dims of heads, or all one.
        by_head = 0 if x.value.shape[1] == 1 else by_head
        of_value = (by_head, 0) if x.b.shape[1] > 1 else (0, by_head)
        seen = 0 if x.visible is None else x.visible.stride(0)
        return (x.b.shape[2], k_b, k_k, 0, value_b, *of_value, 0, 0, 0, 0, seen, 0, 0, 0)

    def context(self, x: StepOperands) -> Tensor:
        """The context (B, H, V) alone, without weights and for no backward."""
        outputs = self.outputs(saves=False)
        self.run_forward(x, outputs, ())
        return outputs[-1].to(self.signature.dtype)

    def step(self, x: StepOperands, before: Tensor, saves: bool) -> Stepped:
        """The results; with `saves` also what a backward starts from."""
        own = self.signature
        outputs, shape = self.outputs(saves), (own.batch, own.heads, x.b.shape[2])
        shown, weights, total = (
            torch.empty(shape, dtype=FLOAT, device=own.device) for _ in range(3)
        )
        self.run_forward(x, outputs, (shown, weights, before, total))
        output = outputs[0] if saves else None
        return Stepped(outputs[-1].to(own.dtype), output, shown, weights, total)

    def outputs(self, saves: bool) -> list[Tensor]:
        """Memory for the context: in fp32 for a backward, and last in the dtype of the values."""
        x = self.signature
        # The interpreter truncates to half precision where a GPU rounds: there the host rounds.
        dtypes = [x.dtype]
        if x.dtype in HALF:
            dtypes = [FLOAT] if interpreted() else [FLOAT, x.dtype] if saves else [x.dtype]
        shape = (x.batch, x.heads, x.dims)
        return [torch.empty(shape, dtype=dtype, device=x.device) for dtype in dtypes]

    def run_forward(
        self, x: StepOperands, outputs: Sequence[Tensor], shown: Sequence[Tensor]
    ) -> None:
        """Launch both kernels, which write the outputs, and the weights if there is memory for them."""
        device, keys = self.signature.device, x.b.shape[2]
        parts, share, scratch, *_ = self.lengths(keys)
        first, second = self.forward_launches(tuple(one.dtype for one in outputs), bool(shown))
        with device_current(device):
            memory, stream = scratch.new(device), current_stream(device)
            *sums, logits = scratch.cut(memory)
            kept = [logits] if shown else []
            first(
                stream,
                (*addresses(*readable(x)), *sums, *kept),
                *self.growing(x),
                parts,
                share,
                programs=self.rows * parts,
            )
            second(
                stream,
                (*sums, *addresses(*outputs), *kept, *(addresses(*shown) if shown else ())),
                keys,
                parts,
                self.signature.dims,
                programs=self.rows * self.chunks,
            )

    def forward_launches(
        self, dtypes: tuple[torch.dtype, ...], weighs: bool
    ) -> tuple[Launch, Launch]:
        """The two launches for outputs of these dtypes, with weights or without."""
        key = (dtypes, weighs)
        if key not in self.forwards:
            x, args = self.signature, self.args
            sums, logits = [meta(FLOAT) for _ in range(3)], meta(FLOAT) if weighs else None
            shown = ShownWeights(*(meta(FLOAT) for _ in range(4))) if weighs else None
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
                [*sums, *outputs, *kept, *(shown or ())],
                (*sums, outputs[0], None, None, None, rounded, logits, shown),
                (*self.together, choices.COMBINED_KEYS),
            )
            self.forwards[key] = first, second
        return self.forwards[key]

    def backward(
        self,
        x: StepOperands,
        grad: Tensor,
        output: Tensor,
        weights: Tensor,
        grad_weights: Tensor | None,
        into: Sequence[Tensor] | None = None,
        adds: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of a, b, v and the values.

        `into` is memory for those of b and the values; with `adds` they are added to what it holds.
        """
        own, device, keys = self.signature, self.signature.device, x.b.shape[2]
        _, _, _, blocks, copies = self.lengths(keys)
        of_a = torch.empty((own.batch, own.heads, 1, own.units), dtype=own.dtype, device=device)
        of_v = torch.empty((own.heads, own.units), dtype=own.v_dtype, device=device)
        of_b, of_value = self.new_sides(keys) if into is None else into
        known = [grad.contiguous(), output, weights]
        if grad_weights is not None:
            # The average gradient of the weights, which the softmax takes off.
            known += [(weights * grad_weights).sum(-1), grad_weights.contiguous()]
        launch = self.backward_launch(grad.dtype, grad_weights is not None, adds)
        with device_current(device):
            memory, stream = copies.new(device), current_stream(device)
            of_copies = copies.cut(memory)
            given = addresses(*readable(x), *known)
            made = addresses(of_b, of_value, of_a, of_v)
            launch(
                stream,
                (*given, of_copies[0], made[0], of_copies[1], made[1]),
                *self.growing(x),
                blocks,
                programs=self.rows * blocks,
            )
            for sum_up, summing, found, result in zip(
                self.sums, self.summing(blocks), of_copies, made[2:], strict=True
            ):
                sum_up(stream, (found, result), *summing.numbers, programs=summing.programs)
        return of_a, of_b, of_v, of_value

    def summing(self, blocks: int) -> tuple[Summing, Summing]:
        """The sums of the gradients of a and of v over blocks of keys."""
        x = self.signature
        return (
            choices.summing_q(self.rows, x.units, blocks),
            choices.summing_v(x.heads, x.units, blocks * x.batch),
        )

    def new_sides(self, keys: int) -> tuple[Tensor, Tensor]:
        """Memory for the gradients of b and the values, for each head: in fp32 where heads share them."""
        x = self.signature
        of_b, of_value = (
            torch.empty(
                (x.batch, x.heads, keys, width), dtype=x.dtype if alone else FLOAT, device=x.device
            )
            for width, alone in zip((x.units, x.dims), self.alone, strict=True)
        )
        return of_b, of_value

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


def as_given(*operands: object) -> tuple:
    """All arguments of a kernel, where they are its pointers and numbers one after the other."""
    return operands


def launch_of(
    kernel: Callable, operands: Sequence[Tensor], template: tuple, constants: tuple
) -> Launch:
    """The launch of a kernel by the addresses of these operands, in this order, and then its numbers."""
    tensors, fill = slotted(template)
    at = {id(one): i for i, one in enumerate(operands)}
    order, count = [at[id(one)] for one in tensors], len(operands)

    def arguments(*given: object) -> tuple:
        return (*fill(*[given[i] for i in order]), *given[count:])

    dtypes = [one.dtype for one in operands]
    return Launch(kernel, 1, dtypes, arguments, constants, **choices.DECODE_OPTIONS)
