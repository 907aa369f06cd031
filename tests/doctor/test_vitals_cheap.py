"""The cheap level beside plain formulas in fp64."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.doctor.seen import Seen
from regard.doctor.vitals import Level, measure
from regard.doctor.vitals.gradient_rms import rms

from .vitals_tools import CALLS, HEADS, make, randn, vital


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "name", ["plain", "fp32", "bf16", "fp16", "grouped", "one key head", "causal", "gaussian"]
)
def test_moments_and_norms(name):
    """Of all pairs: masks are for the sampled level."""
    seen = CALLS[name]().seen
    row = measure(seen, Level.CHEAP)
    query, key = seen.query.double(), seen.key.double()
    key = key.repeat_interleave(HEADS // key.shape[1], 1)
    logits = seen.scale * (query @ key.mT)
    if seen.shift is not None:
        logits = logits + seen.shift.unsqueeze(-1)
    close(vital(row, "logit_mean"), logits.mean((0, 2, 3)))
    close(vital(row, "logit_var"), logits.var(-1, correction=0).mean((0, 2)))
    assert (vital(row, "logit_bound") >= logits.abs().amax((0, 2, 3))).all()
    for side, x in (("query", query), ("key", key)):
        norms = x.norm(dim=-1)
        close(vital(row, f"{side}_norm"), norms.square().mean((0, 2)).sqrt())
        ordered = norms.sort(-1).values
        others = ordered[..., :-1].square().mean(-1).sqrt()
        close(vital(row, f"{side}_spread"), (ordered[..., -1] / others).amax(0))


@pytest.mark.parametrize("name", ["plain", "grouped", "bf16"])
def test_directions_of_the_map(name):
    seen = CALLS[name]().seen
    query, key = seen.query.double(), seen.key.double()
    key = (key - key.mean(-2, keepdim=True)).repeat_interleave(HEADS // key.shape[1], 1)
    gram, covariance = (query.mT @ query).sum(0), (key.mT @ key).sum(0)
    energy = torch.linalg.eigvals(gram @ covariance).real
    share = energy / energy.sum(-1, keepdim=True)
    row = measure(seen, Level.CHEAP)
    close(vital(row, "map_rank"), 1 / share.square().sum(-1))
    found, largest = vital(row, "map_top"), share.amax(-1)
    assert (found <= largest * (1 + 1e-5)).all() and (found > 0.93 * largest).all()


def test_a_map_of_one_direction():
    """Every query meets every key in one direction, but for a little noise."""
    line = randn(1, 2, 1, 16)
    query = randn(2, 2, 40, 1, seed=1) * line + 1e-3 * randn(2, 2, 40, 16, seed=2)
    key = randn(2, 2, 30, 1, seed=3) * line + 1e-3 * randn(2, 2, 30, 16, seed=4)
    row = measure(Seen(query.float(), key.float()), Level.CHEAP)
    close(vital(row, "map_rank"), torch.ones(2), 1e-3)
    close(vital(row, "map_top"), torch.ones(2), 1e-3)


def test_variance_of_keys_far_from_zero():
    """Their mean is a hundred times their spread; in fp32 a part in a hundred is left."""
    query, key = randn(1, 2, 64, 16), randn(1, 2, 512, 16, seed=1) + 100
    expected = (query @ key.mT).var(-1, correction=0).mean((0, 2))
    close(
        vital(measure(Seen(query.float(), key.float()), Level.CHEAP), "logit_var"), expected, 1e-2
    )


def test_many_queries_are_estimated_within_the_stated_error():
    """Every fifth query here, for moments; with 4 standard errors the bound is 3.5%."""
    query, key = randn(1, 4, 4096, 64), randn(1, 4, 256, 64, seed=1)
    expected = (query @ key.mT).var(-1, correction=0).mean((0, 2))
    found = vital(measure(Seen(query.float(), key.float()), Level.CHEAP), "logit_var")
    assert ((found / expected - 1).abs() < 0.035).all()
    each = (query @ key.mT).var(-1, correction=0)
    error = each.std(-1) / each.mean(-1) / 820**0.5
    assert (error < 0.01).all()


def test_one_long_key_shows_in_the_spread():
    key = torch.nn.functional.normalize(randn(1, 2, 50, 8), dim=-1)
    key[0, 1, 7] *= 30
    row = measure(Seen(randn(1, 2, 9, 8, seed=1), key), Level.CHEAP)
    close(vital(row, "key_spread"), torch.tensor([1.0, 30.0]), 1e-4)


def test_bounds():
    """A soft cap bounds; so does v for tanh; for LeakyReLU it grows with the inputs."""
    row = measure(make(softcap=2.0).seen, Level.CHEAP)
    assert (vital(row, "logit_bound") == 2).all()
    for name in ("additive", "gatv2", "gaussian", "cosine"):
        call = CALLS[name]()
        bias = 0 if call.seen.bias is None else call.seen.bias.abs().max()
        logits = call.attended.weights.log() + call.attended.lse.unsqueeze(-1)
        largest = logits[call.visible].abs().max() - bias
        assert vital(measure(call.seen, Level.CHEAP), "logit_bound").max() >= largest


def test_pairwise_norms():
    form = make(lambda: regard.Additive(8, HEADS), key_heads=2).seen.pairwise
    row = measure(Seen(pairwise=form), Level.CHEAP)
    close(vital(row, "query_norm"), form.a.norm(dim=-1).square().mean((0, 2)).sqrt())
    norms = form.b.norm(dim=-1).square().mean((0, 2)).sqrt().repeat_interleave(2)
    close(vital(row, "key_norm"), norms)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_broken_entries_are_counted(broken, dtype):
    query, key = randn(2, 2, 9, 4).to(dtype), randn(2, 1, 7, 4, seed=1).to(dtype)
    query[0, 1, 3, 2] = query[1, 1, 4, 0] = query[1, 1, 4, 1] = broken
    key[0, 0, 6, 1] = broken
    row = measure(Seen(query, key), Level.CHEAP)
    kind, other = ("nan", "inf") if broken != broken else ("inf", "nan")
    assert vital(row, f"{kind}_queries").tolist() == [0, 2]
    assert vital(row, f"{kind}_keys").tolist() == [1, 1]
    assert vital(row, f"{other}_queries").tolist() == vital(row, f"{other}_keys").tolist() == [0, 0]


def test_gradients():
    query, key = randn(2, 4, 9, 8).bfloat16(), randn(2, 2, 7, 8, seed=1)
    close(rms(query, 4).double(), query.double().square().mean((0, 2, 3)).sqrt())
    close(rms(key, 4).double(), key.square().mean((0, 2, 3)).sqrt().repeat_interleave(2))


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 2, 2)])
def test_gradients_that_do_not_fit(shape):
    with pytest.raises(ValueError, match="gradient"):
        rms(torch.ones(shape), 4)
