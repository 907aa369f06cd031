"""What `explain` says: the engine, the bound, the refusals."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Additive, GATv2, Gaussian, Mask, ScaledDot, attention, explain

SCORES = {
    "scaled_dot": lambda: ScaledDot(),
    "gaussian": lambda: Gaussian(heads=None),
    "additive": lambda: Additive(16, 4),
    "gatv2": lambda: GATv2(16, 4),
}


def inputs(dtype, size=1.0):
    q, k = (size * torch.randn(2, 4, 33, 16, dtype=torch.float64) for _ in range(2))
    return [x.to(dtype) for x in (q, k, torch.randn(2, 4, 33, 16, dtype=torch.float64))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", SCORES)
def test_error_bound_holds(name, size, dtype):
    score = SCORES[name]()
    q, k, v = inputs(dtype, size)
    # The bound is on the lowered features as they are, so that both sides start from the same.
    form = score.to(dtype).lower(q, k)
    plan = explain(q, k, v, score)
    problem = regard.problem.Problem(form, v)
    engine = regard.engines.plan.pick(problem)
    assert engine.name == plan.engine
    exact = regard.engines.reference.Reference().run(_in_double(problem)).output
    error = (engine.run(problem).output.double() - exact).abs().max() / v.abs().max()
    assert error <= plan.error_bound


def _in_double(problem):
    form = problem.form
    fields = {n: getattr(form, n) for n in form.__slots__}
    wide = {n: x.double() if isinstance(x, torch.Tensor) else x for n, x in fields.items()}
    return regard.problem.Problem(type(form)(**wide), problem.value.double())


def test_bound_grows_with_the_logits():
    small, large = (explain(*inputs(torch.float32, s)).error_bound for s in (1.0, 30.0))
    assert large > 10 * small


def test_bound_is_infinite_for_a_hard_lookup():
    assert explain(*inputs(torch.float32), temperature=0.0).error_bound == float("inf")


def test_plan_lists_every_engine_once():
    plan = explain(*inputs(torch.float32), softcap=3.0, sink=torch.zeros(4))
    named = [plan.engine, *plan.refused, *plan.also]
    assert sorted(named) == ["compiled", "cpu", "plain", "reference", "sdpa", "sine", "triton"]
    assert plan.engine == "cpu"
    assert plan.refused["sdpa"] == ["SDPA has no soft cap", "SDPA has no sink"]


def test_plan_of_a_refusing_engine_says_none():
    plan = explain(*inputs(torch.float32), softcap=3.0, engine="sdpa")
    assert plan.engine is None
    assert "refuses" in str(plan)


def test_plan_reads_well_in_80_columns():
    mask = Mask.dense(torch.rand(33, 33) > 0.5)
    text = str(explain(*inputs(torch.float32), mask=mask))
    assert text.splitlines()[0] == "score   scaled_dot"
    assert "NaN" in text


def test_dense_masks_above_the_stated_size_leave_sdpa():
    q = torch.empty(1, 1, 5000, 8, device="meta")
    plan_inputs = [q, q, q]
    mask = Mask.window(left=4)
    problem = regard.problem.Problem(ScaledDot().lower(*plan_inputs[:2]), q, mask)
    reasons = regard.engines.sdpa.Sdpa().refusals(problem)
    assert any("25,000,000" in reason for reason in reasons)


def test_padding_needs_no_dense_mask():
    q = torch.randn(2, 2, 5000, 8)
    lengths = torch.tensor([4000, 5000])
    plan = explain(q, q, q, mask=Mask.lengths(keys=lengths, queries=lengths))
    assert plan.engine == "sdpa"
    assert not any("NaN" in note for note in plan.notes)


def test_choice_does_not_depend_on_values():
    """Ranks of one job must run the same engine."""
    q, k, v = inputs(torch.float32)
    assert explain(q, k, v).engine == explain(q * 1e6, k, v).engine == "sdpa"
    torch.testing.assert_close(attention(q, k, v), attention(q, k, v, engine="sdpa"))
