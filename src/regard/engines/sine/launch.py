"""Launches the kernels for one call: sizes of blocks, strides, and the tensors they write.

Shape legend: see `operators`; W width of the features, X width of the values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard import sine
from regard.engines.sine.bounds import LARGEST_LOGIT, ROUNDING
from regard.engines.sizes import blocks_in, power_of_two
from regard.sine.series import load_lending

if TYPE_CHECKING:
    from regard.engines.sine.operators import Inputs, Kept

# Elements of a tile of hidden units, and of one of values, that four warps hold in registers; the
# backward of the keys holds three of the latter.
UNITS, VALUES, GRADIENTS = 2048, 8192, 4096
# Places whose range one program measures, and the numbers that it holds at once.
MEASURED, NUMBERS = 512, 4096
# Values reach up to 4 and grad_out up to 1 in fp16: their products, times weights of 1 / L and summed
# over Q queries, then stay clear of both ends of its range for lengths up to 32k and more.
VALUE_TARGET, GRAD_TARGET = 2, 0


class Features:
    """The kernels of one call, with the sizes and strides that all of them take."""

    def __init__(self, x: Inputs) -> None:
        # Not at the top of the file: `import regard` works without Triton.
        from regard.engines.sine import gradients, kernels

        self.kernels, self.gradients, self.x = kernels, gradients, x
        self.rate, self.allowed = x.numbers.tolist()
        self.widths = x.widths
        self.batch, self.heads, self.queries, self.hidden = x.a.shape
        self.key_heads, self.keys, self.value_dim = x.b.shape[1], x.b.shape[2], x.value.shape[-1]
        self.sizes = (self.heads, self.key_heads)
        self.group = {"G": self.heads // self.key_heads}
        lent = self.widths.lent
        load = load_lending if lent else sine.load
        self.series = load(x.kind, x.rank, x.a.device)
        self.rows = {"N": self.series.reach.shape[0], "LENT": lent}
        padded = power_of_two(self.hidden)
        self.block = max(16, UNITS // padded)
        self.units = {**self.group, "E": self.hidden, "EP": padded}
        self.values = {
            "D": self.value_dim,
            "X": self.widths.values,
            "XP": power_of_two(self.widths.values),
        }
        spare = self.widths.features - 2 * x.rank * self.hidden
        self.tail = {"R": x.rank, "W": self.widths.features, "TP": power_of_two(spare)}

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor to write to."""
        return torch.empty(shape, dtype=dtype, device=self.x.a.device)

    def measure(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of the table (B, K, E), largest |value| (B, K), and for which heads all holds (B, H)."""
        x, series = self.x, self.series
        row = self.new(self.batch, self.key_heads, self.hidden, dtype=torch.int32)
        sound = self.new(self.batch, self.heads, dtype=torch.int32)
        bound, (of_a, of_b, peak) = self.new(self.batch, self.heads), self.peaks()
        self.kernels.pick_rows[(self.batch * self.key_heads,)](
            *(of_a, of_b, peak, x.v),
            *(series.reach, series.error, series.coefficients, row, sound, bound),
            *(*self.sizes, *x.v.stride(), self.rate, self.allowed, ROUNDING, LARGEST_LOGIT),
            **self.units,
            **self.rows,
            R=x.rank,
        )
        return row, peak, sound

    def peaks(self) -> tuple[Tensor, Tensor, Tensor]:
        """The largest |a| (B, H, E), |b| (B, K, E) and |value| (B, K) in fp32; NaN stays NaN."""
        x, batch = self.x, self.batch
        shapes = ((batch, self.heads, self.hidden), (batch, self.key_heads, self.hidden))
        # The values lead: theirs is kept and given back, and has to begin where its memory does. The rest
        # begins where 16 bytes do.
        head_count = batch * self.key_heads
        sizes = [blocks_in(head_count, 4) * 4, *(math.prod(shape) for shape in shapes)]
        bits = torch.zeros(sum(sizes), dtype=torch.int32, device=x.a.device)
        of_value, of_a, of_b = bits.view(torch.float32).split(sizes)
        parts = (blocks_in(self.queries, MEASURED), blocks_in(self.keys, MEASURED))
        programs = batch * (self.heads * parts[0] + 2 * self.key_heads * parts[1])
        self.kernels.peaks[(programs,)](
            *(x.a, x.b, x.value, bits, sizes[0], batch, *self.sizes, self.queries),
            *(self.keys, *parts, *x.a.stride(), *x.b.stride(), *x.value.stride()),
            E=self.hidden,
            EP=self.units["EP"],
            D=self.value_dim,
            DP=power_of_two(self.value_dim),
            PLACES=MEASURED,
            NUMBERS=NUMBERS,
        )
        of_value = of_value[:head_count].view(batch, self.key_heads)
        return of_a.view(shapes[0]), of_b.view(shapes[1]), of_value

    def query(self, row: Tensor) -> Tensor:
        """The features phi (B, H, Q, W)."""
        x, count = self.x, blocks_in(self.queries, self.block)
        phi = self.new(
            self.batch, self.heads, self.queries, self.widths.features, dtype=torch.float16
        )
        self.kernels.query_features[(self.batch * self.heads * count,)](
            *(x.a, x.v, row, self.series.frequencies, self.series.coefficients, phi),
            *(*self.sizes, self.queries, *x.a.stride(), *x.v.stride(), self.rate, count),
            **self.units,
            **self.tail,
            **self.rows,
            BLOCK=self.block,
        )
        return phi

    def key(self, row: Tensor, peak: Tensor) -> tuple[Tensor, Tensor]:
        """The features psi (B, H, L, W) and the values (B, H, L, X), for each query head."""
        x, block = self.x, max(16, VALUES // self.values["XP"])
        lead, count = (self.batch, self.heads, self.keys), blocks_in(self.keys, block)
        psi = self.new(*lead, self.widths.features, dtype=torch.float16)
        wide = self.new(*lead, self.widths.values, dtype=torch.float16)
        self.kernels.key_features[(self.batch * self.heads * count,)](
            *(x.b, x.v, x.value, row, self.series.linear, self.series.frequencies),
            *(peak, psi, wide, *self.sizes, self.keys),
            *(*x.b.stride(), *x.v.stride(), *x.value.stride(), self.rate, count),
            **self.units,
            **self.tail,
            **self.rows,
            **self.values,
            TARGET=VALUE_TARGET,
            BLOCK=block,
        )
        return psi, wide

    def finish(self, attended: Tensor, peak: Tensor) -> Tensor:
        """The output (B, H, Q, D) in the dtype of the values."""
        block = max(16, VALUES // self.values["XP"])
        count = blocks_in(self.queries, block)
        output = self.new(
            self.batch, self.heads, self.queries, self.value_dim, dtype=self.x.value.dtype
        )
        self.kernels.finish[(self.batch * self.heads * count,)](
            *(attended, peak, output, *self.sizes, self.queries, count),
            **self.group,
            **self.values,
            TARGET=VALUE_TARGET,
            BLOCK=block,
        )
        return output

    def output_gradient(self, grad: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """The largest |grad_out| of each head (B, H), and the gradient of what is like `attended`."""
        block = max(16, VALUES // self.values["XP"])
        count = blocks_in(self.queries, block)
        size = torch.linalg.vector_norm(grad, ord=float("inf"), dim=(-2, -1), dtype=torch.float32)
        found = torch.empty_like(attended)
        self.gradients.output_gradient[(self.batch * self.heads * count,)](
            *(grad, size, found, self.heads, self.queries, *grad.stride(), count),
            **self.values,
            TARGET=GRAD_TARGET,
            BLOCK=block,
        )
        return size, found

    def query_gradient(self, kept: Kept, size: Tensor, grad_phi: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient da (B, H, Q, E), and what the queries add to dv (H, E) in fp32."""
        x, count = self.x, blocks_in(self.queries, self.block)
        grad_a = torch.empty(x.a.shape, dtype=x.a.dtype, device=x.a.device)
        partial = self.new(self.batch, self.heads, count, self.hidden)
        self.gradients.query_gradient[(self.batch * self.heads * count,)](
            *(x.a, x.v, kept.row, self.series.frequencies, self.series.coefficients),
            *(kept.peak, size, grad_phi, grad_a, partial, *self.sizes, self.queries),
            *(*x.a.stride(), *x.v.stride(), self.rate, count),
            **self.units,
            R=x.rank,
            W=self.widths.features,
            VALUE_TARGET=VALUE_TARGET,
            GRAD_TARGET=GRAD_TARGET,
            BLOCK=self.block,
        )
        return grad_a, partial.sum((0, 2))

    def key_gradient(
        self, kept: Kept, size: Tensor, grad_psi: Tensor, grad_wide: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients db (B, K, L, E) and dvalue (B, K, L, D), and what the keys add to dv (H, E) in fp32."""
        x, block = self.x, max(16, GRADIENTS // self.values["XP"])
        count = blocks_in(self.keys, block)
        grad_b, grad_value = (
            torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in (x.b, x.value)
        )
        partial = self.new(self.batch, self.heads, count, self.hidden)
        self.gradients.key_gradient[(self.batch * self.key_heads * count,)](
            *(x.b, x.v, kept.row, self.series.linear, self.series.frequencies),
            *(kept.peak, size, grad_psi, grad_wide, grad_b, grad_value, partial),
            *(*self.sizes, self.keys, *x.b.stride(), *x.v.stride(), self.rate, count),
            **self.units,
            **self.rows,
            **self.values,
            R=x.rank,
            W=self.widths.features,
            VALUE_TARGET=VALUE_TARGET,
            GRAD_TARGET=GRAD_TARGET,
            BLOCK=block,
        )
        return grad_b, grad_value, partial.sum((0, 2))
