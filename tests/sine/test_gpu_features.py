"""The feature kernels one by one against the plain lowering in fp64."""

import pytest
import torch

from regard import sine
from regard.engines.sine.bounds import LARGEST_LOGIT, LARGEST_SPREAD, ROUNDING
from regard.engines.sine.kernels import sine_cosine
from regard.engines.sine.launch import GRAD_TARGET, VALUE_TARGET, Features
from regard.engines.sine.operators import Inputs, Kept
from regard.engines.sine.widths import COST, lay_out
from regard.forms import Pairwise

pytestmark = pytest.mark.interpreted

triton = pytest.importorskip("triton")
tl = triton.language

# Name: (B, H, K, Q, L, E, D, rank). Odd lengths, grouped heads, hidden that is no power of two; beta
# in columns, and in the values where 2 * rank * hidden is a whole width.
SHAPES = {
    "columns": (2, 4, 2, 37, 19, 5, 6, 6),
    "padded": (1, 2, 2, 17, 45, 3, 7, 4),
    "trick": (1, 2, 1, 21, 40, 16, 33, 4),
    "widest": (1, 1, 1, 16, 33, 16, 64, 8),
}
RATE = 0.7


def inputs(shape, dtype=torch.float32, expanded=False):
    batch, heads, key_heads, queries, keys, hidden, value_dim, rank = SHAPES[shape]
    a = torch.randn(batch, heads, queries, hidden).to(dtype)
    b = torch.randn(batch, key_heads, keys, hidden).to(dtype)
    value = 300 * torch.randn(batch, key_heads, keys, value_dim).to(dtype)
    if expanded:  # one query head for all, keys and values laid out by place
        a = a[:, :1].expand_as(a)
        b, value = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (b, value))
    v = torch.randn(heads, hidden).to(dtype)
    numbers = torch.tensor([RATE, float("inf")], dtype=torch.float64)
    return Inputs(a, b, v, value, numbers, False, "uniform", rank)


def lowered(x, leaves=None):
    """The plain lowering in fp64, its features in the order of the kernels."""
    a, b, v = leaves or (y.double() for y in (x.a, x.b, x.v))
    form = Pairwise(a, b, RATE * v.unsqueeze(-2), "tanh")
    inner = sine.lower(form, sine.load(x.kind, x.rank))
    order = lambda y: y.unflatten(-1, (2, -1, x.rank)).mT.flatten(-3)  # noqa: E731
    groups = x.a.shape[1] // x.b.shape[1]
    return order(inner.phi), order(inner.psi).repeat_interleave(groups, 1), inner.beta


def lift(largest, target):
    """The power of two that brings `largest` below 2 ** target, and no further."""
    return 2.0 ** (target - torch.frexp(largest)[1].double())


def close(x, y, relative=2**-10):
    """Within a few roundings of fp16, relative to the largest."""
    assert float((x.double() - y).abs().max()) <= relative * float(y.abs().max())


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_features_are_those_of_the_lowering(shape, expanded):
    x = inputs(shape, expanded=expanded)
    features = Features(x)
    width, widths = 2 * x.rank * x.a.shape[-1], features.widths
    row, shift, peak, holds = features.measure()
    phi, psi, beta = lowered(x)
    assert bool(holds)
    q = features.query(row)
    k, wide = features.key(row, shift, peak)
    close(q[..., :width], phi)
    close(k[..., :width], psi)
    spare = slice(width + (0 if widths.trick else 2), None)
    assert not q[..., spare].any() and not k[..., spare].any()
    groups = x.a.shape[1] // x.b.shape[1]
    lifted = x.value.double() * lift(peak, VALUE_TARGET)[..., None, None]
    assert (lifted.abs().amax((-2, -1)) < 2**VALUE_TARGET).all()
    assert (lifted.abs().amax((-2, -1)) >= 2 ** (VALUE_TARGET - 1)).all()
    wanted = lifted.repeat_interleave(groups, 1)
    if widths.trick:
        middle = (beta.amax(-1) + beta.amin(-1)) / 2
        torch.testing.assert_close(shift, middle.float(), rtol=1e-4, atol=1e-5)
        factor = torch.exp(beta - shift.double().unsqueeze(-1)).unsqueeze(-1)
        wanted = torch.cat([wanted * factor, factor], -1)
    else:
        assert (q[..., width : width + 2] == 1).all()
        columns = k[..., width : width + 2].double().sum(-1)
        torch.testing.assert_close(columns, beta, rtol=0, atol=1e-5 * float(beta.abs().max()))
    close(wide[..., : wanted.shape[-1]], wanted)
    assert not wide[..., wanted.shape[-1] :].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_picked_as_the_lowering_picks_them(shape):
    x = inputs(shape)
    x = x._replace(a=x.a * torch.linspace(0.1, 3, x.a.shape[-1]))
    form = Pairwise(x.a, x.b, x.v.unsqueeze(-2), "tanh")
    series, reach = sine.load(x.kind, x.rank), sine.unit_reach(form)
    row = Features(x).measure()[0]
    assert row.shape == reach.shape and row.unique().numel() > 1
    assert torch.equal(row.long(), torch.searchsorted(series.reach, reach))


@pytest.mark.parametrize(
    "broken", ["reach", "nan in a", "inf in b", "nan in value", "size", "error"]
)
@pytest.mark.parametrize("shape", ["columns", "trick"])
def test_what_does_not_hold_is_seen(shape, broken):
    x = inputs(shape)
    assert bool(Features(x).measure()[-1])
    if broken == "reach":
        x.a[-1, -1, -1, -1] = -15.9
    elif broken == "nan in a":
        x.a[0, 0, 0, 0] = torch.nan
    elif broken == "inf in b":
        x.b[-1, -1, -1, -1] = torch.inf
    elif broken == "nan in value":
        x.value[0, 0, 3, 0] = torch.nan
    elif broken == "size":
        x.v.mul_(1.01 * LARGEST_LOGIT / RATE / x.v.abs().sum(-1).max())
    else:
        form = Pairwise(x.a, x.b, RATE * x.v.unsqueeze(-2), "tanh")
        series, reach = sine.load(x.kind, x.rank), sine.unit_reach(form)
        fit = torch.expm1(2 * sine.logit_error(form, series, reach))
        x.numbers[1] = float(fit) / 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.engines.sine.launch.LARGEST_SPREAD", 1e9)
        assert not bool(Features(x).measure()[-1])


def test_the_bound_on_the_device_is_the_one_that_is_stated():
    x = inputs("trick")
    form = Pairwise(x.a, x.b, RATE * x.v.unsqueeze(-2), "tanh")
    series, reach = sine.load(x.kind, x.rank), sine.unit_reach(form)
    row = torch.searchsorted(series.reach, reach)
    power = series.coefficients.square().sum(-1)[row]
    fit = ((RATE * x.v).abs() * series.error[row]).sum(-1)
    bound = torch.expm1(2 * fit) + ROUNDING * ((RATE * x.v).square() * power).sum(-1).sqrt()
    for factor, holds in ((1.001, True), (0.999, False)):
        x.numbers[1] = factor * float(bound.max())
        assert bool(Features(x).measure()[-1]) is holds


def test_a_beta_that_spreads_too_far_for_the_values_is_seen():
    x = inputs("trick")
    x.b[..., :4, :] = 4 * x.v[:1].sign()
    x.b[..., 4:8, :] = -4 * x.v[:1].sign()
    x.v.mul_(2)
    beta = lowered(x)[2]
    spread = float((beta.amax(-1) - beta.amin(-1)).max())
    assert float(RATE * x.v.abs().sum(-1).max()) < LARGEST_LOGIT
    assert bool(Features(x).measure()[-1]) is (spread <= LARGEST_SPREAD)
    assert spread > LARGEST_SPREAD


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_lowering(shape, expanded):
    """Random gradients of the features; the kernels and autograd through the plain lowering."""
    x = inputs(shape, expanded=expanded)
    features = Features(x)
    width, trick, value_dim = 2 * x.rank * x.a.shape[-1], features.widths.trick, x.value.shape[-1]
    row, shift, peak, holds = features.measure()
    kept = Kept(shift, shift, row, shift, peak, holds)
    k, wide = features.key(row, shift, peak)
    grad_q, grad_k, grad_wide = (
        torch.randn(y.shape).half() for y in (features.query(row), k, wide)
    )
    grad_k[..., width + 1 :] = 0
    # grad_out of sizes that differ by head: the lifts are undone for each.
    size = torch.rand(x.a.shape[:2]) * 10.0 ** torch.randint(-6, 3, x.a.shape[:2])
    found_a, by_queries = features.query_gradient(kept, size, grad_q)
    found_b, found_value, by_keys = features.key_gradient(kept, size, wide, grad_k, grad_wide)

    down = 1 / lift(size, GRAD_TARGET)[..., None, None]
    groups = x.a.shape[1] // x.b.shape[1]
    up = lift(peak, VALUE_TARGET).repeat_interleave(groups, 1)[..., None, None]
    leaves = [y.double().requires_grad_() for y in (x.a, x.b, x.v, x.value)]
    phi, psi, beta = lowered(x, leaves[:3])
    value = leaves[3].repeat_interleave(groups, 1) * up
    if trick:
        factor = torch.exp(beta - shift.double().unsqueeze(-1)).unsqueeze(-1)
        value = torch.cat([value * factor, factor], -1)
    total = (down / up * phi * grad_q[..., :width].double()).sum()
    total = total + (down / up * psi * grad_k[..., :width].double()).sum()
    total = total + (down / up * value * grad_wide[..., : value_dim + trick].double()).sum()
    if not trick:
        total = total + (down / up).squeeze(-1).mul(beta * grad_k[..., width].double()).sum()
    wanted = torch.autograd.grad(total, leaves)
    for got, y in zip((found_a, found_b, by_queries + by_keys, found_value), wanted, strict=True):
        scale = y.abs().max()
        assert float((got.double() - y).abs().max()) <= 2e-3 * float(scale)


@triton.jit
def both(x, sines, cosines, N: tl.constexpr):
    """`sine_cosine` of N numbers."""
    place = tl.arange(0, N)
    sine, cosine = sine_cosine(tl.load(x + place))
    tl.store(sines + place, sine)
    tl.store(cosines + place, cosine)


@pytest.mark.parametrize("largest", [0.5, 10.0, 60.0])
def test_sines_and_cosines(largest):
    x = torch.linspace(-largest, largest, 4096)
    sines, cosines = torch.empty_like(x), torch.empty_like(x)
    both[(1,)](x, sines, cosines, N=4096)
    for got, wanted in ((sines, x.double().sin()), (cosines, x.double().cos())):
        assert float((got - wanted).abs().max()) < 2e-6


def test_widths():
    """The cheapest width that was measured; beta into the values where no column is left."""
    assert lay_out(126, 64) == (128, 64, False)
    assert lay_out(128, 64) == (128, 80, True)
    assert lay_out(192, 64) == (192, 128, True)
    assert lay_out(224, 64) == (256, 128, False)
    assert lay_out(256, 64) == (256, 128, True)
    assert lay_out(256, 128) is None and lay_out(258, 64) is None and lay_out(64, 129) is None
    for width in range(2, 257, 2):
        for value_dim in (1, 64, 127):
            found = lay_out(width, value_dim)
            assert found is not None and found[:2] in COST
            assert found.features >= width + (0 if found.trick else 2)
            assert found.values >= value_dim + found.trick
