"""The factor that was really applied to query and key, read off or by regression."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.doctor.watch import watch

from .watching import column

D = 16


class Scaled(nn.Module):
    """Attention of 4 heads with any factor, fused or written out."""

    def __init__(self, factor: float, how: str) -> None:
        super().__init__()
        self.factor, self.how = factor, how
        self.q, self.k, self.v = (nn.Linear(4 * D, 4 * D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (4, D)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        if self.how == "fused":
            return F.scaled_dot_product_attention(q, k, v, scale=self.factor, is_causal=True)
        if self.how == "einsum":
            logits = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.factor
            return torch.einsum("bhqk,bhkd->bhqd", logits.softmax(-1), v)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        logits = (q @ k.transpose(-1, -2) * self.factor).masked_fill(hidden, -torch.inf)
        return (logits + 3.0).softmax(-1) @ v


@pytest.mark.parametrize("level", ["sampled", "exact"])
@pytest.mark.parametrize("how", ["fused", "written"])
@pytest.mark.parametrize(("factor", "times"), [(D**-0.5, 1.0), (1.0, 4.0), (1 / D, 0.25)])
def test_the_factor_that_was_applied(level, how, factor, times):
    torch.manual_seed(0)
    with watch(Scaled(factor, how), level, every=1) as doctor:
        doctor.model(torch.randn(3, 20, 4 * D))
    found = column(doctor, "Scaled", "applied_scale")
    torch.testing.assert_close(found, torch.full((1, 4), times), rtol=1e-4, atol=0)


def test_where_no_single_factor_is_known_it_is_nan():
    with watch(Scaled(1.0, "einsum"), "exact", every=1) as doctor:
        doctor.model(torch.randn(3, 20, 4 * D))
    assert column(doctor, "Scaled", "applied_scale").isnan().all()
