"""Keys that were lowered before the call: what a decoder does at every step."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.forms import InnerKey
from regard.stabilize import ClippedKeys, Normalized, SoftCapped, Tempered, UnitKeys

SCORES = {
    "dot": lambda: regard.Dot(),
    "scaled_dot": lambda: regard.ScaledDot(),
    "cosine": lambda: regard.Cosine(4),
    "gaussian": lambda: regard.Gaussian(heads=4),
    "bilinear": lambda: regard.Bilinear(8, 8, 4),
    "low_rank": lambda: regard.LowRank(8, 8, 3, 4),
    "additive": lambda: regard.Additive(8, 4),
    "gatv2": lambda: regard.GATv2(8, 4),
    "projected": lambda: regard.Projected(regard.Additive(6, 4), 8, 8),
    "tempered": lambda: Tempered(regard.Gaussian(heads=4), 0.5, heads=4),
    "normalized": lambda: Normalized(regard.ScaledDot(), 8),
    "unit keys": lambda: UnitKeys(regard.Dot()),
    "clipped keys": lambda: ClippedKeys(regard.Dot(), 2.0),
    "capped": lambda: SoftCapped(regard.Additive(8, 4), 3.0),
}


def tensors():
    return (torch.randn(2, 4, n, 8, dtype=torch.float64) for n in (3, 7, 7))


@pytest.mark.parametrize("engine", [None, "reference"])
@pytest.mark.parametrize("name", SCORES)
def test_lowered_keys_attend_as_the_keys_themselves(name, engine):
    score = SCORES[name]().double()
    query, key, value = tensors()
    mask = regard.Mask.lengths(keys=torch.tensor([7, 4]))
    wanted = regard.attention(query, key, value, score, mask=mask, engine=engine)
    got = regard.attention(query, score.key(key), value, score, mask=mask, engine=engine)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    raw = regard.score(query, score.key(key), score)
    torch.testing.assert_close(raw, regard.score(query, key, score), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SCORES)
def test_lowered_keys_grow_and_reorder(name):
    score = SCORES[name]().double()
    query, key, _ = tensors()
    whole = score.key(key)
    swapped = whole.reorder(torch.tensor([1, 0]))
    for x, z in zip(whole, swapped, strict=True):
        if x is not None:
            torch.testing.assert_close(z, x.flip(0))
    grown = score.extend(score.key(key[:, :, :5]), key[:, :, 5:])
    logits = [regard.score(query, side, score) for side in (whole, grown)]
    torch.testing.assert_close(*logits)


def test_nan_in_padding_stays_out():
    query, key, value = tensors()
    score = regard.Gaussian(heads=4).double()
    side = score.key(key)
    side.psi[1, :, 4:], side.beta[1, :, 4:], value[1, :, 4:] = torch.nan, torch.nan, torch.nan
    mask = regard.Mask.lengths(keys=torch.tensor([7, 4]))
    out = regard.attention(query, side, value, score, mask=mask)
    out.sum().backward()
    assert out.isfinite().all() and score.log_factor.grad.isfinite().all()


@pytest.mark.parametrize("wrap", ["plain", "tempered", "projected", "capped"])
def test_far_from_the_origin_lowered_keys_keep_their_digits(wrap):
    """The squares of the Gaussian kernel cancel: lowered keys carry the point that was subtracted."""
    torch.manual_seed(0)
    score = {
        "plain": lambda: regard.Gaussian(heads=2),
        "tempered": lambda: Tempered(regard.Gaussian(heads=2), 0.5, heads=2),
        "projected": lambda: regard.Projected(regard.Gaussian(heads=2), 8, 8, width=8, heads=2),
        "capped": lambda: SoftCapped(regard.Gaussian(heads=2), 5.0),
    }[wrap]()
    query, key, value = (torch.randn(2, 2, n, 8) for n in (3, 9, 9))
    query, key = query + 1000, key + 1000
    grown = score.extend(score.key(key[:, :, :4]), key[:, :, 4:])
    wanted = regard.attention(query, key, value, score)
    for side in (score.key(key), grown, grown.reorder(torch.tensor([0, 1]))):
        off = (regard.attention(query, side, value, score) - wanted).abs().max()
        assert float(off.detach()) < (1e-2 if wrap == "projected" else 1e-5)


def test_gradients_reach_the_lowered_keys():
    query, key, value = tensors()
    score = regard.Additive(8, 4).double()
    key.requires_grad_()
    (through,) = torch.autograd.grad(
        regard.attention(query, score.key(key), value, score).square().sum(), key
    )
    (direct,) = torch.autograd.grad(regard.attention(query, key, value, score).square().sum(), key)
    torch.testing.assert_close(through, direct)


def test_keys_lowered_by_the_other_form_are_refused():
    query, key, value = tensors()
    with pytest.raises(TypeError, match="lower the keys with the same score"):
        regard.attention(query, InnerKey(key), value, regard.Additive(8, 4).double())


@pytest.mark.parametrize("score", [regard.Gaussian(), regard.Cosine(), regard.Additive(8)])
def test_lowered_keys_without_a_head_dim(score):
    """The term of Gaussian's keys was read as (heads, length), past its end."""
    query, key, value = (torch.randn(4, n, 8, dtype=torch.float64) for n in (3, 7, 7))
    score = score.double()
    mask = torch.rand(4, 3, 7) > 0.3
    wanted = regard.attention(query, key, value, score, mask=mask)
    got = regard.attention(query, score.key(key), value, score, mask=mask)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    raw = regard.score(query, score.key(key), score)
    torch.testing.assert_close(raw, regard.score(query, key, score), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", [None, "cpu", "reference"])
@pytest.mark.parametrize(
    "shape", [(2, 4, 6), (2, 4, 1), (2, 3, 7), (3, 4, 7), (4, 7), (2, 1, 4, 7)]
)
def test_a_beta_that_does_not_fit_is_refused(shape, engine):
    query, key, value = tensors()
    side = InnerKey(key, torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(ValueError, match="beta of the lowered keys is a tensor"):
        regard.attention(query, side, value, regard.Dot(), engine=engine)


def test_keys_with_and_without_beta_are_not_put_together():
    """The term would be lost without a word."""
    key = torch.randn(2, 4, 7, 8)
    for first, later in (
        (InnerKey(key, key.sum(-1)), InnerKey(key)),
        (InnerKey(key), InnerKey(key, key.sum(-1))),
    ):
        with pytest.raises(ValueError, match="lower both with the same score"):
            first.append(later)


def test_parameters_of_another_score_are_refused_by_name():
    """Additive and GATv2 have the same parameters: shapes alone would let them pass."""
    saved = regard.Additive(8, 4).state_dict()
    with pytest.raises(RuntimeError, match=r"of score 'additive', but .* score 'gatv2'"):
        regard.GATv2(8, 4).load_state_dict(saved)
    regard.Additive(8, 4).load_state_dict(saved)


class Ops(TorchDispatchMode):
    """Notes which of our operators run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "regard":
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["additive", "capped", "gaussian", "low_rank"])
@pytest.mark.parametrize("options", [{}, {"bias": True}, {"dropout": 0.5}, {"sink": True}])
def test_a_step_with_weights_scores_its_keys_once(name, options):
    """The output is had from the weights, unless there is more to it; it is the same either way."""
    score, alone = SCORES[name]().double(), options == {} or "bias" in options
    query, key, value = tensors()
    query, value = query[:, :, :1], value[:, ::2]  # two heads share a value
    mask = torch.rand(2, 1, 1, 7) > 0.3
    mask[1] = False
    parts = {
        "bias": torch.randn(2, 1, 1, 7, dtype=torch.float64),
        "sink": torch.randn(4, dtype=torch.float64),
        "dropout": 0.5,
    }
    chosen = {what: parts[what] for what in options}
    with Ops() as ran:
        found = regard.attend(
            query, score.key(key), value, score, want="weights", mask=mask, engine="cpu", **chosen
        )
    assert ran.names == ["regard::cpu_scores"] if alone else "regard::cpu_attend" in ran.names
    if "dropout" not in options:
        wanted = regard.attention(query, key, value, score, mask=mask, engine="reference", **chosen)
        torch.testing.assert_close(found.output, wanted, rtol=1e-9, atol=1e-9)
        direct = found.weights @ value.repeat_interleave(2, 1)
        torch.testing.assert_close(direct, wanted, rtol=1e-9, atol=1e-9)
    assert (found.output[1] == 0).all() and (found.weights[1] == 0).all()
