"""Autocast and mixed dtypes: one rule for what is computed in which precision."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import PAIRS, PAIRWISE, SCORES, all_finite, gradients, inputs, make_score


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_autocast_runs_every_score(engine, name, dtype):
    """mamba#868, openfold-3#194: fp32 parameters met half-precision inputs and raised."""
    score, tensors = make_score(name, 2, torch.float32), inputs(dtype=torch.float32)
    wide = [x.detach().double() for x in tensors]
    twin = make_score(name, 2)
    twin.load_state_dict(score.state_dict())
    expected = regard.attention(*wide, twin, mask=Mask.causal(), engine="reference").detach()
    with torch.autocast("cpu", dtype=dtype):
        output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
    assert output.dtype == dtype
    assert float((output.detach().double() - expected).abs().max()) < 20 * torch.finfo(dtype).eps
    grads = gradients(output, [*tensors, *score.parameters()])
    assert all_finite(*grads)
    assert all(grad.dtype == torch.float32 for grad in grads)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_autocast_gives_what_casting_by_hand_gives(engine):
    tensors = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = regard.attention(*tensors, engine=engine)
    by_hand = regard.attention(*(x.bfloat16() for x in tensors), engine=engine)
    assert torch.equal(output, by_hand)


@pytest.mark.parametrize("name", SCORES)
def test_statistics_stay_in_fp32_under_autocast(name):
    score, tensors = make_score(name, 2, torch.float32), inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = regard.attend(*tensors, score, want=("lse", "entropy", "weights"))
    for field in ("lse", "entropy", "weights"):
        assert getattr(result, field).dtype == torch.float32


def test_autocast_leaves_fp64_alone():
    tensors = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = regard.attention(*tensors)
    assert torch.equal(output, regard.attention(*tensors))


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("name", PAIRWISE)
def test_options_in_fp32_under_autocast(engine, name):
    """Learned temperatures, sinks and biases stay fp32 parameters."""
    score, tensors = make_score(name, 2, torch.float32), inputs(dtype=torch.float32)
    options = {
        "temperature": torch.tensor([0.5, 2.0], requires_grad=True),
        "sink": torch.tensor([0.1, 0.2], requires_grad=True),
        "bias": torch.randn(5, 6).requires_grad_(),
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = regard.attention(*tensors, score, softcap=5.0, engine=engine, **options)
    grads = gradients(output, list(options.values()))
    assert all_finite(output, *grads)
    assert all(grad.dtype == torch.float32 and grad.abs().sum() > 0 for grad in grads)


@pytest.mark.parametrize("name", SCORES)
def test_raw_scores_under_autocast(name):
    score, (query, key, _) = make_score(name, 2, torch.float32), inputs(dtype=torch.float32)
    expected = regard.score(query, key, score)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = regard.score(query, key, score)
    torch.testing.assert_close(logits.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_half_precision_modules(engine, name, dtype):
    """Parameters and inputs all in half precision, as inference has them."""
    score, tensors = make_score(name, 2, dtype), inputs(dtype=dtype)
    output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
    assert output.dtype == dtype
    grads = gradients(output, [*tensors, *score.parameters()])
    assert all_finite(output, *grads)
    assert all(grad.dtype == dtype for grad in grads)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_options_may_be_wider_than_the_inputs(engine, dtype):
    tensors = inputs(dtype=dtype)
    options = {
        "temperature": torch.tensor([0.5, 2.0], requires_grad=True),
        "sink": torch.tensor([0.1, 0.2], requires_grad=True),
        "bias": torch.randn(5, 6).requires_grad_(),
    }
    output = regard.attention(*tensors, engine=engine, **options)
    assert output.dtype == dtype
    for grad, option in zip(
        gradients(output, list(options.values())), options.values(), strict=True
    ):
        assert grad.dtype == option.dtype
        assert all_finite(grad)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_mixed_dtypes_under_autocast(engine):
    """What the error for mixed dtypes advises: projections come in bf16, raw values in fp32."""
    query, key, value = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = regard.attention(query.bfloat16(), key.bfloat16(), value, engine=engine)
    by_hand = regard.attention(*(x.bfloat16() for x in (query, key, value)), engine=engine)
    assert torch.equal(output, by_hand)
