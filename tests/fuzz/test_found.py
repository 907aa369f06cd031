"""What the fuzzer has found: one test for each bug, named after it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import regard
from regard import Mask, nn, stabilize

NAN = float("nan")


@pytest.mark.parametrize("given", ["mask", "bias"])
def test_lowered_keys_with_a_beta_take_a_mask_of_two_dims(given: str) -> None:
    """It was an IndexError: the mask's keys had no head dim to repeat."""
    score, x = regard.Gaussian(heads=None), torch.randn(1, 2, 3, 4)
    seen = torch.ones(3, 3).tril().bool()
    hidden = {"mask": seen} if given == "mask" else {"bias": torch.zeros(1, 3)}
    found = regard.attention(x, score.key(x), x, score, **hidden)
    torch.testing.assert_close(found, regard.attention(x, x, x, score, **hidden))


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@pytest.mark.parametrize("want", [(), ("weights",), ("weights", "entropy")])
@pytest.mark.parametrize("option", [{"softcap": 2.0}, {"temperature": torch.full((1,), 0.5)}])
def test_a_soft_cap_keeps_hidden_nan_out_of_gradients(
    engine: str, want: tuple[str, ...], option: dict
) -> None:
    """A row that does not see a NaN key had a gradient of NaN: 0 times the slope of tanh at NaN."""
    query, value = torch.randn(1, 1, 3, 4, requires_grad=True), torch.randn(1, 1, 3, 4)
    key = torch.randn(1, 1, 3, 4)
    key[..., 2, :] = NAN
    given = {"mask": Mask.causal(), "engine": engine, "want": want} | option
    output = regard.attend(query, key, value, **given).output
    assert output[..., 2, :].isnan().all()
    output[..., :2, :].sum().backward()
    assert query.grad is not None and query.grad[..., :2, :].isfinite().all()


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_hard_look_up_of_nan_leaves_hidden_values_alone(engine: str) -> None:
    """The weights of hidden keys were NaN too, and so were the gradients of their values."""
    query, key = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    query[..., 0, :] = NAN
    value = torch.randn(1, 1, 3, 4, requires_grad=True)
    given = {"mask": Mask.causal(), "temperature": 0.0, "engine": engine, "want": ("weights",)}
    found = regard.attend(query, key, value, **given)
    assert found.weights is not None and found.weights[..., 0, 1:].eq(0).all()
    assert found.output[..., 0, :].isnan().all()
    found.output.sum().backward()
    assert value.grad is not None and value.grad[..., 1:, :].isfinite().all()


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_sink_of_little_weight_has_its_gradient(engine: str) -> None:
    """It was y (1 - y) of y near 1: no digits were left."""
    query, value = torch.full((1, 1, 1, 1), 20.0), torch.ones(1, 1, 1, 1)
    sink = torch.zeros(1, requires_grad=True)
    regard.attention(query, value, value, sink=sink, engine=engine).sum().backward()
    assert sink.grad is not None
    torch.testing.assert_close(sink.grad, torch.tensor([-math.exp(-20.0)]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_take_lowered_keys_of_gat_in_half_precision(dtype: torch.dtype) -> None:
    """`regard.score` refused what `attention` takes: `MonotonicAttention` with "gat" could not run."""
    score, x = regard.GAT(4).to(dtype), torch.randn(1, 1, 3, 4).to(dtype)
    torch.testing.assert_close(regard.score(x, score.key(x), score), regard.score(x, x, score))
    attention = nn.MonotonicAttention("gat", width=4).to(dtype)
    assert attention(x[:, 0], attention.prepare(x[:, 0])).context.dtype == dtype


X = torch.ones(2, 3, 4)
UNCLEAR: dict[str, tuple[Callable[[], object], str]] = {
    "lengths of text": (lambda: Mask.lengths(keys="3"), "keys must be integers"),
    "lengths that are ragged": (lambda: Mask.lengths(keys=[[1], [2, 3]]), "keys must be integers"),
    "lengths that are a class": (lambda: Mask.lengths(queries=int), "queries must be integers"),
    "lengths of tokens": (lambda: nn.SelfAttention(4, 1)(X, lengths="ab"), "lengths must be"),
    "a temperature that is true": (
        lambda: regard.attention(X, X, X, temperature=True),
        "temperature",
    ),
    "no dims": (lambda: stabilize.Normalized(regard.Dot(), ()), "dim must be"),
    "a feed-forward width": (lambda: nn.EncoderBlock(4, 1, feedforward="2"), "feedforward must"),
    "keys of another dtype": (
        lambda: nn.BahdanauAttention(4, 4, 4).prepare(X.double()),
        "keys are torch.float64 but BahdanauAttention is torch.float32",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_errors_that_did_not_name_the_argument(name: str) -> None:
    """They came from inside torch, or there was none."""
    call, words = UNCLEAR[name]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_few_distant_keys_have_their_middle_as_origin() -> None:
    """Half of the sample was the first key: about an outer one the squares cancelled five digits."""
    key = torch.tensor([[-102.4, 298.5], [-25.7, 6.2], [-275.1, 18.8]]).view(1, 1, 3, 2)
    side = regard.Gaussian(1.5, heads=None).key(key)
    assert side.origin is not None
    torch.testing.assert_close(side.origin.flatten(), torch.tensor([-102.4, 18.8]))


def test_the_series_keeps_its_bound_in_fp64() -> None:
    """Its table was rounded to fp32: the output was off by 5.1e-9 where `explain` stated 4.6e-9."""
    query = torch.tensor([[[[0.04427577927708626]]]], dtype=torch.float64)
    key = torch.tensor([-0.6841068863868713, 0.6885742545127869], dtype=torch.float64)
    key, value = key.view(1, 1, 2, 1), torch.tensor([2.3133, -0.4960], dtype=torch.float64)
    value = value.view(1, 1, 2, 1)
    score = regard.Additive(hidden=1, heads=1).double()
    with torch.no_grad():
        score.v.fill_(-0.2777518332004547)
    given = (query, key, value, score)
    bound = regard.explain(*given, engine="sine").error_bound * float(value.max())
    off = regard.attention(*given, engine="sine") - regard.attention(*given, engine="reference")
    assert float(off.detach().abs().max()) <= bound
