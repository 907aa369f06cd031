"""The remedy of positions; and what all remedies keep to: options, scales, severities, keys."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import regard.doctor
from regard.doctor.findings.evidence import position_tables
from regard.doctor.remedies import REMEDIES, RemedyCase, describe_changes, locate
from regard.doctor.remedies.base import NotApplicable
from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.vitals import INDEX
from regard.doctor.watch import watch
from regard.observed import KEY_CHANGES

from .patients import HEALTHY
from .patients.gradients import NoGradient
from .patients.models import Attention as Plain
from .patients.models import Model, at, attentions
from .patients.treated import diagnosed, noted, planted
from .treating import SITE, build, finding, tokens64
from .watching import DIM, HEADS

LOST = (("value_place", 0.02, False), ("place_share", 0.02, False))


def lost(site: str):
    return finding(*LOST, site=site, disease="washed-out-positions", remedies=("positions",))


class TestPositions:
    def test_the_share_is_what_was_asked_for(self):
        sick = planted("Swamped")
        _, doctor, found = diagnosed(sick)
        with pytest.raises(ValueError, match="share must be between"):
            doctor.treat(found, "positions", sick.batch(0), share=1.0)
        treatment = doctor.treat(found, "positions", sick.batch(0), share=0.5)
        shares = treatment.after[:, INDEX["value_place"]]
        assert float(shares.mean()) == pytest.approx(0.5, abs=0.06)
        with pytest.raises(TreatmentRefused, match="has been treated with positions already"):
            doctor.treat(found, "positions", sick.batch(0), share=0.5)

    def test_what_was_learned_since_stays(self):
        sick = planted("WashedOut")
        model, doctor, found = diagnosed(sick)
        table = model.positions.clone()
        treatment = doctor.treat(found, batch=sick.batch(0))
        factor = float((model.positions / table)[0, 1])
        with torch.no_grad():
            model.positions[0, 1] += factor
        treatment.undo()
        assert float(model.positions[0, 1]) == pytest.approx(float(table[0, 1]) + 1, rel=1e-5)
        torch.testing.assert_close(model.positions[1:], table[1:])

    def test_refused(self):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Embedding(8, DIM), Plain(DIM, HEADS))
        ids = torch.randint(8, (4, 12))
        with pytest.raises(TreatmentRefused, match="no table of positions was found"):
            watch(plain).treat(lost("1"), batch=ids)
        model, batch = Model(*attentions(1)), NoGradient().batch(0)
        with pytest.raises(TreatmentRefused, match="give a batch of two or more"):
            watch(model).treat(lost(at(0)), batch=(batch[0][:1],))
        idle = nn.Sequential(nn.Embedding(8, DIM), Idle())
        with pytest.raises(
            TreatmentRefused, match=r"no factor on 1\.pos_embed makes positions explain 0\.3"
        ):
            watch(idle).treat(lost("1"), batch=ids)
        assert torch.equal(idle[1].pos_embed, torch.ones(12, DIM))

    def test_tables_by_name(self):
        model = nn.Module()
        for name in ("pe", "wpe", "pos_embed", "embed_positions", "post_norm", "compose", "weight"):
            model.register_buffer(name, torch.zeros(2, 2))
        model.register_buffer("position_ids", torch.zeros(2, 2, dtype=torch.long))
        names = [name for name, _ in position_tables(model)]
        assert names == ["pe", "wpe", "pos_embed", "embed_positions"]


class Idle(Plain):
    """Holds positions and does not add them."""

    def __init__(self) -> None:
        super().__init__(DIM, HEADS)
        self.register_buffer("pos_embed", torch.ones(12, DIM))


def test_options_are_what_apply_takes():
    assert REMEDIES["soft-cap"].options == {"cap": 50.0}
    assert REMEDIES["qk-norm"].options == {"norm": "rms", "keep": False}
    assert REMEDIES["finite"].options == {"redraw": False, "seed": 0}
    assert REMEDIES["residual"].options == REMEDIES["epsilon"].options == {}


def test_a_scale_that_went_into_the_weights_is_not_put_right_twice():
    sick = planted("UnscaledScore")
    model, doctor, found = diagnosed(sick)
    first = doctor.treat(found, batch=sick.batch(0))
    assert "into the weights" in first.applied.what
    for one in (model, copy.deepcopy(model)):
        with pytest.raises(TreatmentRefused, match=r"is scaled by 0\.125 already"):
            watch(one).treat(found, "scale", sick.batch(0))
    first.undo()
    assert doctor.treat(found, "scale", sick.batch(0)).better


def test_a_finding_as_bad_as_what_follows_shows_the_numbers_of_that():
    """Tied sides are a warning by themselves; what makes them a failure is the gradient."""
    _, _, found = diagnosed(planted("TiedSides"))
    assert str(found.severity) == "failure" and "of a consequence: hardly any" in found.explanation
    signs = {x.vital: x for x in found.signals}
    assert {"jacobian", "max_weight", "query_grad * sqrt(queries)"} <= set(signs)
    assert signs["query_grad * sqrt(queries)"].threshold == 1e-8
    for sign in found.signals:
        assert (sign.value > sign.threshold) == sign.above


def test_fresh_whisper_is_told_of_its_positions_in_a_note():
    pytest.importorskip("transformers")
    sick = next(x for x in HEALTHY if x.name == "Whisper")
    _, doctor, found = noted(sick, "collapsed-positions")
    assert str(found.severity) == "note" and "no larger than usual" in found.explanation
    treatment = doctor.treat(found, batch=sick.batch(0))
    assert treatment.healed and "model.encoder.embed_positions.weight" in treatment.applied.what


def test_the_attack_leaves_the_keys_of_regard_alone():
    model, x = nn.Sequential(regard.nn.SelfAttention(DIM, HEADS)).double(), tokens64()
    output = model(x)
    regard.doctor.probe(model, x)
    assert KEY_CHANGES == [] and torch.equal(model(x), output)


def test_a_call_that_nothing_can_change_is_refused():
    model, x = build("sdpa"), tokens64()
    call = locate(model, x)[SITE]
    place = replace(call.place, route="unheard-of")
    case = RemedyCase(model, SITE, replace(call, place=place), finding(), torch.zeros(0), x)
    with pytest.raises(
        NotApplicable, match=r"layers\.1 is a call of unheard-of, which cannot be changed"
    ):
        REMEDIES["soft-cap"].apply(case)
    assert describe_changes(model) == []
