"""Launches the kernels: sizes of blocks, strides, and the memory they write, once for calls alike.

Shape legend: see `operators`; W width of the features, X width of the values.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard import sine
from regard.engines.launching import Launch, Layout, Piece
from regard.engines.sine.bounds import LARGEST_LOGIT, ROUNDING
from regard.engines.sine.widths import widths_of
from regard.engines.sizes import blocks_in, power_of_two
from regard.sine import escapes
from regard.sine.series import load_lending

if TYPE_CHECKING:
    from regard.engines.sine.operators import Inputs

# Elements of a tile of hidden units, and of one of values, that four warps hold in registers; the
# backward of the keys holds three of the latter.
UNITS, VALUES, GRADIENTS = 2048, 8192, 4096
# Places whose range one program measures, and the numbers that it holds at once.
MEASURED, NUMBERS = 512, 4096
# Parts of a range, heads, and rows of sums that are read at once.
PARTS, HEADS, SUMMED = 16, 1024, 2048
# Values reach up to 4 and grad_out up to 1 in fp16: their products, times weights of 1 / L and summed
# over Q queries, then stay clear of both ends of its range for lengths up to 32k and more.
VALUE_TARGET, GRAD_TARGET = 2, 0
MEASURING = {"PLACES": MEASURED, "NUMBERS": NUMBERS}
# Kinds of calls whose launches are kept, each of them some 20 kB.
REMEMBERED = 256


class Kind(NamedTuple):
    """What calls have to agree in to share their launches: nothing of their numbers."""

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


def kind_of(x: Inputs) -> Kind:
    """The kind of this call."""
    a, b, v, value = x.a, x.b, x.v, x.value
    return Kind(
        *(a.shape, a.stride(), b.shape, b.stride(), v.stride(), value.shape, value.stride()),
        (a.dtype, b.dtype, v.dtype, value.dtype),
        *(a.device, x.kind, x.rank),
    )


class Notes(NamedTuple):
    """What is known of a call, in one memory, which the backward reads too.

    holds (4,), of which the first says whether the series holds; weight (H, E), rate v; row (B, K, E),
    the row of the table for each unit; peak (B, K), the largest |value|; sound (B, H), for which heads
    all holds; parts, what the range was found from.
    """

    holds: Piece
    weight: Piece
    row: Piece
    peak: Piece
    sound: Piece
    parts: Piece


class Scratch(NamedTuple):
    """What the backward writes down for itself.

    skip (1,), whether nothing is left to do; peak (B, H), the largest |grad_out|, and what it was
    found from; what each block of queries and of keys adds to dv.
    """

    skip: Piece
    peak: Piece
    parts: Piece
    from_queries: Piece
    from_keys: Piece


def note_words(a: torch.Size, b: torch.Size) -> tuple[tuple[int, torch.dtype], ...]:
    """How much of which dtype each of `Notes` is, by the shapes of a and b."""
    (batch, heads, queries, hidden), (_, key_heads, keys, _) = a, b
    query_parts, key_parts = blocks_in(queries, MEASURED), blocks_in(keys, MEASURED)
    parts = (heads * query_parts + key_heads * key_parts) * hidden + key_heads * key_parts
    return (
        (4, torch.int32),
        (heads * hidden, torch.float32),
        (batch * key_heads * hidden, torch.int32),
        (batch * key_heads, torch.float32),
        (batch * heads, torch.int32),
        (batch * parts, torch.int32),
    )


class Features:
    """The launches of all calls of one kind, with the sizes and strides that they take.

    Methods take the stream first, see `regard.engines.launching`.
    """

    def __init__(self, kind: Kind) -> None:
        # Not at the top of the file: `import regard` works without Triton.
        from regard.engines.sine import gradients, kernels

        self.kernels, self.gradients, self.device = kernels, gradients, kind.device
        self.batch, self.heads, self.queries, self.hidden = kind.a
        (_, self.key_heads, self.keys, _), self.value_dim = kind.b, kind.value[-1]
        self.widths = widths_of(kind.series, kind.rank, self.hidden, self.value_dim)
        load = load_lending if self.widths.lent else sine.load
        self.series = load(kind.series, kind.rank, kind.device)
        self.sizes = (self.heads, self.key_heads)
        self.parts = (blocks_in(self.queries, MEASURED), blocks_in(self.keys, MEASURED))
        padded, wide = power_of_two(self.hidden), power_of_two(self.widths.values)
        self.block = max(16, UNITS // padded)
        self.value_block = max(16, VALUES // wide)
        self.gradient_block = max(16, GRADIENTS // wide)
        self.query_blocks = blocks_in(self.queries, self.block)
        self.output_blocks = blocks_in(self.queries, self.value_block)
        self.key_blocks = blocks_in(self.keys, self.value_block)
        self.gradient_blocks = blocks_in(self.keys, self.gradient_block)
        self.fixed = {
            "G": self.heads // self.key_heads,
            "E": self.hidden,
            "EP": padded,
            "N": self.series.reach.shape[0],
            "LENT": self.widths.lent,
            "R": kind.rank,
            "W": self.widths.features,
            "TP": power_of_two(self.widths.features - 2 * kind.rank * self.hidden),
            "D": self.value_dim,
            "DP": power_of_two(self.value_dim),
            "X": self.widths.values,
            "XP": wide,
        }
        self.bind_forward(kind)
        self.bind_backward(kind)

    def launch(self, kernel: Any, programs: int, pointers: int, *sizes: Any, **more: int) -> Launch:
        """A kernel that takes pointers, then sizes, then floats; its constants have names."""
        given = {**self.fixed, **more}
        # Nothing else of a kernel is annotated.
        constants = [given[name] for name in kernel.fn.__annotations__]

        def arguments(*operands: Any) -> tuple:
            return (*operands[:pointers], *sizes, *operands[pointers:])

        return Launch(kernel, programs, arguments, constants)

    def bind_forward(self, kind: Kind) -> None:
        """The launches around cuDNN's forward."""
        kernels, total, both = self.kernels, self.batch * self.heads, (*self.sizes,)
        strides = (*kind.a_stride, *kind.b_stride, *kind.value_stride)
        programs = total * self.parts[0] + 2 * self.batch * self.key_heads * self.parts[1]
        self.find_peaks = self.launch(
            *(kernels.peaks, programs, 4),
            *(self.batch, *both, self.queries, self.keys, *self.parts, *strides),
            **MEASURING,
        )
        self.pick_rows = self.launch(
            *(kernels.pick_rows, self.batch * self.key_heads, 10),
            *(self.batch, *both, *self.parts, *kind.v_stride, ROUNDING, LARGEST_LOGIT),
            PARTS=PARTS,
        )
        self.make_query = self.launch(
            *(kernels.query_features, total * self.query_blocks, 6),
            *(*both, self.queries, self.query_blocks, *kind.a_stride, *kind.v_stride),
            BLOCK=self.block,
        )
        self.make_key = self.launch(
            *(kernels.key_features, total * self.key_blocks, 9),
            *(*both, self.keys, self.key_blocks),
            *(*kind.b_stride, *kind.v_stride, *kind.value_stride),
            TARGET=VALUE_TARGET,
            BLOCK=self.value_block,
        )
        self.make_output = self.launch(
            *(kernels.finish, total * self.output_blocks, 6),
            *(self.batch, *both, self.queries, self.output_blocks),
            TARGET=VALUE_TARGET,
            BLOCK=self.value_block,
            HEADS=HEADS,
        )
        self.notes = Layout(*note_words(kind.a, kind.b), gaps=False)

    def bind_backward(self, kind: Kind) -> None:
        """The launches around cuDNN's backward."""
        gradients, total = self.gradients, self.batch * self.heads
        targets = {"VALUE_TARGET": VALUE_TARGET, "GRAD_TARGET": GRAD_TARGET}
        self.of_query = self.launch(
            *(gradients.query_gradient, total * self.query_blocks, 10),
            *(*self.sizes, self.queries, self.query_blocks, *kind.a_stride, *kind.v_stride),
            BLOCK=self.block,
            **targets,
        )
        self.of_key = self.launch(
            *(gradients.key_gradient, self.batch * self.key_heads * self.gradient_blocks, 12),
            *(*self.sizes, self.keys, self.gradient_blocks, *kind.b_stride, *kind.v_stride),
            BLOCK=self.gradient_block,
            **targets,
        )
        self.of_weight = self.launch(
            *(gradients.weight_gradient, self.heads, 4),
            *(self.batch, self.heads, self.query_blocks, self.gradient_blocks),
            ROWS=max(SUMMED // self.fixed["EP"], 1),
        )
        self.of_output = functools.lru_cache(maxsize=8)(self.bind_output)
        self.scratch = Layout(
            (1, torch.int32),
            (total, torch.float32),
            (total * self.parts[0], torch.int32),
            (total * self.query_blocks * self.hidden, torch.float32),
            (total * self.gradient_blocks * self.hidden, torch.float32),
        )

    def bind_output(self, stride: tuple[int, ...], dtype: torch.dtype) -> tuple[Launch, Launch]:
        """The launches for grad_out of these strides and this dtype."""
        total, parts = self.batch * self.heads, self.parts[0]
        sizes = (self.heads, self.queries, parts, *stride)
        find = self.launch(self.gradients.gradient_peaks, total * parts, 2, *sizes, **MEASURING)
        make = self.launch(
            *(self.gradients.output_gradient, total * self.output_blocks, 6),
            *(*sizes, self.output_blocks),
            TARGET=GRAD_TARGET,
            BLOCK=self.value_block,
            PARTS=PARTS,
        )
        return find, make

    def new(self, *shape: int) -> Tensor:
        """A tensor in fp16 to write to."""
        return torch.empty(shape, dtype=torch.float16, device=self.device)

    def measure(self, stream: int | None, x: Inputs) -> tuple[Tensor, Notes]:
        """The range, and what follows from it."""
        memory, series = self.notes.new(self.device), self.series
        notes = Notes(*self.notes.cut(memory))
        holds, weight, row, peak, sound, parts = notes
        self.find_peaks(stream, (x.a, x.b, x.value, parts))
        tables = (series.reach, series.error, series.coefficients)
        self.pick_rows(
            stream, (parts, x.v, *tables, weight, row, peak, sound, holds), *x.numbers.tolist()
        )
        return memory, notes

    def query(self, stream: int | None, x: Inputs, row: Piece, rate: float) -> Tensor:
        """The features phi (B, H, Q, W)."""
        phi = self.new(self.batch, self.heads, self.queries, self.widths.features)
        tables = (self.series.frequencies, self.series.coefficients)
        self.make_query(stream, (x.a, x.v, row, *tables, phi), rate)
        return phi

    def key(
        self, stream: int | None, x: Inputs, notes: Notes, rate: float
    ) -> tuple[Tensor, Tensor]:
        """The features psi (B, H, L, W) and the values (B, H, L, X), for each query head."""
        psi = self.new(self.batch, self.heads, self.keys, self.widths.features)
        wide = self.new(self.batch, self.heads, self.keys, self.widths.values)
        tables = (self.series.linear, self.series.frequencies)
        self.make_key(stream, (x.b, x.v, x.value, notes.row, *tables, notes.peak, psi, wide), rate)
        return psi, wide

    def finish(self, stream: int | None, x: Inputs, attended: Tensor, notes: Notes) -> Tensor:
        """The output (B, H, Q, D) in the dtype of the values; the call is counted."""
        shape = (self.batch, self.heads, self.queries, self.value_dim)
        output = torch.empty(shape, dtype=x.value.dtype, device=self.device)
        counts = escapes.counter(self.device)
        self.make_output(stream, (attended, notes.peak, output, notes.sound, notes.holds, counts))
        return output

    def output_gradient(
        self, stream: int | None, grad: Tensor, notes: Notes
    ) -> tuple[Scratch, Tensor]:
        """The largest |grad_out| of each head, and the gradient of what cuDNN gave."""
        scratch = Scratch(*self.scratch.cut(self.scratch.new(self.device)))
        given = self.new(self.batch, self.heads, self.queries, self.widths.values)
        find, make = self.of_output(grad.stride(), grad.dtype)
        find(stream, (grad, scratch.parts))
        make(stream, (grad, scratch.parts, notes.holds, scratch.peak, scratch.skip, given))
        return scratch, given

    def gradients_of(
        self,
        stream: int | None,
        x: Inputs,
        notes: Notes,
        scratch: Scratch,
        by_features: tuple[Tensor, Tensor, Tensor],
        rate: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of a, b, v and value from those of phi, psi and the values."""
        found = [torch.empty(y.shape, dtype=y.dtype, device=self.device) for y in x[:4]]
        (grad_a, grad_b, grad_v, grad_value), series = found, self.series
        grad_phi, grad_psi, grad_wide = by_features
        skip, peak_grad, _, from_queries, from_keys = scratch
        _, _, row, peak, _, _ = notes
        self.of_query(
            stream,
            (x.a, x.v, row, series.frequencies, series.coefficients)
            + (peak, peak_grad, grad_phi, grad_a, from_queries),
            rate,
        )
        self.of_key(
            stream,
            (x.b, x.v, row, series.linear, series.frequencies, peak, peak_grad)
            + (grad_psi, grad_wide, grad_b, grad_value, from_keys),
            rate,
        )
        self.of_weight(stream, (from_queries, from_keys, grad_v, skip))
        return grad_a, grad_b, grad_v, grad_value


@functools.lru_cache(maxsize=REMEMBERED)
def features_of(kind: Kind) -> Features:
    """The launches of a kind, made once."""
    return Features(kind)
