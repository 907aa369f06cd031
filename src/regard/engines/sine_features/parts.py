"""What the sine operators call: attention over features, by cuDNN or the wide kernels, and the exact fallback.

Shape legend: B batch, H query heads, K key heads, Q queries, L keys, W width of the features, X width
of the values, E hidden units, D value dim.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from regard.engines.hiding import Hiding
from regard.engines.launching import Address


class Fused(Protocol):
    """Attention over features in fp16: `softmax(q k') v`, contiguous (B, H, length, width)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, X) in fp16 and LSE (B, H, Q) in fp32."""
        ...

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v in fp16."""
        ...


class WideAttention(Protocol):
    """Attention over features in fp16 that cuDNN does not take: (Z, length, width), contiguous.

    `head` is the number of the first of these heads in the whole call, by which weights are drawn.
    """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, hiding: Hiding, head: int, out: Tensor, lse: Tensor
    ) -> None:
        """Write the output (Z, Q, X) in fp16 and the LSE (Z, Q) in fp32."""
        ...

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hiding: Hiding,
        head: int,
        out: Tensor,
        lse: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v in fp16."""
        ...

    def workspace(self, heads: int, queries: int, keys: int) -> int:
        """Bytes that a backward over so many heads takes besides its arguments and results."""
        ...


class ExactFallback(Protocol):
    """Exact additive attention that runs or not by a flag on the device.

    `skip` is one integer on the device. Where it is 1 the kernels return at once; where it is 0 they
    overwrite their results in place. The host never waits for the device. Inputs have any strides, except
    `weight`, v / temperature in fp32, which is contiguous like the results.
    """

    def attend(
        self,
        skip: Address,
        a: Tensor,
        b: Tensor,
        weight: Address,
        value: Tensor,
        hiding: Hiding,
        output: Tensor,
    ) -> None:
        """Write `softmax(sum_e weight_e tanh(a + b)) value` to `output` (B, H, Q, D).

        a (B, H, Q, E), b (B, K, L, E), weight (H, E), value (B, K, L, D).
        """
        ...

    def backward(
        self,
        skip: Address,
        grad: Tensor,
        a: Tensor,
        b: Tensor,
        weight: Address,
        value: Tensor,
        rate: float,
        hiding: Hiding,
        grad_a: Tensor,
        grad_b: Tensor,
        grad_v: Tensor,
        grad_value: Tensor,
    ) -> None:
        """Write the gradients for grad_out `grad` to the last four; `rate` is 1 / temperature.

        It computes what it needs of its own forward, which did not run where the series held.
        """
        ...


class Cudnn:
    """cuDNN's attention, called below SDPA, which might choose another backend."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """See `Fused`."""
        # No bias, LSE computed, no dropout; scale 1, because the features hold the rate.
        found = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, None, True, 0.0, causal, False, scale=1.0
        )
        return found[0].contiguous(), found[1].squeeze(-1).contiguous()

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Fused`."""
        # Seed and offset are for dropout, which is 0 here: they are not read.
        seed = torch.empty((), dtype=torch.int64, device=q.device)
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
            grad,
            q,
            k,
            v,
            out,
            lse.unsqueeze(-1),
            seed,
            seed,
            # No bias, and no cumulative lengths, which are for packed sequences.
            None,
            None,
            None,
            q.shape[-2],
            k.shape[-2],
            0.0,
            causal,
            scale=1.0,
        )


class SineParts:
    """The attention in use. `lineup.py` sets the wide and the exact one, because engines do not import one another."""

    def __init__(self) -> None:
        self.fused: Fused = Cudnn()
        self.wide: WideAttention | None = None
        self.exact: ExactFallback | None = None


PARTS = SineParts()
