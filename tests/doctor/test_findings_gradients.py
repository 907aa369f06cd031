"""What is cut off by accident is told apart from what was frozen on purpose, and how it was cut is said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.doctor.findings import Finding, Severity
from regard.doctor.watch import watch

from .patients import HEALTHY
from .patients.treated import diagnosed, planted


def named(name: str):
    return next(x for x in HEALTHY if x.name == name)


@pytest.mark.parametrize(
    ("name", "title", "said"),
    [
        ("NoGradient", "queries and keys are cut off from the loss", "before the call"),
        ("DetachedValues", "values are cut off from the loss", "before the call"),
        ("DetachedWeights", "queries and keys are cut off from the loss", "after the softmax"),
        ("CutLayer", "queries, keys and values are cut off from the loss", "under no_grad"),
        ("FrozenZero", "attention is dead behind a zero", "does not learn"),
    ],
)
def test_the_finding_says_what_is_cut_and_how(name, title, said):
    finding = diagnosed(planted(name)).finding
    assert finding.title == title and said in finding.explanation
    assert finding.severity is Severity.WARNING


def test_a_frozen_base_is_no_finding():
    _, doctor = named("FrozenBase").examined()
    assert doctor.findings() == []


def test_what_starts_at_zero_and_is_trained_is_a_note():
    _, doctor = named("ZeroStart").examined()
    (note,) = [x for x in doctor.findings() if x.disease == "no-gradient"]
    assert note.severity is Severity.NOTE and "first steps of training" in note.explanation


def test_validation_without_gradients_hides_nothing_and_accuses_nobody():
    patient = named("Causal")
    model = patient.build()
    with watch(model, every=1) as doctor:
        patient.run(model)
        with torch.no_grad():
            model(*patient.batch(9))
    assert doctor.findings() == []


class Held(nn.Module):
    """Attention over 3 dims whose weights pass through `hold`."""

    def __init__(self, hold) -> None:
        super().__init__()
        self.hold = hold
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.q(x) @ self.k(x).mT / 4).softmax(-1)
        return x + self.hold(weights) @ self.v(x)


@pytest.mark.parametrize("level", ["cheap", "sampled", "exact"])
@pytest.mark.parametrize(
    "hold",
    [
        lambda w: w.detach(),
        lambda w: w.data,
        lambda w: w.clone().detach_(),
        lambda w: w.detach().requires_grad_(),
    ],
    ids=["detach", "data", "detach_", "leaf"],
)
def test_detached_weights_do_not_stop_the_watch(level, hold):
    torch.manual_seed(0)
    model = nn.Sequential(Held(lambda w: w), Held(hold))
    with watch(model, level, every=1) as doctor:
        for _ in range(3):
            model(torch.randn(3, 10, 16)).square().mean().backward()
    assert doctor.sites == ["0", "1"]
    found: list[Finding] = [x for x in doctor.findings() if x.disease == "no-gradient"]
    assert [x.site for x in found] == ["1"]


def test_a_gradient_that_cannot_be_measured_is_not_taken_for_none():
    class Einsum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (layer(x).unflatten(-1, (4, 4)) for layer in (self.q, self.k, self.v))
            weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1)
            return x + torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)

    model = nn.Sequential(Held(lambda w: w), Einsum())
    with watch(model, every=1) as doctor:
        for _ in range(3):
            model(torch.randn(3, 10, 16)).square().mean().backward()
    assert doctor.findings() == []
