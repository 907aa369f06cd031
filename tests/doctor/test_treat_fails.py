"""A treatment that fails half way leaves the model as it was; and modules that are unlike others."""

from __future__ import annotations

import io
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from regard.doctor.remedies.treat import TreatmentRefused
from regard.doctor.watch import watch

from .patients.treated import diagnosed, planted
from .treating import ALIKE, broken_at, collapsed, finding, treat
from .watching import DIM, LENGTH, Attention, Stack, tokens

CUT = (("steps with query_grad", 0.5, False), ("steps with key_grad", 0.5, False))


class OnlyOnce(nn.Module):
    """Fails as soon as its attention, or what makes it, is another than at first."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(1e-3 * torch.randn(LENGTH, DIM))
        self.a, self.out, self.error = Attention(), nn.Linear(DIM, DIM), error
        self.first: Tensor | None = None
        self.a.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x + self.pos_embed.detach())
        self.first = y.detach() if self.first is None else self.first
        if y.requires_grad or not torch.equal(y, self.first):
            raise self.error("not like that")
        return self.out(y)


def state_of(model: nn.Module) -> list:
    tensors = [(name, x.clone()) for name, x in model.state_dict().items()]
    modules = [(name, type(x), x.training, set(vars(x))) for name, x in model.named_modules()]
    return [tensors, modules, [x.requires_grad for x in model.parameters()]]


def assert_same_state(first: list, second: list) -> None:
    assert first[1:] == second[1:]
    for (name, x), (other, y) in zip(first[0], second[0], strict=True):
        assert name == other and torch.equal(x, y)


@pytest.mark.parametrize("error", [RuntimeError, ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("remedy", "signs"),
    [
        ("residual", ALIKE),
        ("thaw", CUT),
        ("positions", (("value_place", 0.02, False),)),
        ("soft-cap", ()),
    ],
)
def test_an_error_takes_everything_back(remedy, signs, error):
    torch.manual_seed(0)
    model = OnlyOnce(error)
    before = state_of(model)
    made = finding(*signs, site="a", disease="sick", remedies=(remedy,))
    with pytest.raises((error, TreatmentRefused), match="not like that"):
        treat(model, tokens(8), remedy, made)
    assert_same_state(state_of(model), before)


class Pair(NamedTuple):
    output: Tensor
    weights: None


class Named(Attention):
    def forward(self, x):
        return Pair(super().forward(x), None)


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.a = inner

    def forward(self, x):
        return self.a(x).output


def test_a_module_that_returns_a_named_tuple():
    model, x = First(Named()), tokens()
    before = model(x)
    treatment = treat(model, x, "residual", collapsed("a"))
    torch.testing.assert_close(model(x), before + x)
    treatment.undo()
    assert torch.equal(model(x), before)


def test_what_is_put_in_inference_mode_can_be_trained_and_loaded():
    sick = planted("DeadGradient")
    model, doctor, found = diagnosed(sick)
    with torch.inference_mode():
        treatment = doctor.treat(found, batch=tuple(x.clone() for x in sick.batch(0)))
    assert treatment.applied.parameters and treatment.remedy.name == "contrast"
    model(*sick.batch(0)).sum().backward()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    torch.optim.SGD(model.parameters(), 0.1).step()


@pytest.mark.parametrize("head", [2, -1])
def test_a_finding_of_another_model_is_refused(head):
    model = Stack(Attention(), Attention())
    before = state_of(model)
    made = finding(*ALIKE, heads=(head,), disease="rank-collapse", remedies=("residual",))
    with pytest.raises(TreatmentRefused, match=f"about head {head} of layers.1, which has 2"):
        treat(model, tokens(), "residual", made)
    assert_same_state(state_of(model), before)


def test_a_forward_on_the_object_itself_would_pass_by_the_treatment():
    model = Stack(Attention(), Attention())
    layer = model.layers[1]
    layer.forward = lambda x: Attention.forward(layer, x)
    before = state_of(model)
    with pytest.raises(TreatmentRefused, match=r"forward of layers\.1 was replaced on the object"):
        treat(model, tokens(), "residual", collapsed("layers.1"))
    assert_same_state(state_of(model), before)


def test_undone_though_the_module_left_the_model():
    model, x = Stack(Attention(), Attention()), tokens()
    left = model.layers[1]
    treatment = treat(model, x, "residual", collapsed("layers.1"))
    model.layers[1] = Attention()
    treatment.undo()
    assert type(left) is type(model.layers[0]) is Attention and "regard_changes" not in vars(left)


class Gained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.gain = Attention(), nn.Parameter(torch.tensor(torch.nan))

    def forward(self, x):
        return self.a(self.gain * x)


def test_a_weight_that_is_one_number_is_drawn_anew():
    model = Gained()
    treatment = watch(model).treat(broken_at("a"), "finite", tokens(), redraw=True)
    assert treatment.healed and model.gain.isfinite()
    treatment.undo()
    assert model.gain.isnan()
