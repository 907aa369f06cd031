"""The input tensors of a setting.

B batch, H heads, Q queries, L keys, N hidden, E value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.bench.settings import DOT_DIM, Setting
from regard.scores import Additive

# |v|_1 of every head. It bounds the scores (|tanh| <= 1), and so how sharp the softmax can be.
V_NORM = 5.0


@dataclass
class Tensors:
    """The inputs that all candidates of a setting share; a, b, value and v require gradients.

    Args:
        a: projected queries, (B, H, Q, N), standard normal.
        b: projected keys, (B, H, L, N), standard normal.
        value: (B, H, L, E), standard normal.
        v: (H, N), normal, scaled to |v|_1 = 5 in each head. All heads have the same v, because the
            Keras layer has only one.
        grad: gradient of the output, (B, H, Q, E), standard normal.
        dot_query: (B, H, Q, 64), standard normal, for the yardstick.
        dot_key: (B, H, L, 64), likewise.
        fewer: cache of `with_heads`, by number of heads.
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
        """The device of all tensors."""
        return self.a.device

    def with_heads(self, count: int) -> Tensors:
        """Copies of the first `count` heads of the first batch entry; cached."""

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
    """Draw all inputs; they depend only on sizes, device and seed."""
    s, generator = setting, torch.Generator(device).manual_seed(seed)

    def draw(*size: int, grad: bool = True) -> Tensor:
        x = torch.randn(*size, generator=generator, device=device)
        return x.to(s.torch_dtype).requires_grad_(grad)

    # Drawn in fp32 whatever the dtype, so that all dtypes of a setting round the same numbers.
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


def additive_score(tensors: Tensors, series: str | None = None) -> Additive:
    """An additive score whose v is a copy of the inputs' v."""
    setting = tensors.setting
    score = Additive(setting.hidden, setting.heads, series=series)
    score = score.to(tensors.device, setting.torch_dtype)
    with torch.no_grad():
        score.v.copy_(tensors.v)
    return score
