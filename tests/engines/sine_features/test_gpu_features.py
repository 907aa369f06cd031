"""The feature kernels one by one against the plain lowering in fp64."""

import pytest
import torch

from regard import sine
from regard.engines.sine_features.bounds import FEATURE_ROUNDING, LARGEST_LOGIT
from regard.engines.sine_features.feature_kernels import sine_cosine
from regard.engines.sine_features.launch import (
    GRAD_TARGET,
    VALUE_TARGET,
    Features,
    Scratch,
    feature_call,
    feature_signature,
)
from regard.engines.sine_features.operators import SineInputs
from regard.engines.sine_features.widths import COST, lay_out
from regard.forms import Pairwise
from regard.sine.lowering import lending_rows, row_for
from regard.sine.series import load_lending

pytestmark = pytest.mark.interpreted

triton = pytest.importorskip("triton")
tl = triton.language

# Name: (B, H, K, Q, L, E, D, rank). Odd lengths, grouped heads, hidden that is no power of two; beta
# in columns of its own, and in those of one unit.
SHAPES = {
    "columns": (2, 4, 2, 37, 19, 5, 6, 6),
    "padded": (1, 2, 2, 17, 45, 3, 7, 4),
    "lent": (1, 2, 1, 21, 40, 16, 33, 4),
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
    return SineInputs(a, b, v, value, numbers, False, "uniform", rank)


def measured(x):
    """The launches of a call and what they note: rows (B, K, E), peaks (B, K) and soundness (B, H)."""
    features = Features(feature_signature(x))
    notes = features.measure(feature_call(x))[1]
    lead = x.b.shape[:2]
    row, peak = notes.row.view(*lead, x.b.shape[-1]), notes.peak.view(lead)
    return features, notes, row, peak, notes.sound.view(x.a.shape[:2])


def lowered(x, leaves=None):
    """The plain lowering in fp64, its features in the order of the kernels; and who lends, (B, K, E)."""
    a, b, v = leaves or (y.double() for y in (x.a, x.b, x.v))
    form = Pairwise(a, b, RATE * v.unsqueeze(-2), "tanh")
    reach, lent = sine.unit_reach(form), x.widths.lent
    series = load_lending(x.kind, x.rank) if lent else sine.load(x.kind, x.rank)
    row = lending_rows(form, series, reach) if lent else row_for(series, reach)
    inner = sine.sine_features(
        form, series.linear[row], series.frequencies[row], series.coefficients[row]
    )
    order = lambda y: y.unflatten(-1, (2, -1, x.rank)).mT.flatten(-3)  # noqa: E731
    groups = x.a.shape[1] // x.b.shape[1]
    lends = (row >= series.reach.shape[0]).repeat_interleave(groups, 1)
    phi, psi = order(inner.phi), order(inner.psi).repeat_interleave(groups, 1)
    return phi, psi, inner.beta, lends


def lent_columns(x, lends):
    """Which columns (B, H, W) a unit lends, of sines and of cosines."""
    none = torch.zeros_like(lends)
    last = torch.cat([none] * (x.rank - 1) + [lends], -1)
    off = torch.zeros_like(last)
    return torch.cat([last, off], -1), torch.cat([off, last], -1)


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
    features, notes, _, peak, sound = measured(x)
    width, widths = 2 * x.rank * x.a.shape[-1], features.widths
    phi, psi, beta, lends = lowered(x)
    assert bool(sound.all())
    q = features.query(feature_call(x), notes)
    k, wide = features.key(feature_call(x), notes)
    first, second = (y.unsqueeze(-2) for y in lent_columns(x, lends))
    high = beta.half().double().unsqueeze(-1)
    psi = torch.where(first, high, torch.where(second, beta.unsqueeze(-1) - high, psi))
    close(q[..., :width], torch.where(first | second, 1.0, phi))
    close(k[..., :width], psi)
    spare = slice(width + (0 if widths.lent else 2), None)
    assert not q[..., spare].any() and not k[..., spare].any()
    groups = x.a.shape[1] // x.b.shape[1]
    lifted = x.value.double() * lift(peak, VALUE_TARGET)[..., None, None]
    assert (lifted.abs().amax((-2, -1)) < 2**VALUE_TARGET).all()
    assert (lifted.abs().amax((-2, -1)) >= 2 ** (VALUE_TARGET - 1)).all()
    wanted = lifted.repeat_interleave(groups, 1)
    if not widths.lent:
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
    row = measured(x)[2]
    assert row.shape == reach.shape and row.unique().numel() > 1
    wanted = torch.searchsorted(series.reach, reach)
    if x.widths.lent:
        wanted = lending_rows(form, series, reach)
        assert ((wanted >= series.reach.shape[0]).sum(-1) == 1).all()
    assert torch.equal(row.long(), wanted)


@pytest.mark.parametrize(
    "broken", ["reach", "nan in a", "inf in b", "nan in value", "size", "error"]
)
@pytest.mark.parametrize("shape", ["columns", "lent", "widest"])
def test_what_does_not_hold_is_seen(shape, broken):
    x = inputs(shape)
    assert bool(measured(x)[-1].all())
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
    assert not bool(measured(x)[-1].all())


def test_the_bound_on_the_device_is_the_one_that_is_stated():
    x = inputs("lent")
    form = Pairwise(x.a, x.b, RATE * x.v.unsqueeze(-2), "tanh")
    series, reach = load_lending(x.kind, x.rank), sine.unit_reach(form)
    row = lending_rows(form, series, reach)
    power = series.coefficients.square().sum(-1)[row]
    fit = ((RATE * x.v).abs() * series.error[row]).sum(-1)
    bound = torch.expm1(2 * fit) + FEATURE_ROUNDING * ((RATE * x.v).square() * power).sum(-1).sqrt()
    for factor, holds in ((1.001, True), (0.999, False)):
        x.numbers[1] = factor * float(bound.max())
        assert bool(measured(x)[-1].all()) is holds


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_the_lowering(shape, expanded):
    """Random gradients of the features; the kernels and autograd through the plain lowering."""
    x = inputs(shape, expanded=expanded)
    features, notes, _, peak, _ = measured(x)
    width, value_dim = 2 * x.rank * x.a.shape[-1], x.value.shape[-1]
    k, wide = features.key(feature_call(x), notes)
    grad_q, grad_k, grad_wide = (
        torch.randn(y.shape).half() for y in (features.query(feature_call(x), notes), k, wide)
    )
    grad_k[..., width + 1 :] = 0
    # grad_out of sizes that differ by head: the lifts are undone for each.
    size = torch.rand(x.a.shape[:2]) * 10.0 ** torch.randint(-6, 3, x.a.shape[:2])
    scratch = Scratch(*features.scratch.cut(features.scratch.new(x.a.device)))
    scratch.peak.view(size.shape).copy_(size)
    by_features = (grad_q, grad_k, grad_wide)
    found = features.input_gradients(feature_call(x), notes, scratch, by_features)

    down = 1 / lift(size, GRAD_TARGET)[..., None, None]
    groups = x.a.shape[1] // x.b.shape[1]
    up = lift(peak, VALUE_TARGET).repeat_interleave(groups, 1)[..., None, None]
    leaves = [y.double().requires_grad_() for y in (x.a, x.b, x.v, x.value)]
    phi, psi, beta, lends = lowered(x, leaves[:3])
    first, second = (y.unsqueeze(-2) for y in lent_columns(x, lends))
    # Of what is lent, the first column carries all of the gradient of beta.
    psi = torch.where(first, beta.unsqueeze(-1), torch.where(second, 0.0, psi))
    phi = torch.where(first | second, 1.0, phi)
    value = leaves[3].repeat_interleave(groups, 1) * up
    total = (down / up * phi * grad_q[..., :width].double()).sum()
    total = total + (down / up * psi * grad_k[..., :width].double()).sum()
    total = total + (down / up * value * grad_wide[..., :value_dim].double()).sum()
    if not features.widths.lent:
        total = total + (down / up).squeeze(-1).mul(beta * grad_k[..., width].double()).sum()
    wanted = torch.autograd.grad(total, leaves)
    for got, y in zip(found, wanted, strict=True):
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
    """The cheapest width that was measured; a unit lends columns where none is left for beta."""
    assert lay_out(126, 64) == (128, 64, False)
    assert lay_out(128, 64) == (128, 64, True)
    assert lay_out(192, 64) == (192, 64, True)
    assert lay_out(224, 64) == (256, 128, False)
    assert lay_out(256, 64) == (256, 128, True)
    assert lay_out(258, 64) is None and lay_out(64, 129) is None
    assert lay_out(128, 64, lend=False) == (192, 64, False)
    assert lay_out(256, 64, lend=False) is None
    for width in range(2, 257, 2):
        for value_dim in (1, 64, 128):
            found = lay_out(width, value_dim)
            assert found is not None and found[:2] in COST
            assert found.features >= width + (0 if found.lent else 2)
            assert found.values >= value_dim
