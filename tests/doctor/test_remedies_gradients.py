"""Remedies of gradients that are cut off and of numbers that break: reconnect, thaw, finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.doctor.remedies.finite import first_to_break
from regard.doctor.remedies.reaching import gradients_at
from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.vitals import INDEX
from regard.doctor.watch import watch

from .patients import HEALTHY
from .patients.gradients import Cut, NoGradient
from .patients.models import Attention as Plain
from .patients.models import Model, at, attentions
from .patients.treated import diagnosed, noted, planted
from .treating import broken_at, finding, tokens64
from .watching import DIM, HEADS

CUT = (("steps with query_grad", 0.5, False), ("steps with key_grad", 0.5, False))


class TestGradients:
    def test_reconnected_gradients_are_those_of_code_without_the_cut(self):
        torch.manual_seed(0)
        model, batch = NoGradient().build(), NoGradient().batch(0)
        whole = Model(*attentions(2))
        whole.load_state_dict(model.state_dict())
        made = finding(*CUT, site=at(1), disease="no-gradient", remedies=("reconnect",))
        output = model(*batch)
        treatment = watch(model).treat(made, batch=batch)
        assert treatment.kept and treatment.moved == 0.0 and treatment.healed
        assert all(x.grad is None for x in model.parameters())  # what was tried leaves nothing
        for one in (model, whole):
            one(*batch).square().mean().backward()
        for x, y in zip(model.parameters(), whole.parameters(), strict=True):
            assert torch.equal(x.grad, y.grad)
        with torch.no_grad():
            assert not model(*batch).requires_grad
        treatment.undo()
        assert torch.equal(model(*batch), output)
        assert torch.isnan(gradients_at(model, batch, at(1))[:, INDEX["query_grad"]]).all()

    def test_frozen_weights_are_thawed(self):
        sick = next(x for x in HEALTHY if x.name == "Frozen")
        model, doctor, found = noted(sick, "no-gradient")
        frozen = [name for name, x in model.named_parameters() if not x.requires_grad]
        assert found.remedies[0].remedy == "thaw"
        treatment = doctor.treat(found, batch=sick.batch(0))
        assert treatment.remedy.name == "thaw" and treatment.healed and treatment.kept
        assert all(x.requires_grad for x in model.blocks[0].attention.parameters())
        assert not model.words.weight.requires_grad
        treatment.undo()
        assert [name for name, x in model.named_parameters() if not x.requires_grad] == frozen

    def test_thawing_what_is_not_the_reason(self):
        model, batch = Model(Plain(), Cut()), NoGradient().batch(0)
        model.blocks[1].attention.o.requires_grad_(False)
        made = finding(*CUT, site=at(1), disease="no-gradient", remedies=("thaw",))
        with pytest.raises(TreatmentRefused, match="not what keeps the gradient from"):
            watch(model).treat(made, batch=batch)
        assert not model.blocks[1].attention.o.weight.requires_grad

    def test_the_history_of_who_watches_gets_no_step_of_it(self):
        model, batch = NoGradient().build(), NoGradient().batch(0)
        with watch(model) as doctor:
            model(*batch).sum().backward()
            gradients_at(model, batch, at(0))
        assert doctor.steps == 1

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
    def test_compiled_the_module_stays_as_it_is(self):
        torch._dynamo.reset()
        model, batch = NoGradient().build(), NoGradient().batch(0)
        made = finding(*CUT, site=at(1), disease="no-gradient", remedies=("reconnect",))
        watch(model).treat(made, batch=batch)
        torch.compile(model, backend="aot_eager")(*batch).sum().backward()
        assert model.blocks[1].attention.q.weight.grad is not None
        torch._dynamo.reset()
        with pytest.raises(Exception, match="Observed exception"):
            torch.compile(model, backend="aot_eager", fullgraph=True)(*batch)
        torch._dynamo.reset()


class TestFinite:
    def test_backward_is_finite_too(self):
        sick = planted("BrokenNorm")
        model, doctor, found = diagnosed(sick)
        assert first_to_break(model, sick.batch(0)) == "blocks.1.before"
        treatment = doctor.treat(found, batch=sick.batch(0))
        model.zero_grad()
        output = model(*sick.batch(0))
        output.square().mean().backward()
        assert output.isfinite().all() and all(x.grad.isfinite().all() for x in model.parameters())
        assert "stay broken" not in treatment.applied.what

    def test_weights_of_the_module_itself_are_told(self):
        model, batch = Model(*attentions(2)), NoGradient().batch(0)
        model.blocks[1].before = Dividing()
        treatment = watch(model).treat(broken_at(at(1)), batch=batch)
        assert treatment.better and "blocks.1.before.weight stay broken" in treatment.applied.what

    def test_what_is_not_finite_in_a_head(self):
        sick = planted("Overflow")
        model, doctor, found = diagnosed(sick)
        doctor.treat(found, batch=sick.batch(0))
        change = model.blocks[1].attention.regard_changes["finite"]
        key = torch.tensor([[1.0, torch.inf], [torch.nan, -torch.inf]]).expand(1, 4, 2, 2)
        _, made = change.change_sides(key, key)
        limit = float(change.key_limit[2])
        assert limit == 65504.0 or 6e4 < limit < 65504.0
        assert made[0, 2].tolist() == [[1.0, limit], [0.0, -limit]]

    def test_broken_weights_are_drawn_anew_on_request(self):
        sick = planted("BrokenWeights")
        model, doctor, found = diagnosed(sick)
        weight = model.blocks[1].before.weight
        before = weight.detach().clone()
        treatment = doctor.treat(found, "finite", sick.batch(0), redraw=True)
        assert treatment.healed and weight.isfinite().all() and weight[3].abs() < 5
        assert torch.equal(weight[:3], before[:3]) and torch.equal(weight[4:], before[4:])
        treatment.undo()
        assert torch.equal(weight.isnan(), before.isnan())

    def test_refused(self):
        model, batch = Model(*attentions(2)), NoGradient().batch(0)
        with pytest.raises(TreatmentRefused, match="no module makes NaN or Inf on this batch"):
            watch(model).treat(broken_at(at(1)), batch=batch)
        attention, x = nn.Sequential(Plain(DIM, HEADS)).double(), tokens64()
        x[0, 0] = torch.nan
        with pytest.raises(TreatmentRefused, match="the batch itself holds NaN or Inf"):
            watch(attention).treat(broken_at("0"), batch=x)


class Dividing(nn.Module):
    """A norm without epsilon and with a weight, beside a word without features."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x):
        x = torch.cat([x[:, :5], torch.zeros_like(x[:, 5:6]), x[:, 6:]], 1)
        return x / x.norm(dim=-1, keepdim=True) * self.weight
