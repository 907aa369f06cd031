"""Inputs of a setting.

B batch, H heads, Q queries, L keys, N hidden, E value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.bench.settings import DOT_DIM, Setting
from regard.scores import Additive

# |v|_1 of every head: bounds the scores, and with them how far softmax can be from a mean.
V_NORM = 5.0


@dataclass
class Tensors:
    """What every candidate of a setting is given; a, b, value and v want gradients.

    Args:
        a: projected queries, (B, H, Q, N), standard normal.
        b: projected keys, (B, H, L, N), standard normal.
        value: (B, H, L, E), standard normal.
        v: (H, N), normal, scaled to |v|_1 = 5 in each head. The same in all heads, since Keras
            knows one head only.
        grad: of the output, (B, H, Q, E), standard normal.
        dot_query: (B, H, Q, 64), standard normal, for the yardstick.
        dot_key: (B, H, L, 64), likewise.
        fewer: the same with fewer heads, made by `with_heads`.
    """

    setting: Setting
    a: Tensor
    b: Tensor
    value: Tensor
    v: Tensor
    grad: Tensor
    dot_query: Tensor
    dot_key: Tensor
    fewer: dict[int, Tensors] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.a.device

    def with_heads(self, count: int) -> Tensors:
        """The first heads of the first batch entry, as tensors of their own; made once."""

        def first(x: Tensor) -> Tensor:
            return x.detach()[:1, :count].clone().requires_grad_(x.requires_grad)

        if count not in self.fewer:
            self.fewer[count] = Tensors(
                self.setting.with_heads(count),
                first(self.a),
                first(self.b),
                first(self.value),
                self.v.detach()[:count].clone().requires_grad_(),
                first(self.grad),
                first(self.dot_query),
                first(self.dot_key),
            )
        return self.fewer[count]


def make_tensors(setting: Setting, device: torch.device, seed: int) -> Tensors:
    """Draw all inputs; they depend on sizes, device and seed alone."""
    s, generator = setting, torch.Generator(device).manual_seed(seed)

    def draw(*size: int, grad: bool = True) -> Tensor:
        x = torch.randn(*size, generator=generator, device=device)
        return x.to(s.torch_dtype).requires_grad_(grad)

    v = torch.randn(s.hidden, generator=generator, device=device)
    v = (V_NORM * v / v.abs().sum()).expand(s.heads, -1).to(s.torch_dtype).contiguous()
    lead = (s.batch, s.heads)
    return Tensors(
        s,
        draw(*lead, s.len_q, s.hidden),
        draw(*lead, s.len_k, s.hidden),
        draw(*lead, s.len_k, s.value_dim),
        v.requires_grad_(),
        draw(*lead, s.len_q, s.value_dim, grad=False),
        draw(*lead, s.len_q, DOT_DIM),
        draw(*lead, s.len_k, DOT_DIM),
    )


def additive_score(tensors: Tensors, series: str = "matched") -> Additive:
    """An additive score with a copy of the v of the inputs."""
    setting = tensors.setting
    score = Additive(setting.hidden, setting.heads, series=series)
    score = score.to(tensors.device, setting.torch_dtype)
    with torch.no_grad():
        score.v.copy_(tensors.v)
    return score
