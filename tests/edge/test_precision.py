"""Numbers that are huge, tiny or far from the origin."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from .tools import all_finite, draw, gradients

ENGINES = ("reference", "cpu", "sdpa")
HALVES = (torch.float16, torch.bfloat16)


def relative_error(output: Tensor, expected: Tensor) -> float:
    output, expected = output.detach().double(), expected.detach()
    return float((output - expected).abs().max() / expected.abs().max())


def exact(tensors: list[Tensor], score: regard.Score, **options) -> Tensor:
    """The same call in fp64."""
    wide = [x.detach().double() for x in tensors]
    return regard.attention(*wide, score, engine="reference", **options)


@pytest.mark.parametrize("score", [regard.Dot(), regard.ScaledDot()], ids=["dot", "scaled_dot"])
@pytest.mark.parametrize("options", [{}, {"mask": Mask.causal()}, {"mask": Mask.lengths(keys=4)}])
@pytest.mark.parametrize("engine", ENGINES)
def test_fp16_products_beyond_65504(engine, options, score):
    """pytorch#119131: fp16 logits overflow to inf and the softmax to NaN; <q, k> is 2.5e6 here."""
    query = torch.full((1, 2, 5, 64), 200.0, dtype=torch.float16)
    query[:, :, 1::2] *= -1
    tensors = [query, query.clone(), draw(1, 2, 5, 3, dtype=torch.float16)]
    tensors = [x.requires_grad_() for x in tensors]
    output = regard.attention(*tensors, score, engine=engine, **options)
    assert all_finite(output, *gradients(output, tensors))
    assert relative_error(output, exact(tensors, score, **options)) < 1e-3


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e20, 1e37])
@pytest.mark.parametrize("engine", ENGINES)
def test_cosine_does_not_depend_on_norms(engine, scale):
    """F.normalize gives 0 at 1e20 and 1e-18 in place of 0.5 at 1e-30: squares leave fp32."""
    score = regard.Cosine(heads=None)
    query, key, value = (draw(2, 2, 5, 8, dtype=torch.float32) for _ in range(3))
    expected = regard.attention(query, key, value, score, engine=engine)
    for tensors in ([query * scale, key, value], [query, key * scale, value]):
        output = regard.attention(*tensors, score, engine=engine)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_of_cosine_shrinks_as_the_norm_grows(engine, scale):
    """The slope d cos / d q is 1 / |q| times a number that does not depend on |q|."""
    score = regard.Cosine(heads=None)
    query, key, value = (draw(1, 1, 4, 8, dtype=torch.float32) for _ in range(3))
    grads = []
    for factor in (1.0, scale):
        scaled = (query * factor).requires_grad_()
        output = regard.attention(scaled, key, value, score, engine=engine)
        grads += [gradients(output, [scaled])[0] * factor]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_cosine_of_the_zero_vector_is_0_with_a_bounded_gradient(engine, side):
    """keras#23075: NaN gradient of rsqrt(0); pytorch#184575: a gradient of 1e12."""
    tensors = [draw(1, 1, 4, 8, dtype=torch.float32) for _ in range(3)]
    tensors[side][..., 1, :] = 0
    tensors = [x.requires_grad_() for x in tensors]
    score = regard.Cosine(heads=None)
    logits = regard.score(*tensors[:2], score)
    assert (logits.select(-2 + side, 1) == 0).all()
    output = regard.attention(*tensors, score, engine=engine)
    grads = gradients(output, tensors)
    assert all_finite(output, *grads)
    assert max(float(grad.abs().max()) for grad in grads) < 1e3


def test_cosine_eps_bounds_the_gradient_near_zero():
    tensors = [draw(1, 1, 4, 8, dtype=torch.float32) for _ in range(3)]
    tensors[0] *= 1e-12
    tensors = [x.requires_grad_() for x in tensors]
    for eps, bound in ((0.0, math.inf), (1e-3, 1e4)):
        output = regard.attention(*tensors, regard.Cosine(heads=None, eps=eps))
        assert float(gradients(output, tensors)[0].abs().max()) < bound


@pytest.mark.parametrize("dtype", HALVES)
def test_cosine_in_half_precision_squares_in_fp32(dtype):
    """fp16 squares of 300 are inf, those of 1e-4 are 0."""
    score = regard.Cosine(heads=None)
    tensors = [draw(1, 1, 5, 64, dtype=dtype) for _ in range(3)]
    for scale in (300.0, 1e-4):
        scaled = [tensors[0] * scale, tensors[1] * scale, tensors[2]]
        output = regard.attention(*scaled, score)
        assert relative_error(output, exact(scaled, score)) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("bandwidth", [0.2, 1.0])
@pytest.mark.parametrize("offset", [0.0, 100.0, -1e4])
@pytest.mark.parametrize("engine", ENGINES)
def test_gaussian_far_from_the_origin(engine, offset, bandwidth):
    """|q|^2 - 2 q k + |k|^2 cancels: 150% error at offset 100 unless the keys' mean is removed."""
    score = regard.Gaussian(bandwidth, heads=None)
    tensors = [draw(2, 2, 7, 4, dtype=torch.float32) * bandwidth + offset for _ in range(2)]
    tensors.append(draw(2, 2, 7, 3, dtype=torch.float32))
    output = regard.attention(*tensors, score, engine=engine)
    assert relative_error(output, exact(tensors, score)) < 1e-5


def hidden_by() -> dict[str, dict]:
    """Ways to hide key 7 of 8 from 7 queries."""
    hidden = torch.arange(8) == 7
    ids = torch.zeros(8, dtype=torch.int64)
    return {
        "lengths": {"mask": Mask.lengths(keys=7)},
        "dense": {"mask": ~hidden.expand(7, 8)},
        "causal top left": {"mask": Mask.causal("top_left")},
        "segments": {"mask": Mask.segments(ids[:7], ids.masked_fill(hidden, 1))},
        "bias": {"bias": torch.zeros(1, 8).masked_fill(hidden, -torch.inf)},
    }


@pytest.mark.parametrize("how", hidden_by())
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hidden_key_of_1e30_does_not_move_the_gaussians_origin(engine, how):
    """The mean of the keys is removed first: one hidden 1e30 in it would drown all others."""
    score = regard.Gaussian(0.2, heads=None)
    query, key = (draw(1, 1, n, 4, dtype=torch.float32) * 0.2 + 100 for n in (7, 8))
    value = draw(1, 1, 8, 3, dtype=torch.float32)
    options = hidden_by()[how]
    # In fp64 the 8th key is simply not there.
    expected = exact([query, key[:, :, :7], value[:, :, :7]], score)
    if how == "causal top left":
        expected = exact([query, key[:, :, :7], value[:, :, :7]], score, **options)
    key[:, :, 7] = 1e30
    output = regard.attention(query, key, value, score, engine=engine, **options)
    assert relative_error(output, expected) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_distant_key_of_the_future_does_not_blur_the_past(engine):
    """Under a causal mask the last key, here 1e6, is no business of the earlier queries."""
    score = regard.Gaussian(0.2, heads=None)
    tensors = [draw(1, 1, 7, 4, dtype=torch.float32) * 0.2 for _ in range(3)]
    tensors[1][:, :, -1] = 1e6
    output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
    expected = exact(tensors, score, mask=Mask.causal())
    assert relative_error(output[:, :, :-1], expected[:, :, :-1]) < 1e-5


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("engine", ENGINES)
def test_gaussian_squares_in_half_precision(engine, dtype, size):
    """|k|^2 of 64 entries of 1000 is 6e7, far beyond fp16."""
    score = regard.Gaussian(bandwidth=3 * size, heads=None)
    tensors = [draw(1, 2, 6, 64, dtype=dtype) * size for _ in range(2)]
    tensors.append(draw(1, 2, 6, 8, dtype=dtype))
    output = regard.attention(*tensors, score, engine=engine)
    assert relative_error(output, exact(tensors, score)) < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("size", [1.0, 30.0, 45.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_additive_with_large_opposite_arguments(engine, dtype, size):
    """The tanh of a + b from e^2a e^2b is inf * 0 beyond |a| = 44 in fp32: such tiles must call tanh."""
    score = regard.Additive(8)
    a = draw(1, 1, 6, 8) * size
    tensors = [a.to(dtype), (draw(1, 1, 6, 8) - a).to(dtype), draw(1, 1, 6, 3).to(dtype)]
    tensors = [x.requires_grad_() for x in tensors]
    output = regard.attention(*tensors, score.to(dtype), engine=engine)
    grads = gradients(output, [*tensors, score.v])
    wide = [x.detach().double().requires_grad_() for x in tensors]
    score = score.double()
    expected = regard.attention(*wide, score, engine="reference")
    expected_grads = gradients(expected, [*wide, score.v])
    bound = 100 * torch.finfo(dtype).eps
    for got, want in zip([output, *grads], [expected, *expected_grads], strict=True):
        assert relative_error(got, want) < bound


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_bias_of_the_most_negative_number_is_finite(engine, dtype):
    """finfo.min of fp32 rounds to -inf in fp16 and bf16: it is a bias, not a mask.

    Where every key has it, the rows that carry it are a plain softmax again.
    """
    tensors = [draw(1, 2, 4, 8, dtype=dtype) for _ in range(3)]
    bias = torch.zeros(4, 4)
    bias[1] = torch.finfo(torch.float32).min
    output = regard.attention(*tensors, bias=bias, engine=engine)
    expected = regard.attention(
        *(x.double() for x in tensors), bias=bias.double(), engine="reference"
    )
    assert all_finite(output)
    # The logits of that row are far below the spacing of floats at 3e38, and so all equal.
    torch.testing.assert_close(
        output[:, :, 1].float(), tensors[2].float().mean(-2), atol=2e-2, rtol=0
    )
    rest = [0, 2, 3]
    assert relative_error(output[:, :, rest], expected[:, :, rest]) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", HALVES)
def test_a_wide_bias_keeps_its_digits_in_half_precision(engine, dtype):
    """A learned fp32 bias of about 100, as ALiBi has, loses whole units when it is cast to bf16."""
    tensors = [draw(1, 2, 6, 8, dtype=dtype) for _ in range(3)]
    bias = -100 - torch.linspace(0, 1, 6).expand(6, 6)
    output = regard.attention(*tensors, bias=bias, engine=engine)
    expected = regard.attention(
        *(x.double() for x in tensors), bias=bias.double(), engine="reference"
    )
    assert relative_error(output, expected) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("size", [1e4, 1e8, 1e15])
@pytest.mark.parametrize("engine", ENGINES)
def test_huge_logits_pick_one_key(engine, size):
    """Where one logit is far above, the output is that value exactly, and no gradient is NaN."""
    query, key = torch.eye(4).view(1, 1, 4, 4) * size, torch.eye(4).view(1, 1, 4, 4)
    tensors = [query.requires_grad_(), key.requires_grad_(), draw(1, 1, 4, 3).float()]
    tensors[2].requires_grad_()
    output = regard.attention(*tensors, "dot", engine=engine)
    torch.testing.assert_close(output, tensors[2])
    assert all_finite(*gradients(output, tensors))


@pytest.mark.parametrize("temperature", [1e-3, 1e-6])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_low_temperature_approaches_the_hard_look_up(engine, temperature):
    tensors = [draw(1, 2, 5, 8, dtype=torch.float32) for _ in range(3)]
    output = regard.attention(*tensors, temperature=temperature, engine=engine)
    hard = regard.attention(*tensors, temperature=0.0)
    torch.testing.assert_close(output, hard, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("softcap", [1e-3, 1e4])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_soft_caps_that_flatten_or_do_nothing(engine, softcap):
    query, key, value = (draw(1, 1, 5, 4, dtype=torch.float32) for _ in range(3))
    output = regard.attention(query, key, value, softcap=softcap, engine=engine)
    plain = regard.attention(query, key, value, engine=engine)
    expected = value.mean(-2, keepdim=True).expand_as(value) if softcap < 1 else plain
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=3e-3)


@pytest.mark.parametrize("offset", [0.0, 1000.0, -1000.0])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_entropy_and_jacobian_of_saturated_rows_are_not_rounded_away(engine, offset):
    """Taken as differences of larger numbers, entropy goes negative and the Jacobian reads 0."""
    logits = torch.tensor([[14.0, 0.0, 0.0]], dtype=torch.float64)
    p = logits.softmax(-1)
    entropy = -(p * p.log()).sum()
    norm = torch.linalg.matrix_norm(torch.diag(p[0]) - p.mT @ p)
    result = regard.attend(
        torch.ones(1, 1),
        (logits.float() + offset).mT,
        torch.zeros(3, 1),
        "dot",
        want=("entropy", "jacobian"),
        engine=engine,
    )
    assert float(result.entropy) == pytest.approx(float(entropy), rel=1e-3)
    assert float(result.jacobian) == pytest.approx(float(norm), rel=1e-3)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_entropy_is_never_negative(engine, with_sink, offset):
    query, key = (4 * draw(4, 50, 8, dtype=torch.float32) for _ in range(2))
    options = {"sink": torch.tensor(offset)} if with_sink else {}
    bias = torch.full((1, 50), offset)
    found = regard.attend(query, key, key, want="entropy", bias=bias, engine=engine, **options)
    assert float(found.entropy.min()) >= 0


@pytest.mark.parametrize("size", [1e3, 1e6, 1e8])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_equal_keys_share_the_weight_however_large_their_logits(engine, size):
    """The logarithm of 2 vanishes beside 1e8 in fp32: weights must not come from logits - LSE."""
    query = torch.full((1, 1), size)
    value = torch.tensor([[1.0], [3.0]], requires_grad=True)
    want = ("weights", "max_weight", "jacobian", "entropy")
    result = regard.attend(query, torch.ones(2, 1), value, "dot", want=want, engine=engine)
    half = torch.full((1, 2), 0.5)
    torch.testing.assert_close(result.output, torch.full((1, 1), 2.0))
    torch.testing.assert_close(
        torch.autograd.grad(result.output, value)[0].mT, half, rtol=1e-4, atol=0
    )
    torch.testing.assert_close(result.weights, half, rtol=1e-4, atol=0)
    torch.testing.assert_close(result.max_weight, half[:, 0], rtol=1e-4, atol=0)
    torch.testing.assert_close(result.jacobian, half[:, 0], rtol=1e-4, atol=0)
    assert result.entropy.item() == pytest.approx(math.log(2))
