"""The `plain` engine beside the specification; the contract suite runs it too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask
from regard.engines.plain import FEW_TANH, FEW_TANH_OF_ONE_QUERY, FEW_TANH_ON_CPU

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


def test_a_key_that_heads_share_until_it_is_projected() -> None:
    """It was not zeroed for the head that does not see it, since the other does."""
    score = regard.Projected(regard.Additive(3, 2), 4, 4)
    query, key, value = (torch.randn(2, 1, n, 4) for n in (3, 5, 5))
    key[:, :, 2] = torch.nan
    seen = torch.ones(2, 2, 1, 5, dtype=torch.bool)
    seen[:, 0, :, 2] = False
    output = regard.attention(query, key, value, score, mask=Mask.dense(seen), engine="plain")
    assert output[:, 0].isfinite().all() and output[:, 1].isnan().all()
    (of_v,) = torch.autograd.grad(output[:, 0].sum(), score.score.v)
    assert of_v[0].isfinite().all()


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


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal(alignment="top_left"),
        Mask.window(left=2),
        Mask.lengths(keys=5, queries=torch.tensor([1, 0])),
        Mask.segments(torch.tensor([[0], [1]]), torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)),
    ],
    ids=["causal", "window", "lengths", "segments"],
)
def test_a_single_query_takes_any_mask(mask) -> None:
    call = (*inputs(queries=1), score())
    truth = regard.attention(*call, mask=mask, engine="reference")
    torch.testing.assert_close(regard.attention(*call, mask=mask, engine="plain"), truth)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_fp32(dtype) -> None:
    """Values far from 0 and gradients as a GradScaler makes them: <grad, value> leaves fp16."""
    found = {}
    for engine, kind in (("plain", dtype), ("reference", torch.float64)):
        query, key, value = inputs()
        leaves = [x.to(dtype).to(kind).requires_grad_() for x in (query, key, value + 100)]
        output = regard.attention(*leaves, score().to(dtype).to(kind), engine=engine)
        grad = (100 * draw(*output.shape, seed=6)).to(dtype).to(kind)
        found[engine] = torch.autograd.grad(output, leaves, grad)
    eps = torch.finfo(dtype).eps
    for ours, truth in zip(found["plain"], found["reference"], strict=True):
        assert (ours.double() - truth).abs().max() < 4 * eps * truth.abs().max()


def test_values_are_kept_as_they_are() -> None:
    kept = []

    def pack(x: Tensor) -> Tensor:
        kept.append((x.dtype, x.shape[-1]))
        return x

    leaves = [x.bfloat16().requires_grad_() for x in inputs()]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        regard.attention(*leaves, score().bfloat16(), engine="plain")
    assert (torch.bfloat16, 5) in kept and (torch.float32, 5) not in kept


@pytest.mark.parametrize(
    ("queries", "keys", "device", "engine"),
    [
        (2, FEW_TANH // 2, "meta", "plain"),
        (2, FEW_TANH_ON_CPU // 2, "cpu", "plain"),
        (2, FEW_TANH_ON_CPU // 2 + 1, "cpu", "cpu"),
        (1, FEW_TANH_OF_ONE_QUERY, "cpu", "plain"),
        (1, FEW_TANH_OF_ONE_QUERY + 1, "cpu", "cpu"),
    ],
)
def test_small_calls_go_to_it(queries, keys, device, engine) -> None:
    one = torch.zeros(1, 1, 1, 1, device=device)
    query, key = (one.expand(1, 1, length, 1) for length in (queries, keys))
    assert regard.explain(query, key, key, regard.Additive(1, 1).to(device)).engine == engine


def test_who_allows_an_error_on_the_cpu_gets_the_series() -> None:
    x = torch.zeros(1, 1, 64, 4)
    score = regard.Additive(4, 1)
    assert regard.explain(x, x, x, score).engine == "plain"
    assert regard.explain(x, x, x, score, error=0.05).engine == "sine"


@pytest.mark.gpu
@pytest.mark.parametrize(("keys", "engine"), [(2, "plain"), (FEW_TANH + 1, "triton")])
def test_small_calls_on_a_gpu_go_to_it(keys, engine) -> None:
    query = torch.empty(1, 1, 1, 1, device="cuda")
    key = torch.empty(1, 1, 1, 1, device="cuda").expand(1, 1, keys, 1)
    assert regard.explain(query, key, key, regard.Additive(1, 1).cuda()).engine == engine
