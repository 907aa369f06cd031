"""A change of one call in a live model: it trains, saves, copies, compiles, and touches no other."""

from __future__ import annotations

import copy
import io
import json

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from regard.doctor.remedies import CHANGES, describe_changes, locate, put_again
from regard.doctor.remedies.intervene import HOLDER, Change, module_at, put, take_away
from regard.doctor.remedies.temperature import Temperature
from regard.doctor.watch import watch

from .treating import MODELS, SITE, build, expected, finding, tokens64, treat
from .watching import DIM, HEADS, Attention, Eager, Stack, pass_through

ALL = (*MODELS, "regard", "additive")


def model_of(name: str) -> nn.Module:
    if name in MODELS:
        return build(name)
    torch.manual_seed(0)
    score = "scaled_dot" if name == "regard" else name
    return Stack(*(regard.nn.SelfAttention(DIM, HEADS, score) for _ in "12")).double()


def warmed(model: nn.Module, x, factor: float = 0.5) -> Temperature:
    """The model with another temperature in its second layer."""
    change = Temperature(HEADS).double()
    put(model, locate(model, x)[SITE].place, "temperature", change)
    with torch.no_grad():
        change.log_factor.fill_(factor)
    return change


@pytest.mark.parametrize("name", ALL)
def test_gradients_reach_and_train_the_new_parameters(name):
    model, x = model_of(name), tokens64()
    change = warmed(model, x)
    assert any(p is change.log_factor for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start, losses = change.log_factor.detach().clone(), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert not torch.equal(start, change.log_factor) and losses[-1] < losses[0]


def test_gradient_of_a_temperature_by_differences():
    model, x = build("sdpa"), tokens64()
    change = warmed(model, x)

    def output(log_factor):
        return torch.func.functional_call(
            model, {"layers.1.regard_changes.temperature.log_factor": log_factor}, (x,)
        )

    torch.autograd.gradcheck(output, (change.log_factor.detach().requires_grad_(),))


@pytest.mark.parametrize("name", MODELS)
def test_treated_twice_and_undone_in_order(name):
    """A call that is replaced by others, as a soft cap does to SDPA, is found where it was."""
    model, x = build(name, 20.0), tokens64()
    place, output = locate(model, x)[SITE].place, model(x)
    first = treat(model, x, "soft-cap", cap=20.0)
    capped = model(x)
    assert locate(model, x)[SITE].place == place
    wanted = expected(model, x, lambda q, k: (q / 2, k), cap=20.0)
    second = treat(model, x, "temperature", start=2.0)
    torch.testing.assert_close(model(x), wanted, atol=1e-10, rtol=1e-10)
    second.undo()
    assert torch.equal(model(x), capped)
    first.undo()
    assert torch.equal(model(x), output)


@pytest.mark.parametrize("name", ALL)
def test_other_sites_see_the_same_bits(name):
    model, x = model_of(name), tokens64()
    before = locate(model, x)
    warmed(model, x)
    after = locate(model, x)
    first, same = before["layers.0"].seen, after["layers.0"].seen
    for one, other in zip(first, same, strict=True):
        assert one is other or not isinstance(one, torch.Tensor) or torch.equal(one, other)
    assert list(before) == list(after)
    assert [call.place for call in before.values()] == [call.place for call in after.values()]


@pytest.mark.parametrize("name", ALL)
def test_copies_and_pickles_have_it_too(name):
    model, x = model_of(name), tokens64()
    warmed(model, x)
    output = model(x)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), output)
    with torch.no_grad():
        twin.layers[1].regard_changes["temperature"].log_factor.zero_()
    assert torch.equal(model(x), output) and not torch.equal(twin(x), output)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), output)
    assert type(twin.layers[1]).__name__ == type(twin.layers[0]).__name__


@pytest.mark.parametrize("name", ALL)
def test_state_dict_goes_into_a_fresh_model(name):
    model, x = model_of(name), tokens64()
    warmed(model, x)
    description = json.loads(json.dumps(describe_changes(model)))
    fresh = model_of(name)
    with pytest.raises(RuntimeError, match="regard_changes"):
        fresh.load_state_dict(model.state_dict())
    put_again(fresh.double(), description)
    fresh.double().load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x)) and describe_changes(fresh) == description


def test_every_change_can_be_put_again():
    ours = [x for x in Change.__subclasses__() if x.__module__.startswith(REMEDIES_FOLDER)]
    assert {x.__name__ for x in ours} == set(CHANGES)


REMEDIES_FOLDER = "regard.doctor.remedies."
REMEDIES_WITH_CHANGES = ("temperature", "qk-norm", "cosine", "key-clip", "soft-cap", "mask")


@pytest.mark.parametrize("remedy", REMEDIES_WITH_CHANGES)
def test_every_change_is_described_and_put_again(remedy):
    model, x = build("sdpa", 20.0), tokens64()
    disease = "missing-mask" if remedy == "mask" else "large-logits"
    treat(model, x, remedy, finding(disease=disease, remedies=(remedy,)))
    fresh = build("sdpa", 20.0)
    put_again(fresh, json.loads(json.dumps(describe_changes(model))))
    fresh.double().load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x))


def test_unknown_changes_are_refused():
    with pytest.raises(
        ValueError, match="unknown change 'Nonsense'; known are Scaled, Temperature"
    ):
        put_again(build("sdpa"), [{"change": "Nonsense"}])


def test_it_moves_and_casts_with_the_model():
    model, x = build("sdpa"), tokens64()
    change = warmed(model, x)
    model.float()
    assert change.log_factor.dtype == torch.float32 and model(x.float()).dtype == torch.float32
    model.to("meta")
    assert change.log_factor.is_meta


@pytest.mark.parametrize("name", ["sdpa", "eager", "torch"])
def test_autocast(name):
    model, x = build(name).float(), tokens64().float()
    warmed(model, x)
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        output.float().sum().backward()
    torch.testing.assert_close(output.float(), model(x), atol=0.1, rtol=0.1)
    assert model.layers[1].regard_changes["temperature"].log_factor.grad is not None


class Checkpointed(Stack):
    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


@pytest.mark.parametrize("kind", [Attention, Eager])
def test_checkpointed_layers_have_the_same_gradients(kind):
    torch.manual_seed(0)
    plain = Stack(kind(), kind()).double()
    kept = Checkpointed(*plain.layers)
    x = tokens64()
    warmed(plain, x)
    one, two = pass_through(plain, x), pass_through(kept, x)
    assert torch.equal(one[0], two[0])
    assert all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))


class Inside(Attention):
    """A checkpoint around the call alone, which begins after the change did."""

    def attend(self, query, key, value):
        return checkpoint(super().attend, query, key, value, use_reentrant=False)


def test_a_checkpoint_inside_the_module_is_noticed_by_torch():
    model, x = Stack(Inside(), Inside()).double(), tokens64()
    warmed(model, x)
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        model(x).sum().backward()


@pytest.mark.parametrize("name", ALL)
def test_a_doctor_sees_what_becomes_of_the_call(name):
    model, x = model_of(name), tokens64()
    doctor = watch(model)
    before = doctor.examine(x)[SITE]
    warmed(model, x, 1.0)
    output = model(x)
    with doctor:
        assert torch.equal(model(x), output)
    after = doctor.examine(x)[SITE]
    largest = doctor.vitals.index("logit_max")
    torch.testing.assert_close(after[:, largest], before[:, largest] / torch.e)


def test_two_changes_of_one_call_and_taking_one_away():
    model, x = build("sdpa"), tokens64()
    output = model(x)
    warmed(model, x, 0.5)
    half = model(x)
    warmed(model, x, 1.0)
    held = model.layers[1].regard_changes
    assert list(held) == ["temperature", "temperature_2"]
    take_away(model, module_at(model, SITE), "temperature_2")
    assert torch.equal(model(x), half)
    take_away(model, module_at(model, SITE), "temperature")
    assert torch.equal(model(x), output) and HOLDER not in model.layers[1]._modules
    assert type(model.layers[1]) is Attention and not model.layers[1]._forward_pre_hooks


class Two(Attention):
    """Two calls in one module."""

    def attend(self, query, key, value):
        return super().attend(query, key, super().attend(key, query, value))


def test_one_of_two_calls_of_a_module():
    model, x = Stack(Two(), Two()).double(), tokens64()
    calls = locate(model, x)
    assert list(calls) == ["layers.0", "layers.0#2", "layers.1", "layers.1#2"]
    assert [calls[name].place.index for name in calls] == [0, 1, 0, 1]
    before = calls["layers.1"].seen
    change = Temperature(HEADS).double()
    put(model, calls["layers.1#2"].place, "temperature", change)
    with torch.no_grad():
        change.log_factor.fill_(1.0)
    after = locate(model, x)
    assert torch.equal(after["layers.1"].seen.query, before.query)
    second = calls["layers.1#2"].seen.query
    torch.testing.assert_close(after["layers.1#2"].seen.query, second / torch.e)


def test_one_module_run_twice_is_told():
    layer = Attention()
    model, x = Stack(layer, layer).double(), tokens64()
    calls = locate(model, x)
    assert list(calls) == ["layers.0", "layers.0#2"] and calls["layers.0"].again == 2
    treatment = treat(model, x, "temperature", finding(site="layers.0"))
    assert treatment.also == ("layers.0#2",) and "also: layers.0#2" in treatment.summary()


def test_a_call_that_is_no_longer_made_is_told():
    model, x = build("sdpa"), tokens64()
    warmed(model, x)
    model.layers[1].__class__ = type(model.layers[1])  # still treated
    model.layers[1].attend = Eager.attend.__get__(model.layers[1])
    with pytest.warns(UserWarning, match="the treatment temperature of a Attention did not act"):
        model(x)


def test_torch_changes_its_way_and_the_treatment_stays():
    model, x = build("torch"), tokens64()
    treat(model, x, "qk-norm", finding(), keep=True)
    output = model(x)
    for layer in model.layers:
        layer.need_weights = True
    torch.testing.assert_close(model(x), output, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_encoder_of_torch_stays_off_its_fast_path(nested):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x, padding = torch.randn(2, 6, DIM), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    batch = {"src": x, "src_key_padding_mask": padding}
    with torch.no_grad():
        before = model(**batch)
        made = finding(site="layers.1.self_attn", remedies=("temperature",))
        treatment = treat(model, batch, "temperature", made, start=3.0)
        real = ~padding
        assert (model(**batch) - before)[real].abs().max() > 1e-4
        treatment.undo()
        assert torch.equal(model(**batch), before) and model.use_nested_tensor == nested


def test_softmax_written_out_with_a_mask_keeps_it():
    """A soft cap must not show again what -inf hides."""
    model, x = build("eager", 20.0), tokens64()
    treat(model, x, "soft-cap", cap=20.0)
    later = x.clone()
    later[:, -1] += 1.0
    assert torch.equal(model(x)[:, :-1], model(later)[:, :-1])


def test_scripted_modules_are_refused():
    class Plain(nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(Plain())
    place = locate(model, tokens64())["0"].place
    model[0] = torch.jit.script(Plain())
    with pytest.raises(KeyError, match="no module '0'"):
        put(model, place, "x", Change())


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_before_and_after(name):
    torch._dynamo.reset()
    model, x = model_of(name), tokens64()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    before = compiled(x)
    change = warmed(model, x)
    output = model(x)
    assert not torch.equal(before, output)
    torch.testing.assert_close(compiled(x), output, atol=1e-12, rtol=1e-12)
    compiled(x).sum().backward()
    assert change.log_factor.grad is not None
    with watch(model) as doctor:
        torch.testing.assert_close(compiled(x), output, atol=1e-12, rtol=1e-12)
    assert doctor.sites == ["layers.0", "layers.1"]
    take_away(model, module_at(model, SITE), "temperature")
    torch.testing.assert_close(compiled(x), before, atol=1e-12, rtol=1e-12)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("remedy", REMEDIES_WITH_CHANGES)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_every_change_compiles(remedy):
    torch._dynamo.reset()
    for name in ("sdpa", "eager", "torch"):
        model, x = build(name, 20.0), tokens64()
        disease = "missing-mask" if remedy == "mask" else "large-logits"
        treat(model, x, remedy, finding(disease=disease, remedies=(remedy,)))
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x), atol=1e-10, rtol=1e-10)
    torch._dynamo.reset()
