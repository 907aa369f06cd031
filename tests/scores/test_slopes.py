"""GAT and GATv2 with slopes of 0 and below, on every engine of the CPU: outputs and gradients in fp64."""

from __future__ import annotations

import pytest
import torch

import regard


@pytest.mark.parametrize("slope", [0.0, -0.4, -1.0, -2.5])
@pytest.mark.parametrize("kind", [regard.GAT, regard.GATv2])
def test_slopes_of_zero_and_below(kind, slope: float) -> None:
    torch.manual_seed(0)
    score = kind(4, 2, negative_slope=slope).double()
    tensors = [torch.randn(1, 2, n, 4, dtype=torch.double, requires_grad=True) for n in (5, 7, 7)]
    found = {}
    for engine in ("reference", "cpu", "plain"):
        output = regard.attention(*tensors, score, engine=engine)
        grads = torch.autograd.grad(output.square().sum(), [*tensors, *score.parameters()])
        found[engine] = (output, grads)
    torch.testing.assert_close(found["cpu"], found["reference"])
    torch.testing.assert_close(found["plain"], found["reference"])


def test_the_bound_grows_with_a_steep_slope() -> None:
    q = torch.randn(1, 1, 5, 4)
    plain, steep = (
        regard.explain(q, q, q, score).error_bound
        for score in (make_score(-1.0), make_score(-50.0))
    )
    assert steep > 2 * plain


def make_score(slope: float) -> regard.Score:
    score = regard.GATv2(4, negative_slope=slope)
    with torch.no_grad():
        score.v.fill_(0.5)
    return score
