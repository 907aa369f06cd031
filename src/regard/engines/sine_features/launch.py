"""Binds and launches the feature kernels; block sizes, strides and memory are fixed by a signature.

Shape legend: see `operators`; W width of the features, X width of the values.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard import sine
from regard.engines.launching import (
    REMEMBERED,
    Address,
    Launch,
    Pieces,
    addresses,
    current_stream,
    sizes_between,
)
from regard.engines.sine_features.bounds import (
    FEATURE_ROUNDING,
    LARGEST_LOGIT,
    WIDE_LARGEST_LOGIT,
)
from regard.engines.sine_features.memory import (
    FLOAT,
    HALF,
    INT,
    PLACES_MEASURED,
    Notes,
    Scratch,
    Tables,
    note_words,
)
from regard.engines.sine_features.widths import widths_of
from regard.engines.sizes import blocks_in, power_of_two
from regard.sine import escapes
from regard.sine.series import load_lending

if TYPE_CHECKING:
    from regard.engines.sine_features.operators import SineInputs

# Elements of a tile of hidden units and of a tile of values that four warps hold in registers. The
# backward of the keys holds three tiles of values, so that each is smaller.
UNIT_TILE, VALUE_TILE, GRADIENT_TILE = 2048, 8192, 4096
# Numbers that a program which measures a range holds at once.
NUMBERS_HELD = 4096
# Parts of a head's range, heads, and numbers of partial sums that a program reads at once.
PARTS_READ, HEADS_READ, SUMS_READ = 64, 1024, 2048
# Powers of two that values (4) and grad_out (1) are scaled to in fp16. Their products, times weights of
# 1 / L and summed over Q queries, then neither overflow nor underflow for lengths of 32k and more.
VALUE_TARGET, GRAD_TARGET = 2, 0
MEASURING = {"PLACES": PLACES_MEASURED, "NUMBERS": NUMBERS_HELD}


class FeatureSignature(NamedTuple):
    """The shapes, strides, dtypes, device and series that calls share to use the same launches."""

    a: torch.Size
    a_stride: tuple[int, ...]
    b: torch.Size
    b_stride: tuple[int, ...]
    v_stride: tuple[int, ...]
    value: torch.Size
    value_stride: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    series: str
    rank: int
    wide: bool


def feature_signature(x: SineInputs) -> FeatureSignature:
    """The signature of this call."""
    a, b, v, value = x.a, x.b, x.v, x.value
    return FeatureSignature(
        *(a.shape, a.stride(), b.shape, b.stride(), v.stride(), value.shape, value.stride()),
        (a.dtype, b.dtype, v.dtype, value.dtype),
        *(a.device, x.kind, x.rank, x.wide),
    )


class FeatureCall(NamedTuple):
    """One call: addresses of its inputs, its numbers, and the stream."""

    a: Address
    b: Address
    v: Address
    value: Address
    rate: float
    allowed: float
    stream: int | None


def feature_call(x: SineInputs) -> FeatureCall:
    """The addresses and numbers of this call; `x` keeps the memory alive."""
    a, b, v, value = addresses(x.a, x.b, x.v, x.value)
    rate, allowed = x.numbers.tolist()[:2]
    return FeatureCall(a, b, v, value, rate, allowed, current_stream(x.a.device))


class Features:
    """The bound launches for all calls of one signature."""

    def __init__(self, signature: FeatureSignature) -> None:
        # Not at the top of the file: `import regard` works without Triton.
        from regard.engines.sine_features import feature_gradient_kernels, feature_kernels

        self.kernels, self.gradient_kernels = feature_kernels, feature_gradient_kernels
        self.signature = signature
        self.device, self.dtype = signature.device, signature.dtypes[3]
        self.batch, self.heads, self.queries, self.hidden = signature.a
        (_, self.key_heads, self.keys, _), self.value_dim = signature.b, signature.value[-1]
        shape = (self.hidden, self.value_dim, signature.wide)
        self.widths = widths_of(signature.series, signature.rank, *shape)
        load = load_lending if self.widths.lent else sine.load
        self.series = load(signature.series, signature.rank, signature.device)
        # `self.series` keeps the tables alive, to which these addresses point.
        self.tables = Tables(*addresses(*(getattr(self.series, name) for name in Tables._fields)))
        self.sizes = (self.heads, self.key_heads)
        self.parts = (
            blocks_in(self.queries, PLACES_MEASURED),
            blocks_in(self.keys, PLACES_MEASURED),
        )
        padded, wide = power_of_two(self.hidden), power_of_two(self.widths.values)
        # Tiles of a fixed number of elements: the wider a row, the fewer rows.
        self.block = max(16, UNIT_TILE // padded)
        self.value_block = max(16, VALUE_TILE // wide)
        # A program of the keys holds tiles of units and of values.
        self.key_block = min(self.value_block, self.block)
        self.gradient_block = min(max(16, GRADIENT_TILE // wide), self.block)
        self.query_blocks = blocks_in(self.queries, self.block)
        self.output_blocks = blocks_in(self.queries, self.value_block)
        self.key_blocks = blocks_in(self.keys, self.key_block)
        self.gradient_blocks = blocks_in(self.keys, self.gradient_block)
        self.fixed = {
            "G": self.heads // self.key_heads,
            "E": self.hidden,
            "EP": padded,
            "N": self.series.reach.shape[0],
            "LENT": self.widths.lent,
            "R": signature.rank,
            "W": self.widths.features,
            "TP": power_of_two(self.widths.features - 2 * signature.rank * self.hidden),
            "D": self.value_dim,
            "DP": power_of_two(self.value_dim),
            "X": self.widths.values,
            "XP": wide,
        }
        lead = (self.batch, self.heads)
        self.phi = (*lead, self.queries, self.widths.features)
        self.psi = (*lead, self.keys, self.widths.features)
        self.wide = (*lead, self.keys, self.widths.values)
        self.attended = (*lead, self.queries, self.widths.values)
        self.output = (*lead, self.queries, self.value_dim)
        self.bind_forward(signature)
        self.bind_backward(signature)

    def launch(
        self, kernel: Any, programs: int, dtypes: Sequence, *sizes: Any, **more: int
    ) -> Launch:
        """A launch of a kernel that takes pointers, then sizes, then floats, then named constants."""
        given = {**self.fixed, **more}
        # The constants are the only annotated parameters of a kernel.
        constants = [given[name] for name in kernel.fn.__annotations__]
        return Launch(kernel, programs, dtypes, sizes_between(len(dtypes), *sizes), constants)

    def bind_forward(self, signature: FeatureSignature) -> None:
        """Bind the launches before and after cuDNN's forward."""
        kernels, total, both = self.kernels, self.batch * self.heads, self.sizes
        a, b, v, value = signature.dtypes
        strides = (*signature.a_stride, *signature.b_stride, *signature.value_stride)
        programs = total * self.parts[0] + 2 * self.batch * self.key_heads * self.parts[1]
        self.find_peaks = self.launch(
            *(kernels.peaks, programs, (a, b, value, INT)),
            *(self.batch, *both, self.queries, self.keys, *self.parts, *strides),
            **MEASURING,
        )
        self.pick_rows = self.launch(
            *(kernels.pick_rows, self.batch * self.key_heads),
            (INT, v, FLOAT, FLOAT, FLOAT, FLOAT, INT, FLOAT, INT, INT),
            *(self.batch, *both, *self.parts, *signature.v_stride, FEATURE_ROUNDING),
            WIDE_LARGEST_LOGIT if signature.wide else LARGEST_LOGIT,
            PARTS=max(NUMBERS_HELD // self.fixed["EP"], 16),
        )
        self.make_query = self.launch(
            *(kernels.query_features, total * self.query_blocks, (a, v, INT, FLOAT, FLOAT, HALF)),
            *(*both, self.queries, self.query_blocks, *signature.a_stride, *signature.v_stride),
            BLOCK=self.block,
        )
        self.make_key = self.launch(
            *(kernels.key_features, total * self.key_blocks),
            (b, v, value, INT, FLOAT, FLOAT, FLOAT, HALF, HALF),
            *(*both, self.keys, self.key_blocks),
            *(*signature.b_stride, *signature.v_stride, *signature.value_stride),
            TARGET=VALUE_TARGET,
            BLOCK=self.key_block,
        )
        self.make_output = self.launch(
            *(kernels.finish, total * self.output_blocks),
            (HALF, FLOAT, value, INT, INT, torch.int64),
            *(self.batch, *both, self.queries, self.output_blocks),
            TARGET=VALUE_TARGET,
            BLOCK=self.value_block,
            HEADS=HEADS_READ,
        )
        # Returned by the operator and saved for the backward: without gaps, see `Pieces`.
        self.notes = Pieces(*note_words(signature.a, signature.b), gaps=False)

    def bind_backward(self, signature: FeatureSignature) -> None:
        """Bind the launches before and after cuDNN's backward."""
        gradients, total = self.gradient_kernels, self.batch * self.heads
        a, b, v, value = signature.dtypes
        targets = {"VALUE_TARGET": VALUE_TARGET, "GRAD_TARGET": GRAD_TARGET}
        self.of_query = self.launch(
            *(gradients.query_gradient, total * self.query_blocks),
            (a, v, INT, FLOAT, FLOAT, FLOAT, FLOAT, HALF, a, FLOAT),
            *(
                *self.sizes,
                self.queries,
                self.query_blocks,
                *signature.a_stride,
                *signature.v_stride,
            ),
            BLOCK=self.block,
            **targets,
        )
        self.of_key = self.launch(
            *(gradients.key_gradient, self.batch * self.key_heads * self.gradient_blocks),
            (b, v, INT, FLOAT, FLOAT, FLOAT, FLOAT, HALF, HALF, b, value, FLOAT),
            *(
                *self.sizes,
                self.keys,
                self.gradient_blocks,
                *signature.b_stride,
                *signature.v_stride,
            ),
            BLOCK=self.gradient_block,
            **targets,
        )
        self.of_weight = self.launch(
            *(gradients.weight_gradient, self.heads, (FLOAT, FLOAT, v, INT)),
            *(self.batch, self.heads, self.query_blocks, self.gradient_blocks),
            ROWS=max(SUMS_READ // self.fixed["EP"], 1),
        )
        # Bound later: strides and dtype of grad_out are no part of the signature.
        self.of_output = functools.lru_cache(maxsize=8)(self.bind_output)
        self.scratch = Pieces(
            (1, INT),
            (total, FLOAT),
            (total * self.parts[0], INT),
            (total * self.query_blocks * self.hidden, FLOAT),
            (total * self.gradient_blocks * self.hidden, FLOAT),
        )

    def bind_output(self, stride: tuple[int, ...], dtype: torch.dtype) -> tuple[Launch, Launch]:
        """The launches for grad_out of these strides and this dtype."""
        total, parts = self.batch * self.heads, self.parts[0]
        sizes = (self.heads, self.queries, parts, *stride)
        find = self.launch(
            self.gradient_kernels.gradient_peaks, total * parts, (dtype, INT), *sizes, **MEASURING
        )
        make = self.launch(
            *(self.gradient_kernels.output_gradient, total * self.output_blocks),
            (dtype, INT, INT, FLOAT, INT, HALF),
            *(*sizes, self.output_blocks),
            TARGET=GRAD_TARGET,
            BLOCK=self.value_block,
            PARTS=PARTS_READ,
        )
        return find, make

    def new(self, shape: Sequence[int], dtype: torch.dtype = HALF) -> Tensor:
        """An uninitialised tensor."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def measure(self, call: FeatureCall) -> tuple[Tensor, Notes]:
        """Measure the range and pick rows: the allocation of the notes, and its addresses."""
        memory, tables = self.notes.new(self.device), self.tables
        notes = Notes(*self.notes.cut(memory))
        holds, weight, row, peak, sound, parts = notes
        self.find_peaks(call.stream, (call.a, call.b, call.value, parts))
        self.pick_rows(
            call.stream,
            (
                *(parts, call.v, tables.reach, tables.error, tables.coefficients),
                *(weight, row, peak, sound, holds),
            ),
            call.rate,
            call.allowed,
        )
        return memory, notes

    def query(self, call: FeatureCall, notes: Notes) -> Tensor:
        """The features phi (B, H, Q, W)."""
        phi, tables = self.new(self.phi), self.tables
        known = (call.a, call.v, notes.row, tables.frequencies, tables.coefficients)
        self.make_query(call.stream, (*known, *addresses(phi)), call.rate)
        return phi

    def key(self, call: FeatureCall, notes: Notes) -> tuple[Tensor, Tensor]:
        """The features psi (B, H, L, W) and the values (B, H, L, X), for each query head."""
        psi, wide, tables = self.new(self.psi), self.new(self.wide), self.tables
        known = (call.b, call.v, call.value, notes.row, tables.linear, tables.frequencies)
        self.make_key(call.stream, (*known, notes.peak, *addresses(psi, wide)), call.rate)
        return psi, wide

    def sides(self, call: FeatureCall, notes: Notes) -> tuple[Tensor, Tensor, Tensor]:
        """The features of queries and keys, and the values."""
        return self.query(call, notes), *self.key(call, notes)

    def finish(self, call: FeatureCall, attended: Tensor, notes: Notes) -> Tensor:
        """The output (B, H, Q, D) in the dtype of the values; also counts the call in `escapes`."""
        output = self.new(self.output, self.dtype)
        given, into, counts = addresses(attended, output, escapes.counter(self.device))
        known = (given, notes.peak, into, notes.sound, notes.holds, counts)
        self.make_output(call.stream, known)
        return output

    def output_gradient(
        self, call: FeatureCall, grad: Tensor, notes: Notes
    ) -> tuple[Tensor, Scratch, Tensor]:
        """The allocation of the scratch memory, its addresses, and the gradient of cuDNN's output."""
        memory, given = self.scratch.new(self.device), self.new(self.attended)
        scratch = Scratch(*self.scratch.cut(memory))
        find, make = self.of_output(grad.stride(), grad.dtype)
        of_grad, into = addresses(grad, given)
        find(call.stream, (of_grad, scratch.parts))
        known = (of_grad, scratch.parts, notes.holds, scratch.peak, scratch.skip, into)
        make(call.stream, known)
        return memory, scratch, given

    def input_gradients(
        self, call: FeatureCall, notes: Notes, scratch: Scratch, by_features: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The gradients of a, b, v and value from those of phi, psi and the values."""
        grads = self.new_gradients()
        by_a, by_b, by_v, by_value = grads
        self.side_gradients(call, notes, scratch, by_features, (by_a, by_b, by_value))
        self.weight_gradient(call, scratch, by_v)
        return grads

    def new_gradients(self) -> tuple[Tensor, ...]:
        """Uninitialised gradients of a, b, v and value."""
        signature = self.signature
        shapes = (signature.a, signature.b, (self.heads, self.hidden), signature.value)
        return tuple(map(self.new, shapes, signature.dtypes))

    def side_gradients(
        self,
        call: FeatureCall,
        notes: Notes,
        scratch: Scratch,
        by_features: Sequence[Tensor],
        grads: Sequence[Tensor],
    ) -> None:
        """Write the gradients of a, b and value, and what blocks add to that of v."""
        tables = self.tables
        grad_phi, grad_psi, grad_wide, to_a, to_b, to_value = addresses(*by_features, *grads)
        _, peak_grad, _, from_queries, from_keys = scratch
        known = (call.a, call.v, notes.row, tables.frequencies, tables.coefficients)
        known = (*known, notes.peak, peak_grad, grad_phi, to_a, from_queries)
        self.of_query(call.stream, known, call.rate)
        known = (call.b, call.v, notes.row, tables.linear, tables.frequencies)
        known = (*known, notes.peak, peak_grad, grad_psi, grad_wide, to_b, to_value, from_keys)
        self.of_key(call.stream, known, call.rate)

    def weight_gradient(self, call: FeatureCall, scratch: Scratch, by_v: Tensor) -> None:
        """Write the gradient of v from what all blocks add to it."""
        (to_v,) = addresses(by_v)
        known = (scratch.from_queries, scratch.from_keys, to_v, scratch.skip)
        self.of_weight(call.stream, known)


@functools.lru_cache(maxsize=REMEMBERED)
def features_of(signature: FeatureSignature) -> Features:
    """The launches of a signature, bound once."""
    return Features(signature)
