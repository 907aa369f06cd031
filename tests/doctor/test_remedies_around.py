"""Remedies of values and of whole modules around a call: contrast and residual."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import regard
from regard.doctor.remedies import describe_changes, put_again
from regard.doctor.remedies.treat import TreatmentRefused

from .patients.models import Attention as Plain
from .treating import SITE, attend_by_formula, broken_at, build, collapsed, tokens64, treat
from .watching import DIM, HEADS


class TestResidual:
    def test_by_formula_and_back(self):
        torch.manual_seed(0)
        model, x = nn.Sequential(*(Plain(DIM, HEADS) for _ in "123")).double(), tokens64()
        output = model(x)
        treatment = treat(model, x, "residual", collapsed("1"))
        first = x + model[0].o(model[0].attend(*model[0].sides(x)).transpose(1, 2).flatten(2))
        second = first + model[1].o(
            model[1].attend(*model[1].sides(first)).transpose(1, 2).flatten(2)
        )
        torch.testing.assert_close(model(x), model[2](second), atol=1e-12, rtol=1e-12)
        with pytest.raises(TreatmentRefused, match="every attention module up to 1 has a residual"):
            treat(model, x, "residual", collapsed("1"))
        last = treat(model, x, "residual", collapsed("2"))
        assert "around 1 attention module: 2" in last.applied.what
        last.undo()
        treatment.undo()
        assert torch.equal(model(x), output)

    def test_a_module_that_returns_a_tuple(self):
        model, x = Tuple().double(), tokens64()
        treatment = treat(model, x, "residual", collapsed("attention"))
        output, weights = model.attention(x, x, x, need_weights=True)
        model.attention(x, x, x)
        treatment.undo()
        plain, _ = model.attention(x, x, x)
        torch.testing.assert_close(output, plain + x, atol=1e-12, rtol=1e-12)
        assert weights is not None

    def test_shapes_that_do_not_fit_are_refused_and_nothing_is_left(self):
        model, x = nn.Sequential(Plain(DIM, HEADS), Narrowing()).double(), tokens64()
        with pytest.raises(TreatmentRefused, match="needs an argument of the shape of its output"):
            treat(model, x, "residual", collapsed("1.inside"))
        assert describe_changes(model) == []


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Narrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = Half()

    def forward(self, x):
        return self.inside(x)


class Half(Plain):
    def __init__(self) -> None:
        super().__init__(DIM, HEADS)

    def forward(self, x):
        return super().forward(x)[..., ::2]


def alike_values(name: str) -> nn.Module:
    """Values of the second layer that differ by a hundredth of what they have in common."""
    model = build(name)
    layer = model.layers[1]
    own = isinstance(layer, nn.MultiheadAttention)
    weight = layer.in_proj_weight if own else layer.qkv.weight
    bias = layer.in_proj_bias if own else layer.qkv.bias
    with torch.no_grad():
        weight[2 * DIM :] *= 1e-2
        bias[2 * DIM :] = 1.0
    return model


class TestContrast:
    @pytest.mark.parametrize("name", ["sdpa", "causal", "torch", "torch with weights"])
    def test_by_formula(self, name):
        model, x = alike_values(name), tokens64()
        before = copy.deepcopy(model)
        treatment = treat(model, x, "contrast", collapsed(SITE, "contrast"))
        gain = model.layers[1].regard_changes["contrast"].log_gain.exp().detach()
        assert gain.min() > 20 and treatment.effects[0].after < 0.7
        first = before.layers[0]
        h = x + attend_by_formula(first, x, lambda q, k: (q, k))
        wanted = h + contrasted(before.layers[1], h, gain, name == "causal")
        torch.testing.assert_close(model(x), wanted, atol=1e-10, rtol=1e-10)
        treatment.undo()
        assert torch.equal(model(x), before(x))

    def test_in_regard(self):
        torch.manual_seed(0)
        model = nn.Sequential(regard.nn.SelfAttention(DIM, HEADS)).double()
        x = 1 + 1e-2 * tokens64()
        treatment = treat(model, x, "contrast", collapsed("0", "contrast"))
        assert treatment.effects[0].after < 0.6 < treatment.effects[0].before

    def test_the_future_stays_unseen(self):
        model, x = alike_values("causal"), tokens64()
        treat(model, x, "contrast", collapsed(SITE, "contrast"))
        other = x.clone()
        other[:, -1] += 1.0
        assert torch.equal(model(x)[:, :-1], model(other)[:, :-1])

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("sdpa", "differ by about as much as their mean, so they are not the cause"),
            ("eager", "written out, whose values cannot be reached"),
        ],
    )
    def test_refused_where_it_is_not_the_reason(self, name, why):
        with pytest.raises(TreatmentRefused, match=why):
            treat(build(name), tokens64(), "contrast", collapsed(SITE, "contrast"))

    def test_rounding_is_not_amplified(self):
        model, x = alike_values("sdpa"), tokens64()
        with torch.no_grad():
            model.layers[1].qkv.weight[2 * DIM :] *= 1e-14
        with pytest.raises(TreatmentRefused, match="differ by no more than rounding"):
            treat(model, x, "contrast", collapsed(SITE, "contrast"))


def contrasted(layer: nn.Module, x, gain, causal: bool):
    """Attention with v' = m + g (v - m), written out."""
    own = isinstance(layer, nn.MultiheadAttention)
    weight = layer.in_proj_weight if own else layer.qkv.weight
    bias = layer.in_proj_bias if own else layer.qkv.bias
    parts = (x @ weight.T + bias).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)
    logits = q @ k.mT / q.shape[-1] ** 0.5
    length = x.shape[1]
    if causal:
        logits = logits.masked_fill(~torch.ones(length, length).tril().bool(), -torch.inf)
        mean = torch.stack([v[..., : i + 1, :].mean(-2) for i in range(length)], -2)
    else:
        mean = v.mean(-2, keepdim=True)
    v = mean + gain.view(-1, 1, 1) * (v - mean)
    found = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return (layer.out_proj if own else layer.out)(found)


AROUND = {
    "contrast": lambda: (alike_values("sdpa"), tokens64(), collapsed(SITE, "contrast")),
    "residual": lambda: (build("sdpa"), tokens64(), collapsed(SITE)),
    "finite": lambda: (Stumbling().double(), tokens64(), broken_at("layers.1.inside")),
}


class Stumbling(nn.Module):
    """The second layer is given NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Plain(DIM, HEADS), Behind()])

    def forward(self, x):
        return self.layers[1](x + self.layers[0](x))


class Behind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside = Zero(), Plain(DIM, HEADS)

    def forward(self, x):
        return self.inside(self.norm(x))


class Zero(nn.Module):
    def forward(self, x):
        return x / (x - x[:, :1]).norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("remedy", AROUND)
def test_described_and_put_again(remedy):
    model, x, made = AROUND[remedy]()
    treat(model, x, remedy, made)
    fresh, *_ = AROUND[remedy]()
    put_again(fresh.double(), json.loads(json.dumps(describe_changes(model))))
    fresh.double().load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x)) and model(x).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("remedy", AROUND)
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled(remedy):
    torch._dynamo.reset()
    model, x, made = AROUND[remedy]()
    treat(model, x, remedy, made)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x), atol=1e-10, rtol=1e-10)
    torch._dynamo.reset()
