"""The sine engine against exact attention in fp64: the stated error holds."""

import math

import pytest
import torch

import regard
from regard import Additive, EngineRefused, Mask, Projected, engines, sine
from regard.forms import Pairwise

MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "lengths": Mask.lengths(keys=torch.tensor([7, 30])),
    "both": Mask.causal("top_left") & Mask.lengths(keys=torch.tensor([7, 30])),
}
OPTIONS = {
    "plain": {},
    "temperature": {"temperature": 0.5},
    "softcap": {"softcap": 2.0},
    "sink": {"sink": torch.tensor([0.5, -1.0, 0.0, 2.0])},
    "bias": {"bias": torch.linspace(-2, 2, 20 * 30).view(1, 1, 20, 30)},
}


def tensors(spread=1.0, key_heads=4, dtype=torch.float32, lead=(2,)):
    q = spread * torch.randn(*lead, 4, 20, 8, dtype=dtype)
    k = spread * torch.randn(*lead, key_heads, 30, 8, dtype=dtype)
    return q, k, torch.randn(*lead, key_heads, 30, 6, dtype=dtype)


def exact(score, q, k, v, **options):
    wide = {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in options.items()
    }
    double = Additive(8, 4)
    double.load_state_dict(score.state_dict())
    return regard.attention(
        q.double(), k.double(), v.double(), double.double(), engine="reference", **wide
    )


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_the_stated_error_holds(mask, option, key_heads):
    q, k, v = tensors(key_heads=key_heads)
    score, options = Additive(8, 4), {"mask": MASKS[mask], **OPTIONS[option]}
    plan = regard.explain(q, k, v, score, engine="sine", **options)
    out = regard.attention(q, k, v, score, engine="sine", **options)
    wanted = exact(score, q, k, v, **options)
    off = float((out - wanted).detach().abs().max() / v.abs().max())
    assert 0 < off <= plan.error_bound < 0.1


@pytest.mark.parametrize("error", [1e-1, 1e-2, 1e-3])
def test_an_error_that_is_allowed_is_kept(error):
    q, k, v = tensors()
    score = Additive(8, 4)
    plan = regard.explain(q, k, v, score, error=error)
    assert plan.engine == "sine"
    out = regard.attention(q, k, v, score, error=error)
    assert float((out - exact(score, q, k, v)).detach().abs().max()) <= error * float(v.abs().max())


@pytest.mark.parametrize("size", [1.0, 8.0, 32.0])
@pytest.mark.parametrize("spread", [0.5, 5.0, 100.0])
@pytest.mark.parametrize("sign", ["same", "opposite", "mixed"])
def test_adversarial_inputs_never_break_the_bound(size, spread, sign):
    """|a| up to 100 of both signs, |v|_1 up to 32: within the bound, or refused."""
    q, k, v = tensors()
    q, k = (x / x.abs().amax() * spread for x in (q, k))
    if sign != "mixed":
        q, k = q.abs(), k.abs() if sign == "same" else -k.abs()
    score = Additive(8, 4)
    with torch.no_grad():
        score.v.mul_(size / score.v.abs().sum(-1, keepdim=True))
    try:
        out = regard.attention(q, k, v, score, engine="sine")
    except EngineRefused as refusal:
        assert 2 * spread > 16 and "may reach" in refusal.reasons[0]
        return
    bound = regard.explain(q, k, v, score, engine="sine").error_bound
    assert float((out - exact(score, q, k, v)).detach().abs().max()) <= bound * float(v.abs().max())


@pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-9])
def test_gradients_are_those_of_the_series_however_small(scale):
    q, k, v = (x.requires_grad_() for x in tensors())
    score = Additive(8, 4)
    leaves = [q, k, v, score.v]
    grad = scale * torch.randn(2, 4, 20, 6)
    ours = torch.autograd.grad(regard.attention(q, k, v, score, engine="sine"), leaves, grad)
    wanted = torch.autograd.grad(regard.attention(q, k, v, score, engine="cpu"), leaves, grad)
    for x, y in zip(ours, wanted, strict=True):
        assert float((x - y).norm()) <= 0.02 * float(y.norm())


def test_logits_and_slopes_keep_to_their_bounds():
    for key_heads in (4, 2, 1):
        a, b, _ = tensors(key_heads=key_heads, dtype=torch.float64, lead=())
        a.requires_grad_()
        v = torch.randn(4, 1, 8, dtype=torch.float64)
        form = Pairwise(a, b, v, "tanh")
        series, reach = sine.load("matched", 6), sine.unit_reach(form)
        inner = sine.lower(form, series)
        psi = inner.psi.repeat_interleave(4 // key_heads, -3)
        logits = inner.phi @ psi.mT + inner.alpha.unsqueeze(-1) + inner.beta.unsqueeze(-2)
        b = b.repeat_interleave(4 // key_heads, -3)
        wanted = (v.unsqueeze(-2) * torch.tanh(a.unsqueeze(-2) + b.unsqueeze(-3))).sum(-1)
        off = (logits - wanted).detach().abs().max()
        assert float(off) <= float(sine.logit_error(form, series, reach))
        slopes = [
            torch.autograd.grad(x[..., 0].sum(), a, retain_graph=True)[0] for x in (logits, wanted)
        ]
        off = (slopes[0] - slopes[1]).abs().sum(-1).max()
        assert float(off) <= float(sine.slope_error(form, series, reach))


@pytest.mark.parametrize("engine", ["sine", "cpu", "reference", None])
def test_a_model_with_the_series_as_its_activation_is_exact_on_every_engine(engine):
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float64, spread=4.0, key_heads=2))
    score = Additive(8, 4, activation="sine").double()
    call = lambda name: regard.attend(  # noqa: E731
        q, k, v, score, mask=Mask.causal(), engine=name, want={"lse", "entropy"}
    )
    ours, wanted = call(engine), call("reference")
    for x, y in zip(ours[:3], wanted[:3], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    leaves = [q, k, v, score.v]
    got = torch.autograd.grad(ours.output.square().sum(), leaves)
    for x, y in zip(got, torch.autograd.grad(wanted.output.square().sum(), leaves), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-9)


def test_it_compiles_and_needs_no_permission(monkeypatch):
    monkeypatch.setattr(engines.plain, "FEW_TANH_ON_CPU", 0)  # else small calls are not for it
    q, k, v = tensors()
    score = Projected(Additive(8, 4, activation="sine"), 8, 8)
    assert regard.explain(q, k, v, score).engine == "sine"
    compiled = torch.compile(
        lambda q, k, v: regard.attention(q, k, v, score), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(q, k, v), regard.attention(q, k, v, score))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Features are built and run in fp32; the output is rounded once."""
    q, k, v = (x.to(dtype) for x in tensors())
    score = Additive(8, 4).to(dtype)
    out = regard.attention(q, k, v, score, engine="sine")
    off = (out - exact(score, q, k, v)).detach().abs().max() / v.abs().max()
    assert out.dtype == dtype
    assert float(off) <= regard.explain(q, k, v, score, engine="sine").error_bound


def test_what_it_refuses():
    q, k, v = tensors()
    score = Additive(8, 4)
    assert regard.explain(q, k, v, score).engine == "plain"
    refused = regard.explain(q, k, v, score).refused["sine"]
    assert "allow one by error=" in refused[0]
    for options, reason in [
        ({"temperature": 0.0}, "hard look-up"),
        ({"error": 1e-7}, "more than 1.0e-07"),
    ]:
        with pytest.raises(EngineRefused, match=reason):
            regard.attention(q, k, v, score, engine="sine", **options)
    with pytest.raises(EngineRefused, match="series is one of tanh"):
        regard.attention(q, k, v, regard.GATv2(8, 4), engine="sine")
    with pytest.raises(EngineRefused, match="may reach nan"):
        regard.attention(q * math.nan, k, v, score, engine="sine")
    with pytest.raises(ValueError, match=r"reaches: 1, 1\.5"):
        Additive(8, 4, activation="sine", reach=9.1)
    with pytest.raises(ValueError, match="leave it out for activation='tanh'"):
        Additive(8, 4, reach=9.0)
    with pytest.raises(ValueError, match="'tanh' or 'sine'"):
        Additive(8, 4, activation="relu")


@pytest.mark.parametrize("kind", sine.KINDS)
def test_the_score_names_the_series(kind):
    q, k, v = tensors(spread=0.5)
    score = Additive(8, 4, series=kind)
    plan = regard.explain(q, k, v, score, engine="sine")
    assert f"{kind!r} of rank" in plan.notes[0]
    out = regard.attention(q, k, v, score, engine="sine")
    off = float((out - exact(score, q, k, v)).detach().abs().max() / v.abs().max())
    assert 0 < off <= plan.error_bound
    # Where an error is to be kept, it decides, and not the score.
    assert "'uniform' of rank" in regard.explain(q, k, v, score, error=1e-2).notes[0]


def test_the_series_is_an_argument_like_others():
    assert Additive(8, 4, series="fast").arguments()["series"] == "fast"
    assert "series" not in Additive(8, 4).arguments()
    assert "series='fast'" in repr(Additive(8, 4, series="fast"))
    assert Additive(**Additive(8, 4, series="normal").arguments()).series == "normal"
    with pytest.raises(ValueError, match=r"series must be 'fast' or 'matched'.*got 'quick'"):
        Additive(8, 4, series="quick")


def test_what_the_engine_behind_does_not_promise_is_said():
    q, k, v = (torch.randn(1, 2, 6, 8) for _ in range(3))
    for score, options in (
        (regard.Additive(8, 2, activation="sine"), {}),
        (regard.Additive(8, 2), {"error": 0.1}),
    ):
        notes = regard.explain(q, k, v, score, mask=regard.Mask.causal(), **options).notes
        assert any("only some queries see" in note for note in notes)
        assert not any("second derivative" in note for note in notes)
        q.requires_grad_()
        out = regard.attention(q, k, v, score, mask=regard.Mask.causal(), engine="sine")
        (slope,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        (curve,) = torch.autograd.grad(slope.square().sum(), q)
        assert curve.isfinite().all() and curve.any()


def test_a_series_that_is_named_runs_or_raises():
    q = torch.randn(1, 2, 40, 8)
    score, plain = Additive(8, 2, series="fast"), Additive(8, 2)
    plain.load_state_dict(score.state_dict())
    plan = regard.explain(q, q, q, score)
    assert plan.engine == "sine" and "'fast' of rank 4" in plan.notes[0]
    assert regard.explain(q, q, q, plain).engine != "sine"
    near, exact = regard.attention(q, q, q, score), regard.attention(q, q, q, plain)
    assert 1e-5 < float((near - exact).detach().abs().max()) < 0.1
    # An engine that is named too has the last word.
    torch.testing.assert_close(regard.attention(q, q, q, score, engine="reference"), exact)
    refused = regard.explain(100 * q, q, q, score)
    assert refused.engine is None and "may reach" in refused.refused["sine"][0]
    with pytest.raises(EngineRefused, match="the score asks for this engine by series="):
        regard.attention(100 * q, q, q, score)
