"""FlexAttention without a compiler: measured as SDPA with the same logits, and nothing changes."""

from __future__ import annotations

import pytest
import torch

from regard.doctor import probe
from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.seen import Seen, SeenFlex
from regard.doctor.vitals import INDEX, VITALS, Level, measure
from regard.doctor.watch import watch

from .flexing import (
    BATCH,
    BIAS,
    DIM,
    FLEX,
    HEADS,
    LENGTH,
    VISIBLE,
    assert_same_gradients,
    like_sdpa,
    mask_mod,
    same_by_sdpa,
    score_mod,
    sick,
    stack,
    through,
    tokens,
    values,
)
from .watching import assert_same_bits, pass_through

pytestmark = FLEX


# The functions themselves, without a model.

CALLS = {
    "bias": (lambda s, b, h, q, k: score_mod(s, b, h, q, k), {"bias": BIAS}),
    "soft cap": (lambda s, b, h, q, k: 2 * torch.tanh(s / 2), {"softcap": 2.0}),
    "hides by score": (lambda s, b, h, q, k: torch.where(q >= k, s, -torch.inf), {"causal": True}),
    "nothing": (None, {}),
}


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "open"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("level", ["sampled", "exact"])
def test_vitals_are_those_of_the_same_logits(name, masked, level, monkeypatch):
    monkeypatch.setattr("regard.doctor.vitals.parts.CACHED", 1)  # in parts of two heads
    score, known = CALLS[name]
    made = torch.Generator().manual_seed(0)
    query = 2 * torch.randn(BATCH, HEADS, LENGTH, DIM, generator=made)
    key, value = torch.randn(2, BATCH, 2, LENGTH, DIM, generator=made)
    visible = VISIBLE if masked else None
    rows = torch.arange(1, LENGTH, 3)
    plain = measure(Seen(query, key, value, 0.4, visible=visible, **known), level, rows)
    flex = SeenFlex(score is not None, score, mask_mod if masked else None)
    found = measure(Seen(query, key, value, 0.4, flex=flex), level, rows)
    changed = {"c50", "logit_bound", "first_share", "own_share", "previous_share", "next_share"}
    if score is not None:  # a function of the user hides what was applied
        changed.add("applied_scale")
        assert found[:, INDEX["applied_scale"]].isnan().all()
    for vital in VITALS:
        if vital.name in changed:
            continue
        same = found[:, INDEX[vital.name]], plain[:, INDEX[vital.name]]
        torch.testing.assert_close(*same, rtol=1e-4, atol=1e-5, equal_nan=True, msg=vital.name)
    near = 1e-3 if name != "soft cap" else 0.05  # a line between points of a grid is none of tanh
    both = found[:, INDEX["c50"]], plain[:, INDEX["c50"]]
    torch.testing.assert_close(*both, rtol=near, atol=0, equal_nan=True)


def test_some_sequences_of_a_large_batch(monkeypatch):
    made = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 6, HEADS, LENGTH, DIM, generator=made)
    hidden = torch.randn(6, LENGTH, generator=made) < 1

    def visible(b, h, q, k):
        return hidden[b, k]

    monkeypatch.setattr("regard.doctor.vitals.parts.MOST_LOGITS", 1)  # two sequences at a time
    for turn in range(3):
        known = Seen(query, key, value, 0.4, visible=hidden[:, None, None])
        rule = Seen(query, key, value, 0.4, flex=SeenFlex(False, None, visible))
        rows = torch.arange(LENGTH)
        found, plain = (measure(x, Level.SAMPLED, rows, turn) for x in (rule, known))
        torch.testing.assert_close(found, plain, equal_nan=True)


# Called without a compiler, as far as that goes: torch makes a graph of it anyway.


@pytest.mark.parametrize("level", ["sampled", pytest.param("exact", marks=pytest.mark.slow)])
def test_uncompiled(level):
    model, x = stack(through()), tokens()
    plain = like_sdpa(level, rows=7)
    with torch.no_grad():
        before = model(x)
        with watch(model, level, rows=7) as d:
            assert torch.equal(model(x), before)
        examined = d.examine(x)
    assert d.sites == ["layers.0", "layers.1"] and d.notes == []
    assert [site.route for site in d.chart.order] == ["flex", "flex"]
    meant = values(plain).clone()
    meant[..., INDEX["applied_scale"]] = torch.nan  # a function of the user hides it
    torch.testing.assert_close(values(d), meant, rtol=1e-3, atol=1e-4, equal_nan=True)
    exact = plain.examine(x)
    for site in d.sites:
        meant = exact[site].clone()
        meant[..., INDEX["applied_scale"]] = torch.nan
        torch.testing.assert_close(examined[site], meant, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_gradients_uncompiled(with_backward):
    model, known, x = stack(through()), stack(same_by_sdpa), tokens()
    with torch.compiler.set_stance("force_eager"):
        before = pass_through(model, x)
        with watch(model) as d, watch(known) as plain:
            assert_same_bits(pass_through(model, x), before)
            pass_through(known, x)
    assert_same_gradients(d, plain)


def test_what_a_score_mod_does_to_the_findings():
    """Products of any size behind a soft cap are no alarm; without a score_mod they are."""

    def capped(score, batch, head, query, key):
        return 5 * torch.tanh(score / 500)

    def found(score, level):
        model = sick(score)
        with watch(model, level) as d, torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(tokens())
        assert d.chart.order[0].facts.rescored == (score is capped)
        return [x.disease for x in d.findings()]

    for score in (None, lambda score, *places: score):
        assert found(score, "cheap") == found(score, "sampled") == ["large-logits"]
    assert found(capped, "cheap") == found(capped, "sampled") == []


# What follows from it.


def test_remedies_act_or_say_why_not():
    model, x = sick(), tokens()
    uncompiled = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), uncompiled, watch(model, "exact") as d:
        before = model(x)
        (finding,) = d.findings()
        treatment = d.treat(finding, "qk-norm", batch=x)
        assert treatment.better and treatment.moved > 0
        assert not torch.equal(model(x), before)
        treatment.undo()
        assert torch.equal(model(x), before)
        with pytest.raises(TreatmentRefused, match=r"is FlexAttention.*into its score_mod"):
            d.treat(finding, "soft-cap", batch=x)


@pytest.mark.slow
def test_a_longer_key_is_planted():
    model, x = sick(score_mod), tokens()
    found = probe(model, x)
    assert [attack.site for attack in found.keys] == ["Attention"]
    assert max(found.keys[0].moved) > 0
