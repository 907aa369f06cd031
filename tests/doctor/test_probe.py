"""Attacks: their numbers against hand computation, and that nothing of the model changes."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.doctor.patients.bundled import EXAMPLES, open_example
from regard.doctor.probing import inputs, keys, probe
from regard.doctor.probing.keys import half_at
from regard.nn import MultiheadAttention

from .watching import DIM, LENGTH, Attention, Eager, Stack, tokens


def state_of(model: nn.Module) -> dict:
    return {
        "weights": {name: x.clone() for name, x in model.state_dict().items()},
        "training": [module.training for module in model.modules()],
        "classes": [type(module) for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "rng": torch.get_rng_state(),
        "grads": [x.grad is None for x in model.parameters()],
    }


def assert_unchanged(before: dict, after: dict) -> None:
    assert torch.equal(before.pop("rng"), after.pop("rng"))
    weights, others = before.pop("weights"), after.pop("weights")
    assert weights.keys() == others.keys()
    assert all(torch.equal(x, others[name]) for name, x in weights.items())
    assert before == after


class Buffered(Stack):
    """A model that writes to a buffer whenever it runs."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x):
        self.runs += 1
        return super().forward(x)


MODELS = {
    "sdpa": lambda: Stack(Attention(), Attention(causal=True)),
    "written out": lambda: Stack(Eager(), Eager(causal=True)),
    "buffer": lambda: Buffered(Attention()),
    "torch's module": lambda: nn.TransformerEncoderLayer(DIM, 2, 8, batch_first=True, dropout=0.3),
    "additive": lambda: nn.Sequential(Own("additive"), Own("cosine")),
}


class Own(nn.Module):
    """Self-attention with a score of ours."""

    def __init__(self, score: str) -> None:
        super().__init__()
        self.heads = MultiheadAttention(DIM, 2, batch_first=True, score=score)

    def forward(self, x):
        return self.heads(x, x, x)[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_as_before(name, training):
    model = MODELS[name]().train(training)
    x, before = tokens(), state_of(model)
    found = probe(model, x)
    assert_unchanged(before, state_of(model))
    assert len(found.keys) == len(found.inputs) == len(found.positions.sites) > 0
    assert found.notes == []
    json.dumps(found.as_dict(), allow_nan=False)
    assert str(found) == found.summary(80)
    for width in (60, 70, 80):
        lines = found.summary(width).splitlines()
        assert max(map(len, lines)) <= width and "  largest logit" in found.summary(width)


def test_after_an_error_too():
    class Fragile(Attention):
        def forward(self, x):
            if x.abs().max() > 50:
                raise RuntimeError("too loud")
            return super().forward(x)

    model, x = Stack(Fragile()), tokens()
    before = state_of(model)
    with pytest.raises(RuntimeError, match="too loud"):
        probe(model, x)
    assert_unchanged(before, state_of(model))


def by_hand(model: Stack, x: torch.Tensor, place: int, factor: float) -> tuple[float, float]:
    """Captured share and output movement of the first layer, computed in the open."""
    layer = model.layers[0]
    query, key, value = layer.heads(x)
    key = key.clone()
    key[:, :, place] *= factor
    logits = query @ key.mT / query.shape[-1] ** 0.5
    weights = logits.softmax(-1)
    out = x + layer.out((weights @ value).transpose(1, 2).flatten(2))
    for other in model.layers[1:]:
        out = out + other(out)
    before = model(x)
    moved = (out - before).norm() / before.norm()
    return float((weights[..., place] > 0.5).float().mean()), float(moved)


@pytest.mark.parametrize("kind", [Attention, Eager])
def test_a_planted_key_captures_what_hand_computation_says(kind):
    torch.manual_seed(0)
    model = Stack(kind(), kind()).eval()
    x = 3 * tokens(batch=4, length=12)
    attack = probe(model, x).keys[0]
    with torch.no_grad():
        for i, factor in enumerate(keys.FACTORS):
            captured, moved = by_hand(model, x, attack.key, factor)
            assert attack.captured[i] == pytest.approx(captured, abs=1e-6)
            assert attack.moved[i] == pytest.approx(moved, abs=1e-5)
        others = [sum(by_hand(model, x, place, c)[0] for c in keys.FACTORS) for place in range(12)]
    assert sum(attack.captured) == pytest.approx(max(others), abs=1e-6)
    assert attack.captured[-1] > attack.captured[0]
    assert attack.moved[0] < 1e-6 < attack.moved[-1]


def test_scores_without_norms_withstand_every_key():
    """Cosine looks at angles alone; a key is lengthened before it does."""
    x = 3 * tokens(batch=2, length=12)
    dot, cosine = (probe(Stack(Own(score)), x).keys[0] for score in ("scaled_dot", "cosine"))
    assert max(cosine.moved) < 1e-5 < max(dot.moved)
    assert cosine.captured[-1] == cosine.captured[0] and math.isinf(cosine.c50)


class Normed(Attention):
    """With a norm on its keys, as many models have it now."""

    def __init__(self) -> None:
        super().__init__()
        self.k_norm = nn.LayerNorm(DIM // 2)

    def attend(self, query, key, value):
        return super().attend(query, self.k_norm(key), value)


class Unit(Attention):
    """The same by a function, which cannot be seen from outside."""

    def attend(self, query, key, value):
        return super().attend(query, F.normalize(key, dim=-1), value)


def test_a_norm_on_keys_is_tried_and_not_passed_by():
    x = tokens(batch=2, length=12)
    assert max(probe(Stack(Normed()), x).keys[0].moved) < 1e-4
    found = probe(Stack(Unit()), x)
    assert found.keys == [] and "all its keys have one norm" in found.notes[0]


def test_a_remedy_is_tried_and_not_passed_by():
    """Key clipping stands between the planted key and the queries."""
    from regard.doctor.remedies.intervene import Change, put
    from regard.doctor.remedies.locate import locate

    class Clip(Change):
        def change_sides(self, query, key):
            return query, F.normalize(key, dim=-1)

    torch.manual_seed(0)
    model, x = Stack(Attention()), 3 * tokens(batch=2, length=12)
    before = probe(model, x).keys[0]
    place = locate(model, x)["layers.0"].place
    put(model, place, "clip", Clip())
    after = probe(model, x)
    assert before.captured[-1] > 0.2
    assert after.notes or max(after.keys[0].moved) < 1e-4


@pytest.mark.parametrize(
    ("captured", "expected"),
    [
        ([0.6, 0.7, 0.8, 0.9, 1.0], 1.0),
        ([0.0, 0.5, 0.8, 0.9, 1.0], 3.0),
        ([0.0, 0.0, 0.0, 0.0, 1.0], 30 * math.sqrt(100 / 30)),
        ([0.0, 0.1, 0.2, 0.3, 0.49], math.inf),
    ],
)
def test_half_at(captured, expected):
    assert half_at(captured) == pytest.approx(expected)


# Inputs.


def test_logits_grow_with_the_square_of_the_inputs():
    attack = probe(Stack(Attention()), 10 * tokens()).inputs[0]
    one = inputs.ONE
    assert attack.logit_max[one + 2] / attack.logit_max[one] == pytest.approx(100, rel=0.3)
    assert attack.entropy[0] > attack.entropy[one] > attack.entropy[-1]
    assert attack.range is not None and attack.range[1] < 100 and attack.broken == (0,) * 7


def test_a_norm_before_attention_withstands_all():
    found = probe(nn.Sequential(nn.LayerNorm(DIM), Attention()), tokens())
    assert found.inputs[0].range == (0.1, 100.0)


def test_numbers_beyond_the_dtype_are_counted():
    model = Stack(Attention()).half()
    with torch.no_grad():
        model.layers[0].qkv.weight *= 0.003
    attack = probe(model, 700 * tokens().half()).inputs[0]
    assert attack.broken[inputs.ONE] == 0 < attack.broken[-1]
    assert attack.range is not None and attack.range[1] < 100


def test_token_ids_stay_and_their_embedding_is_scaled():
    patient = open_example("hijacked-key", 0)
    found = probe(patient.model, patient.batch(0))
    assert found.scaled == "the embedding of the tokens"
    logits = found.inputs[0].logit_max
    assert logits[inputs.ONE + 2] / logits[inputs.ONE] == pytest.approx(100, rel=0.05)


def test_masks_are_not_inputs():
    class Masked(Attention):
        def forward(self, x, attention_mask):
            query, key, value = self.heads(x)
            out = F.scaled_dot_product_attention(query, key, value, attention_mask)
            return self.out(out.transpose(1, 2).flatten(2))

    batch = {"x": tokens(), "attention_mask": torch.randn(LENGTH, LENGTH)}
    assert probe(Masked(), batch).scaled == "x"
    assert probe(Masked(), tuple(batch.values())).scaled == "x"


# Positions.


def test_without_positions_nothing_changes():
    found = probe(Stack(Attention()), tokens()).positions
    assert found.how == "rolled" and found.shifts == (1, 4)
    assert max(found.sites[0].changed) < 1e-6 and max(found.moved) < 1e-5


def test_positions_are_noticed():
    class Placed(Stack):
        def __init__(self) -> None:
            super().__init__(Attention())
            self.places = nn.Parameter(2 * torch.randn(LENGTH, DIM))

        def forward(self, x):
            return super().forward(x + self.places)

    found = probe(Placed(), tokens()).positions
    assert min(found.sites[0].changed) > 0.05 and min(found.moved) > 0.05


def test_bundled_examples_fare_as_they_should():
    found = {name: probe((p := open_example(name, 0)).model, p.batch(0)) for name in EXAMPLES}
    assert found["jammed-tanh"].keys[0].captured[-1] < 0.1  # tanh bounds what a key can do
    assert found["hijacked-key"].inputs[0].range == (0.1, 1.0)
    assert found["healthy"].inputs[0].range == (0.1, 100.0)


def test_what_is_no_model():
    with pytest.raises(TypeError, match="probe takes an nn"):
        probe(3, tokens())


def test_a_model_without_attention():
    found = probe(nn.Linear(DIM, DIM), tokens())
    assert found.keys == [] and found.notes == ["no attention was seen"]
    assert "no attention was seen" in str(found)
