"""`d.treat`: which remedy, on which batch, what it says of it, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.doctor.findings.finding import Signal
from regard.doctor.remedies import REMEDIES
from regard.doctor.remedies.treat import Effect, TreatmentRefused, difference
from regard.doctor.watch import watch

from .treating import LARGE, LOUD, SITE, TorchAttention, build, finding, tokens64
from .watching import DIM, HEADS, Stack


def case(louder: float = 20.0):
    return build("sdpa", louder), tokens64(4, 16)


def test_the_first_that_is_advised_is_taken():
    model, x = case()
    treatment = watch(model).treat(finding(remedies=("qk-norm", "temperature")), batch=x)
    assert treatment.remedy.name == "qk-norm" and treatment.passed_over == {}
    assert treatment.better and "qk-norm for large-logits at layers.1" in repr(treatment)
    assert treatment.before.shape == treatment.after.shape == (HEADS, len(watch(model).vitals))


def test_those_that_cannot_be_applied_are_passed_over_with_the_reason():
    model, x = case(1.0)
    made = finding(remedies=("positions", "qk-clip", "temperature"))
    treatment = watch(model).treat(made, batch=x)
    assert treatment.remedy.name == "temperature"
    assert list(treatment.passed_over) == ["positions", "qk-clip"]
    assert "above 100: nothing to clip" in treatment.summary()


def test_a_named_one_is_taken_if_it_fits():
    model, x = case()
    made = finding(remedies=("qk-norm",))
    assert watch(model).treat(made, "soft-cap", x).remedy.name == "soft-cap"


@pytest.mark.parametrize(
    ("remedy", "why"),
    [
        ("soft-cap", "the key takes 24% of the queries with a cap and 25% without"),
        ("scale", "one loud key stays the loudest"),
        ("temperature", "one loud key stays the loudest"),
        ("qk-clip", "one loud key stays the loudest"),
        ("shrink-tanh", "treats saturated additive scores"),
        ("mask", "not a disease of masks"),
        ("heads", "names none"),
    ],
)
def test_what_does_not_fit_the_disease_is_refused(remedy, why):
    model, x = case()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = finding(*LOUD, disease="key-norm-hijack", remedies=(remedy,))
    with pytest.raises(TreatmentRefused, match=why):
        watch(model).treat(made, remedy, x)
    with pytest.raises(TreatmentRefused, match=why):  # nor is it taken because it was advised
        watch(model).treat(made, batch=x)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_vitals_that_it_does_not_move():
    made = finding(("tanh_saturated", 0.8, True), ("tanh_slope", 0.2, False), disease="dry-tanh")
    reason = REMEDIES["temperature"].refuse(made)
    assert reason is not None and "dry-tanh shows in tanh_saturated, tanh_slope" in reason


def test_soft_cap_really_does_not_stop_a_loud_key():
    """What the refusal says, measured: 512 keys, d=64, one key ten times as long."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 2048, 64), torch.randn(2, 512, 64)
    k[:, 7] *= 10

    def captured(logits):
        return (logits.softmax(-1)[..., 7] > 0.5).float().mean().item()

    logits = q @ k.mT / 8
    assert captured(logits) == pytest.approx(0.25, abs=0.05)
    assert captured(20 * torch.tanh(logits / 20)) == pytest.approx(0.24, abs=0.05)
    norm = k.norm(dim=-1, keepdim=True)
    short = k * (3 * norm.median() / norm).clamp(max=1)
    assert captured(q @ short.mT / 8) < 0.03


@pytest.mark.parametrize(
    ("remedy", "why"),
    [
        ("shrink-tanh", "has no tanh"),
        ("swap-score", "called by a Attention: a score can be swapped in"),
    ],
)
def test_what_cannot_be_applied_here_is_refused(remedy, why):
    model, x = case()
    made = finding(("tanh_saturated", 0.5, True), ("entropy", 0.1, False), remedies=(remedy,))
    with pytest.raises(TreatmentRefused, match=f"{remedy} cannot be applied: .*{why}"):
        watch(model).treat(made, remedy, x)


def test_pairs_have_no_query_and_key():
    model = Stack(*(regard.nn.SelfAttention(DIM, HEADS, "additive") for _ in "12"))
    for remedy in ("qk-norm", "cosine", "key-clip", "scale"):
        made = finding(("entropy", 0.1, False), ("logit_bound", 1.0, True))
        with pytest.raises(TreatmentRefused, match="has a pairwise score"):
            watch(model).treat(made, remedy, tokens64().float())


def test_numbers_that_broke_before_are_not_normed():
    model, x = case()
    with torch.no_grad():
        model.layers[1].qkv.weight[0] = torch.inf
    with pytest.raises(TreatmentRefused, match="hold NaN or Inf already"):
        watch(model).treat(finding(), "qk-norm", x)


def test_two_soft_caps():
    model, x = case()
    doctor = watch(model)
    doctor.treat(finding(), "soft-cap", x)
    with pytest.raises(TreatmentRefused, match="has a soft cap of 50 already"):
        doctor.treat(finding(), "soft-cap", x)


def test_bad_arguments():
    model, x = case()
    doctor = watch(model)
    with pytest.raises(TypeError, match="finding must be one of"):
        doctor.treat("large-logits", batch=x)
    with pytest.raises(ValueError, match="pass batch="):
        doctor.treat(finding())
    with pytest.raises(ValueError, match="unknown remedy 'aspirin'; known are scale, temperature"):
        doctor.treat(finding(), "aspirin", x)
    with pytest.raises(TypeError, match="soft-cap takes no option 'tau'; options: cap"):
        doctor.treat(finding(), "soft-cap", x, tau=3.0)
    with pytest.raises(ValueError, match="would bend the logits of healthy heads: give 20 or more"):
        doctor.treat(finding(), "soft-cap", x, cap=5.0)
    with pytest.raises(ValueError, match="norm must be 'rms' or 'layer', got 'batch'"):
        doctor.treat(finding(), "qk-norm", x, norm="batch")
    for option, value in (("start", 0.0), ("start", math.nan)):
        with pytest.raises(ValueError, match="start must be a positive number"):
            doctor.treat(finding(), "temperature", x, **{option: value})
    with pytest.raises(
        TreatmentRefused, match=r"nowhere, was not measured on this batch; measured were: layers.0"
    ):
        doctor.treat(finding(site="nowhere"), "temperature", x)
    with pytest.raises(TreatmentRefused, match="None is known"):
        doctor.treat(finding(), batch=x)
    assert not list(model.layers[1].children())[2:]  # nothing was left behind


def test_the_batch_examined_last_is_taken():
    model, x = case()
    doctor = watch(model)
    doctor.examine(x)
    assert doctor.treat(finding(), "temperature").kept


def test_history_mode_and_random_numbers_are_as_before():
    model, x = case()
    model.train()
    with watch(model) as doctor:
        model(x)
        history, state = doctor.history(SITE).values.clone(), torch.get_rng_state()
        doctor.treat(finding(), "temperature", x)
        assert doctor.attached and doctor.steps == 1
        torch.testing.assert_close(doctor.history(SITE).values, history, equal_nan=True)
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training and all(module.training for module in model.modules())
        model(x)
    assert doctor.steps == 2


def test_undone_twice():
    model, x = case()
    treatment = watch(model).treat(finding(), "temperature", x)
    treatment.undo()
    assert treatment.summary().endswith("undone")
    with pytest.raises(RuntimeError, match="has been undone already"):
        treatment.undo()


@pytest.mark.parametrize("remedy", ["qk-norm", "soft-cap", "temperature", "qk-clip", "cosine"])
def test_summaries_fit_the_screen(remedy):
    model, x = case(200.0)
    over_steps = [("logit_max growth", 1.0, True), ("key_norm growth", 1.0, True)]
    made = finding(*LARGE, *over_steps, ("tanh_slope", 0.25, False))
    text = watch(model).treat(made, remedy, x).summary()
    assert all(len(line) <= 80 for line in text.splitlines()), text
    assert "key_norm growth needs several" in text and "tanh_slope: not measured" in text
    assert text.count("logit_max:") == 1 and "logit_max growth" not in text
    model, x = case(200.0)
    narrow = watch(model).treat(made, "temperature", x).summary(60)
    assert all(len(line) <= 60 for line in narrow.splitlines()[1:])


def test_what_made_it_worse_says_so():
    model, x = case(1.0)
    treatment = watch(model).treat(finding(), "temperature", x, start=0.1)
    assert not treatment.better and treatment.effects[0].gain < -0.5
    assert treatment.verdict() == "nothing got better on this batch; treatment.undo() takes it back"


def test_effects():
    signal = Signal("logit_max", 200.0, 100.0, True, "test")
    better = Effect(signal, 200.0, 100.001)
    assert better.gain == pytest.approx(0.5, abs=1e-4) and better.healthy and better.direct
    assert Effect(signal, 200.0, 300.0).gain < 0 and not Effect(signal, 200.0, 300.0).healthy
    assert Effect(signal, math.inf, 5.0).gain == 1.0
    assert Effect(signal, 5.0, math.nan).gone and Effect(signal, math.nan, math.nan).gain == 0.0


def test_difference_of_any_output():
    one = {"a": torch.ones(2), "b": (torch.zeros(3), [torch.tensor([1, 2])]), "c": None}
    two = {"a": torch.ones(2) * 1.5, "b": (torch.zeros(3) - 2, [torch.tensor([9, 9])]), "c": None}
    assert difference(one, two) == (2.0, 1.0)
    broken = torch.tensor([torch.nan, 1.0])
    assert difference(broken, broken) == (0.0, 1.0)
    assert difference(broken, torch.ones(2))[0] == math.inf


@pytest.mark.parametrize("remedy", ["temperature", "qk-norm", "soft-cap", "mask"])
def test_the_model_itself_may_attend(remedy):
    torch.manual_seed(0)
    model, x = TorchAttention(False).double(), tokens64()
    made = finding(site="TorchAttention", disease="missing-mask", remedies=(remedy,))
    output = model(x)
    treatment = watch(model).treat(made, remedy, x)
    treatment.undo()
    assert torch.equal(model(x), output)


SWAPS = {
    "torch": lambda: Stack(*(TorchIn() for _ in "12")),
    "regard": lambda: Stack(*(regard.nn.SelfAttention(DIM, HEADS, "dot") for _ in "12")),
    "MultiheadAttention": lambda: Stack(*(RegardIn() for _ in "12")),
}


class TorchIn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class RegardIn(TorchIn):
    def __init__(self) -> None:
        super().__init__()
        self.attention = regard.nn.MultiheadAttention(DIM, HEADS, batch_first=True)


@pytest.mark.parametrize("name", SWAPS)
@pytest.mark.parametrize("score", [None, "gaussian", "additive"])
def test_swapped_scores_run_train_and_go_back(name, score):
    torch.manual_seed(0)
    model, x = SWAPS[name]().double(), tokens64()
    site = SITE if name == "regard" else f"{SITE}.attention"
    before, output = list(model.state_dict()), model(x)
    made = finding(*LOUD, site=site, disease="key-norm-hijack")
    treatment = watch(model).treat(made, "swap-score", x, score=score)
    assert treatment.moved > 1e-4 and all(".score." in n for n in treatment.applied.parameters)
    model(x).sum().backward()
    for parameter in treatment.applied.parameters:
        assert model.get_parameter(parameter).grad is not None
    treatment.undo()
    assert torch.equal(model(x), output) and list(model.state_dict()) == before


def test_a_scale_is_not_put_right_twice():
    """The first one acts on the queries of each call, which the scale of the call does not show."""

    class Unscaled(nn.Module):
        def forward(self, x):
            return scaled_dot_product_attention(x, x.flip(-1), x, scale=1.0)

    model, x = Unscaled(), torch.randn(2, 4, 12, 64)
    ill = finding(("logit_var", 1.0, True), site="Unscaled", remedies=("scale",))
    d = watch(model)
    first = d.treat(ill, "scale", batch=x)
    with pytest.raises(TreatmentRefused, match="already"):
        d.treat(ill, "scale", batch=x)
    first.undo()
    assert d.treat(ill, "scale", batch=x).better
