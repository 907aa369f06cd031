"""The `plain` engine beside the specification; the contract suite runs it too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask
from regard.engines.plan import FEW_TANH

HEADS, HIDDEN = 4, 6


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def score(heads: int = HEADS) -> regard.Additive:
    torch.manual_seed(0)
    return regard.Additive(HIDDEN, heads).double()


def inputs(key_heads: int = HEADS, queries: int = 3, keys: int = 7) -> tuple[Tensor, ...]:
    return (
        draw(2, HEADS, queries, HIDDEN, seed=1),
        draw(2, key_heads, keys, HIDDEN, seed=2),
        draw(2, key_heads, keys, 5, seed=3),
    )


LENGTHS = Mask.lengths(keys=torch.tensor([4, 0]))
SEEN = draw(2, HEADS, 1, 7, seed=4) > 0
SEEN[1, 2] = False


@pytest.mark.parametrize(
    "mask", [None, LENGTHS, Mask.dense(SEEN)], ids=["none", "lengths", "dense"]
)
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_output_weights_and_gradients(mask, key_heads, temperature) -> None:
    found = []
    for engine in ("plain", "reference"):
        leaves = [x.requires_grad_() for x in inputs(key_heads)]
        additive = score()
        result = regard.attend(
            *leaves, additive, mask=mask, temperature=temperature, want={"weights"}, engine=engine
        )
        assert result.weights is not None
        loss = (result.output * draw(2, HEADS, 3, 5, seed=5)).sum() + result.weights.square().sum()
        grads = torch.autograd.grad(loss, [*leaves, additive.v])
        found.append([result.output, result.weights, *grads])
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)


def test_leading_dims_are_broadcast() -> None:
    query, key, value = draw(1, HEADS, 2, HIDDEN), draw(3, HEADS, 4, HIDDEN), draw(3, HEADS, 4, 5)
    mask = Mask.lengths(keys=torch.tensor([4, 1, 0]))
    for engine in ("plain", "reference"):
        result = regard.attend(
            query, key, value, score(), mask=mask, want={"weights"}, engine=engine
        )
        assert result.output.shape == (3, HEADS, 2, 5)
        assert result.weights is not None and result.weights.shape == (3, HEADS, 2, 4)
        truth = regard.attention(query, key, value, score(), mask=mask, engine="reference")
        torch.testing.assert_close(result.output, truth)


def test_what_is_hidden_is_not_read_and_nothing_flows_to_an_empty_row() -> None:
    query, key, value = inputs()
    key[0, :, 5], value[0, :, 6] = torch.nan, torch.inf
    key[1], value[1] = torch.nan, torch.nan
    leaves = [x.requires_grad_() for x in (query, key, value)]
    additive = score()
    output = regard.attention(*leaves, additive, mask=LENGTHS, engine="plain")
    assert output.isfinite().all() and (output[1] == 0).all()
    grad = torch.ones_like(output)
    grad[1] = torch.nan
    for found in torch.autograd.grad(output, [*leaves, additive.v], grad):
        assert found.isfinite().all()


def test_second_derivatives() -> None:
    leaves = [x.requires_grad_() for x in inputs(queries=2, keys=3)]
    additive = score()

    def run(*leaves: Tensor) -> Tensor:
        return regard.attention(*leaves, additive, engine="plain")

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


def test_it_compiles_whole_and_maps() -> None:
    leaves, additive = inputs(), score()
    run = lambda *x: regard.attention(*x, additive, engine="plain")  # noqa: E731
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*leaves), run(*leaves))
    apart = [x.unsqueeze(1) for x in leaves]
    torch.testing.assert_close(torch.func.vmap(run)(*apart).squeeze(1), run(*leaves))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bias": torch.zeros(3, 7, dtype=torch.float64)}, "no bias"),
        ({"softcap": 3.0}, "no soft cap"),
        ({"dropout": 0.5}, "no dropout"),
        ({"sink": torch.zeros(HEADS, dtype=torch.float64)}, "no sink"),
        ({"temperature": 0.0}, "above 0"),
        ({"mask": Mask.causal()}, "one query"),
        ({"mask": Mask.lengths(keys=5, queries=2)}, "one query"),
        ({"want": {"lse"}}, "lse"),
    ],
)
def test_refusals(options, why) -> None:
    with pytest.raises(regard.EngineRefused, match=why):
        regard.attend(*inputs(), score(), engine="plain", **{"want": {"weights"}} | options)


def test_a_single_query_takes_any_mask() -> None:
    query, key, value = inputs(queries=1)
    truth = regard.attention(query, key, value, score(), mask=SEEN, engine="reference")
    found = regard.attention(query, key, value, score(), mask=Mask.dense(SEEN), engine="plain")
    torch.testing.assert_close(found, truth)


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "engine"), [(1, "plain"), (FEW_TANH, "triton")])
def test_small_calls_on_a_gpu_go_to_it(batch, engine) -> None:
    query = torch.empty(1, 1, 1, 1, device="cuda").expand(batch, 1, 1, 1)
    key = torch.empty(1, 1, 2, 1, device="cuda").expand(batch, 1, 2, 1)
    assert regard.explain(query, key, key, regard.Additive(1, 1).cuda()).engine == engine
