"""Which inputs want a gradient must not matter, and broadcast gradients are sums."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import regard
from regard import Mask

from .tools import QUICK_PAIRS, assert_same, draw, gradients, inputs, make_score

NAMES = ("query", "key", "value", "bias", "sink", "temperature", "parameter")
SUBSETS = [subset for subset in product([False, True], repeat=len(NAMES)) if any(subset)]


def call(engine: str, name: str, subset: tuple[bool, ...]) -> list[torch.Tensor]:
    """The output, and the gradients that the subset asks for, in the order of NAMES."""
    generator = torch.Generator().manual_seed(7)
    score = make_score(name, 2)
    parameter = next(score.parameters())
    for p in score.parameters():
        p.requires_grad_(False).copy_(torch.randn(p.shape, generator=generator))
    shapes = ((2, 2, 3, 4), (2, 2, 4, 4), (2, 2, 4, 3), (2, 1, 3, 4), (2,))
    q, k, v, bias, sink = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    temperature = torch.tensor([0.7, 1.4], dtype=torch.float64)
    everything = [q, k, v, bias, sink, temperature, parameter]
    wanted = [x.requires_grad_() for x, wants in zip(everything, subset, strict=True) if wants]
    output = regard.attention(
        q, k, v, score, bias=bias, sink=sink, temperature=temperature, engine=engine
    )
    assert output.requires_grad
    return [output, *gradients(output, wanted)]


@pytest.mark.parametrize(("engine", "name"), QUICK_PAIRS)
def test_every_subset_of_inputs_that_want_a_gradient(engine, name):
    """pytorch#188302: with a gradient for the bias alone the LSE was not saved, and read anyway."""
    output, *values = call(engine, name, (True,) * len(NAMES))
    grads = dict(zip(NAMES, values, strict=True))
    assert all(grad.abs().sum() > 0 for grad in grads.values())
    for subset in SUBSETS:
        expected = [grads[n] for n, wants in zip(NAMES, subset, strict=True) if wants]
        assert_same(call(engine, name, subset), [output, *expected], rtol=1e-12)


@pytest.mark.parametrize("subset", list(product([False, True], repeat=3))[1:])
def test_every_subset_through_sdpa(subset):
    tensors = inputs()
    wanted = [x for x, wants in zip(tensors, subset, strict=True) if wants]
    for x, wants in zip(tensors, subset, strict=True):
        x.requires_grad_(wants)
    mask = Mask.lengths(keys=torch.tensor([4, 6]))
    found = []
    for engine in ("sdpa", "reference"):
        output = regard.attention(*tensors, mask=mask, engine=engine)
        found.append([output, *gradients(output, wanted)])
    assert_same(*found)


def test_no_graph_where_nothing_wants_a_gradient():
    tensors = [x.detach() for x in inputs()]
    for engine in ("reference", "cpu", "sdpa"):
        assert not regard.attention(*tensors, engine=engine).requires_grad
    with torch.no_grad():
        assert not regard.attention(*inputs(), engine="cpu").requires_grad
    with torch.inference_mode():
        assert regard.attention(*tensors, engine="cpu").isfinite().all()


BIASES = [
    (5, 6),
    (1, 6),
    (5, 1),
    (1, 1),
    (1, 1, 5, 6),
    (2, 1, 1, 6),
    (1, 2, 5, 1),
    (2, 2, 5, 6),
    (1, 1, 1, 1),
]


@pytest.mark.parametrize("shape", BIASES, ids=str)
@pytest.mark.parametrize("name", ["bilinear", "additive"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_bias_gradient_is_reduced_over_broadcast_dims(engine, name, shape):
    """xformers#636, #783: missing or unreduced gradients of a broadcast bias."""
    score, tensors, bias = make_score(name, 2), inputs(), draw(*shape).requires_grad_()
    output = regard.attention(*tensors, score, bias=bias, engine=engine)
    (grad,) = gradients(output, [bias])
    whole = bias.detach().expand(2, 2, 5, 6).clone().requires_grad_()
    expected = regard.attention(*tensors, score, bias=whole, engine="reference")
    (each,) = gradients(expected, [whole])
    assert_same([output, grad], [expected, each.sum_to_size(shape)])


def test_the_bias_gradient_under_sdpa_goes_to_another_engine():
    """SDPA would build the Q x L matrix; asked for by name it says so."""
    tensors, bias = inputs(), draw(5, 6).requires_grad_()
    with pytest.raises(regard.EngineRefused, match="gradient of a bias"):
        regard.attention(*tensors, bias=bias, engine="sdpa")
    assert regard.explain(*tensors, bias=bias).engine == "cpu"


@pytest.mark.parametrize(
    "shape", [(), (1,), (2,), (1, 1, 5, 1), (2, 1, 1, 1), (2, 2, 5, 1), (5, 1)]
)
@pytest.mark.parametrize("name", ["bilinear", "additive"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_the_temperature_gradient_is_reduced_over_broadcast_dims(engine, name, shape):
    score, tensors = make_score(name, 2), inputs()
    temperature = (1 + 0.5 * torch.rand(shape, dtype=torch.float64)).requires_grad_()
    output = regard.attention(*tensors, score, temperature=temperature, engine=engine)
    (grad,) = gradients(output, [temperature])
    by_head = temperature.detach().view(-1, 1, 1) if len(shape) == 1 else temperature.detach()
    whole = by_head.expand(2, 2, 5, 1).clone().requires_grad_()
    expected = regard.attention(*tensors, score, temperature=whole, engine="reference")
    (each,) = gradients(expected, [whole])
    like = (shape[0], 1, 1) if len(shape) == 1 else shape
    assert_same([output, grad], [expected, each.sum_to_size(like).view(shape)])


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_gradients_of_inputs_shared_by_the_batch(engine, name, which):
    """A leading dim of 1 broadcasts; its gradient is the sum over the batch."""
    if (engine, name) == ("sdpa", "additive"):
        name = "gaussian"
    score, tensors = make_score(name, 2), inputs(batch=3)
    tensors[which] = draw(1, *tensors[which].shape[1:]).requires_grad_()
    output = regard.attention(*tensors, score, engine=engine)
    copies = [x.detach().expand(3, -1, -1, -1).clone().requires_grad_() for x in tensors]
    expected = regard.attention(*copies, score, engine="reference")
    wanted = gradients(expected, copies)
    wanted[which] = wanted[which].sum(0, keepdim=True)
    assert_same([output, *gradients(output, tensors)], [expected, *wanted])


@pytest.mark.parametrize("statistic", ["lse", "entropy", "weights"])
@pytest.mark.parametrize("name", ["bilinear", "additive", "gatv2"])
def test_statistics_of_queries_and_keys_shared_by_the_batch(name, statistic):
    """Only the values have a batch: all its gradients of one logit meet in the shared pair."""
    score, (q, k, v) = make_score(name, 2), inputs(batch=1)
    values = v.detach().repeat(3, 1, 1, 1)
    found = []
    for engine in ("cpu", "reference"):
        result = regard.attend(q, k, values, score, want=statistic, engine=engine)
        asked = getattr(result, statistic)
        assert asked.shape[0] == 3
        found.append([asked, *gradients(asked, [q, k, *score.parameters()])])
    assert_same(*found)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_backward_twice_over_a_retained_graph(name):
    score, tensors = make_score(name, 2), inputs()
    output = regard.attention(*tensors, score, engine="cpu")
    grads = [torch.autograd.grad(output.sum(), tensors, retain_graph=True) for _ in range(2)]
    assert_same(list(grads[0]), list(grads[1]), rtol=1e-15)


@pytest.mark.parametrize(
    "statistics", [("lse",), ("entropy",), ("weights",), ("lse", "entropy", "weights")]
)
@pytest.mark.parametrize("options", [{}, {"sink": draw(2)}, {"softcap": 1.5}, {"temperature": 0.5}])
@pytest.mark.parametrize("name", ["gaussian", "additive"])
def test_gradients_through_statistics_alone(name, options, statistics):
    """The output may be unused: its gradient then is None inside the backward."""
    score, tensors = make_score(name, 2), inputs()
    found = []
    for engine in ("cpu", "reference"):
        result = regard.attend(*tensors, score, want=statistics, engine=engine, **options)
        asked = [getattr(result, field).flatten() for field in statistics]
        found.append(gradients(torch.cat(asked), [*tensors[:2], *score.parameters()]))
    assert_same(*found)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_detached_statistics_carry_no_graph(engine):
    tensors = inputs()
    want = ("max_logit", "max_weight", "jacobian")
    result = regard.attend(*tensors, want=want, engine=engine)
    assert not any(getattr(result, field).requires_grad for field in want)


@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_gradcheck_of_the_cpu_engine(name, tiny_tiles):
    """Against finite differences and not against another engine, over more than one tile."""
    score, tensors = make_score(name, 1), inputs(1, 1, 2, tiny_tiles + 2)
    bias, sink = draw(1, 1, 2, 1).requires_grad_(), draw(1).requires_grad_()
    temperature = torch.tensor([0.8], dtype=torch.float64, requires_grad=True)

    def function(q, k, v, bias, sink, temperature, *_):
        result = regard.attend(
            q,
            k,
            v,
            score,
            want=("lse", "entropy"),
            bias=bias,
            sink=sink,
            temperature=temperature,
            softcap=3.0,
            mask=Mask.causal(),
            engine="cpu",
        )
        return result.output, result.lse, result.entropy

    arguments = (*tensors, bias, sink, temperature, *score.parameters())
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)
