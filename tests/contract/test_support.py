"""Whether each engine serves a call is what its documentation says, not what it happens to do."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.testing import DTYPES, ENGINES, MASKS, OPTIONS, SCORES, Call, Case, expected_support
from regard.testing.run import STATISTICS, build_mask, expect

SERVING = [e for e in ENGINES if expected_support(e, Call(Case(SCORES["scaled_dot"])))]
INPUTS = tuple(torch.randn(1, 2, 5, 4) for _ in range(3))


def plan_of(call: Call, engine: str | None = None) -> regard.Plan:
    """What `explain` says of a case."""
    inputs = expect(call.case).inputs
    score, tensors = inputs.copy(call.case.dtype, call.device)
    if "bias" in tensors:
        tensors["bias"].requires_grad_(call.learn_bias)
    arguments = tensors | inputs.numbers | {"mask": build_mask(inputs.parts), "engine": engine}
    return regard.explain(**arguments, score=score, want=call.want)


@pytest.mark.parametrize("want", [(), ("entropy",)], ids=["plain", "statistics"])
@pytest.mark.parametrize("option", OPTIONS)
def test_explain_names_the_first_engine_that_should_serve(option, want):
    for name in ("scaled_dot", "gaussian", "additive", "projected scaled_dot"):
        for learn_bias in (True, False):
            call = Call(Case(SCORES[name], option=option), want, learn_bias)
            due = [engine for engine in ENGINES if expected_support(engine, call)]
            # These are small: with pairwise ones "plain" is done sooner, or else "cpu" than "compiled".
            first = "plain" if "plain" in due else "cpu"
            if call.case.score.form == "pairwise":
                due.sort(key=first.__ne__)
            plan = plan_of(call)
            assert plan.engine == due[0], call
            assert plan.also == due[1:]
            # "sine" approximates, which nobody allowed.
            assert set(plan.refused) == set(ENGINES) - set(due) | {"sine"}
            assert all(plan.refused.values())


@pytest.mark.parametrize("mask", MASKS)
def test_no_mask_is_a_reason_to_refuse(mask):
    for engine in SERVING:
        assert plan_of(Call(Case(SCORES["scaled_dot"], mask=mask)), engine).engine == engine


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_no_dtype_is_a_reason_to_refuse(dtype):
    for engine in SERVING:
        assert plan_of(Call(Case(SCORES["scaled_dot"], dtype)), engine).engine == engine


def test_an_engine_asked_for_by_name_raises_with_its_reasons():
    with pytest.raises(regard.EngineRefused) as refusal:
        regard.attend(*INPUTS, softcap=2.0, want=STATISTICS, engine="sdpa")
    assert refusal.value.engine == "sdpa"
    assert len(refusal.value.reasons) == 2
    for reason in refusal.value.reasons:
        assert reason in str(refusal.value)


# Refusals that depend on what the tables do not vary.
LARGE = torch.zeros(1, 1, 4097, 1)
SDPA_REFUSES = {
    "dropout on the CPU": (INPUTS, {"dropout": 0.1}),
    "no queries": ((INPUTS[0][:, :, :0], *INPUTS[1:]), {}),
    "no keys": ((INPUTS[0], *(x[:, :, :0] for x in INPUTS[1:])), {}),
    "no batch": (tuple(x[:0] for x in INPUTS), {}),
    "a dense mask above 2**24 entries": (
        (LARGE, LARGE, LARGE),
        {"mask": torch.ones(1, 1, dtype=torch.bool).expand(4097, 4097)},
    ),
    "a window that needs more than 2**24 entries": (
        (LARGE, LARGE, LARGE),
        {"mask": regard.Mask.window(left=8)},
    ),
}
SDPA_SERVES = {
    "a key mask of any length": (
        (LARGE, LARGE, LARGE),
        {"mask": regard.Mask.lengths(keys=[4000])},
    ),
    "a causal mask of any length": ((LARGE, LARGE, LARGE), {"mask": regard.Mask.causal()}),
    "a bias that is not learned": (INPUTS, {"bias": torch.zeros(5, 5)}),
}


@pytest.mark.parametrize("what", SDPA_REFUSES)
def test_sdpa_refuses(what):
    tensors, options = SDPA_REFUSES[what]
    plan = regard.explain(*tensors, **options, engine="sdpa")
    assert plan.engine is None and len(plan.refused["sdpa"]) == 1
    for engine in ("cpu", "reference"):
        assert regard.explain(*tensors, **options, engine=engine).engine == engine


@pytest.mark.parametrize("what", SDPA_SERVES)
def test_sdpa_serves(what):
    tensors, options = SDPA_SERVES[what]
    assert regard.explain(*tensors, **options).engine == "sdpa"
