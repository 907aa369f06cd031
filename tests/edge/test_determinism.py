"""The same call gives the same bits: no races, no uninitialised memory, no hidden state."""

from __future__ import annotations

import os

import pytest
import torch

import regard
from regard import Mask

from .tools import OWN_PAIRS, QUICK_PAIRS, SHORT_PAIRS, assert_same, gradients, inputs, make_score

WANT = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")


def everything(engine: str, score: regard.Score, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
    return [output, *gradients(output, [*tensors, *score.parameters()])]


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_repeats_are_equal_to_the_bit(engine, name):
    score, tensors = make_score(name, 2, torch.float32), inputs(3, 2, 40, 40, dtype=torch.float32)
    first = everything(engine, score, tensors)
    for _ in range(20):
        for x, y in zip(everything(engine, score, tensors), first, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_a_call_in_between_leaves_no_trace(engine, name):
    """Buffers are reused within a call, never between calls."""
    score, tensors = make_score(name, 2), inputs()
    first = everything(engine, score, tensors)
    other = [x * float("nan") for x in inputs(4, 2, 9, 11)]
    regard.attention(*other, score, engine=engine)
    for x, y in zip(everything(engine, score, tensors), first, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_uninitialised_memory_is_never_read(engine, name):
    """Every `empty` is filled with NaN, also of keys whose tiles are skipped."""
    score, tensors = make_score(name, 2), inputs(queries=20, keys=40)
    mask = Mask.window(left=3) & Mask.causal() & Mask.lengths(keys=40, queries=15)
    plain = regard.attention(*tensors, score, mask=mask, engine=engine)
    expected = [plain, *gradients(plain, [*tensors, *score.parameters()])]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        output = regard.attention(*tensors, score, mask=mask, engine=engine)
        grads = gradients(output, [*tensors, *score.parameters()])
        if engine != "sdpa":
            found = regard.attend(*tensors, score, mask=mask, want=WANT, engine=engine)
            assert all(not x.isnan().any() for x in found)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same([output, *grads], expected)


@pytest.mark.parametrize(("engine", "name"), QUICK_PAIRS)
def test_statistics_do_not_change_the_output(engine, name):
    """To the bit; `triton` has a kernel for few queries without them, which rounds otherwise."""
    score, tensors = make_score(name, 2), inputs()
    plain = regard.attention(*tensors, score, engine=engine)
    for want in ((), ("lse",), WANT):
        assert torch.equal(regard.attend(*tensors, score, want=want, engine=engine).output, plain)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_the_number_of_threads_changes_rounding_at_most(name, threads):
    score, tensors = make_score(name, 2), inputs(2, 2, 30, 50)
    expected = everything("reference", score, tensors)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(everything("cpu", score, tensors), expected)
    finally:
        torch.set_num_threads(before)


def test_the_choice_of_engine_depends_on_the_call_alone(monkeypatch):
    """Megatron#6966: ranks that time kernels disagree about which to run."""
    tensors = inputs()
    before = regard.explain(*tensors)
    monkeypatch.setattr(os, "environ", {})
    assert regard.explain(*tensors) == before
    assert regard.explain(*tensors).engine == "sdpa"
    assert regard.explain(*tensors, softcap=1.0).engine == "cpu"


def test_the_generator_is_touched_by_dropout_alone():
    tensors = inputs()
    state = torch.get_rng_state()
    for engine in ("reference", "cpu", "sdpa"):
        regard.attention(*tensors, engine=engine)
    assert torch.equal(torch.get_rng_state(), state)
    regard.attention(*tensors, dropout=0.5, engine="cpu")
    assert not torch.equal(torch.get_rng_state(), state)
