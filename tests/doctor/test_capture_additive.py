"""Additive attention that is written out is seen, and its tanh measured, however it is pooled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.doctor.watch import watch

from .patients.recurrent import SOURCE, STEPS, Bahdanau, SaturatedDecoder
from .watching import column

POOLED = ["bmm", "sum", "column", "einsum"]


@pytest.mark.parametrize("pooled", POOLED)
def test_the_tanh_of_each_step_is_measured(pooled):
    torch.manual_seed(0)
    model = Bahdanau(1.0, pooled)
    kept = []
    handle = model.v.register_forward_pre_hook(lambda _, args: kept.append(args[0].detach()))
    with watch(model, "exact") as doctor:
        model(torch.randint(0, 32, (4, SOURCE)), torch.randint(0, 32, (4, STEPS)))
    handle.remove()
    assert doctor.sites == ["Bahdanau", "Bahdanau#2", "Bahdanau#3"]
    for site, hidden in zip(doctor.sites, kept, strict=True):
        slope = 1 - hidden.square()
        torch.testing.assert_close(column(doctor, site, "tanh_slope")[0, 0], slope.mean())
        share = (slope < 0.1).float().mean()
        torch.testing.assert_close(column(doctor, site, "tanh_saturated")[0, 0], share)
        facts = doctor.chart.sites[site].facts
        assert (facts.queries, facts.keys) == (1, SOURCE)


@pytest.mark.parametrize("pooled", POOLED)
def test_saturation_is_found_however_it_is_pooled(pooled):
    patient = SaturatedDecoder()
    patient.pooled = pooled
    _, doctor = patient.examined()
    assert {(x.disease, x.site) for x in doctor.findings()} == {
        ("saturated-tanh", site) for site in patient.sites
    }


def test_a_router_of_experts_is_no_attention():
    """A softmax over two dims whose logits no tanh and vector have made."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.each = nn.Linear(8, 4), nn.Linear(8, 32)

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.tanh(self.gate(x)).softmax(-1)
            return (weights.unsqueeze(-1) * self.each(x).unflatten(-1, (4, 8))).sum(1)

    with watch(Experts(), "exact") as doctor:
        doctor.model(torch.randn(5, 8))
    assert doctor.sites == []
