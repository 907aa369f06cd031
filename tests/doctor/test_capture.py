"""Which calls are seen, by what name, and that what is handed over describes the call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as by_name

import regard
from regard import Mask
from regard.doctor.watch import watch

from .watching import DIM, HEADS, LENGTH, Attention, Eager, Kept, Stack, output_of, tokens


class Calls(nn.Module):
    """A function in a module."""

    def __init__(self, function, heads: int | None = None) -> None:
        super().__init__()
        self.function = function
        if heads is not None:
            self.num_heads = heads

    def forward(self, *tensors):
        return self.function(*tensors)


def see(function, *tensors, heads: int | None = None):
    """What is seen of a function, and its result."""
    kept = Kept()
    model = Calls(function, heads)
    with watch(model, "cheap", vitals=kept.vitals) as d, torch.no_grad():
        out = model(*tensors)
    assert d.notes == []
    return kept.seen, out, d


def heads(batch=2, count=HEADS, length=LENGTH, width=8):
    return torch.randn(batch, count, length, width)


SDPA = {
    "attribute": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "by name": lambda q, k, v: by_name(q, k, v),
    "operator": lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v),
    "keywords": lambda q, k, v: by_name(value=v, key=k, query=q, is_causal=True),
    "scale": lambda q, k, v: by_name(q, k, v, scale=0.3),
    "boolean mask": lambda q, k, v: by_name(
        q, k, v, torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    ),
    "float mask": lambda q, k, v: by_name(q, k, v, attn_mask=torch.randn(2, 1, LENGTH, LENGTH)),
    "grouped": lambda q, k, v: by_name(q, k[:, :1], v[:, :1], enable_gqa=True),
    "queries and keys": lambda q, k, v: by_name(q[:, :, :3], k, v, is_causal=True),
}


@pytest.mark.parametrize("name", SDPA)
def test_sdpa_however_called(name):
    torch.manual_seed(0)
    seen, _, d = see(SDPA[name], heads(), heads(), heads())
    torch.manual_seed(0)
    expected = SDPA[name](heads(), heads(), heads())
    assert d.sites == ["Calls"] and len(seen) == 1
    torch.testing.assert_close(output_of(seen[0]), expected)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3, HEADS)])
def test_sdpa_of_other_dims(lead):
    tensors = [torch.randn(*lead, LENGTH, 8) for _ in range(3)]
    mask = torch.rand(*lead, LENGTH, LENGTH) > 0.2
    seen, out, _ = see(lambda *x: by_name(*x, attn_mask=mask), *tensors)
    assert seen[0].query.ndim == 4
    torch.testing.assert_close(output_of(seen[0]).reshape(out.shape), out)


def test_sdpa_in_a_context_of_backends():
    def function(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            return by_name(q, k, v)

    seen, out, _ = see(function, heads(), heads(), heads())
    torch.testing.assert_close(output_of(seen[0]), out)


def sink_column(q, k, v):
    logits = torch.cat([q @ k.mT, torch.full((2, HEADS, LENGTH, 1), 0.5)], -1)
    logits = logits - logits.max(-1, keepdim=True).values
    return F.softmax(logits, dim=-1, dtype=logits.dtype)[..., :-1] @ v


def saved_on_the_way(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    weights.detach().clone()  # for a picture
    return torch.matmul(input=weights, other=v)


def differential(q, k, v):
    first, second = (q @ k.mT).softmax(-1), (-q @ k.mT).softmax(-1)
    return (first - 0.0 * second) @ v


def reshaped(q, k, v):
    weights = (q @ k.mT).softmax(-1).view(-1, LENGTH, LENGTH)
    return torch.bmm(weights, v.flatten(0, 1)).view(v.shape)


EAGER = {
    "matmul": lambda q, k, v: torch.matmul(torch.softmax(q @ k.mT, -1), v),
    "dropout and cast": lambda q, k, v: F.dropout((q @ k.mT).double().softmax(-1)).float() @ v,
    "masked": lambda q, k, v: (q @ k.mT).masked_fill(q @ k.mT > 9, -1e9).softmax(-1) @ v,
    "first dim of two": lambda q, k, v: (k @ q.mT).softmax(-2).transpose(-1, -2) @ v,
    "value on the left": lambda q, k, v: (v.mT @ (q @ k.mT).softmax(3).permute(0, 1, 3, 2)).mT,
    "transposed": lambda q, k, v: (v.mT @ (q @ k.mT).softmax(-1).mT).mT,
    "einsum": lambda q, k, v: torch.einsum("bhqk,bhkd->bhqd", (q @ k.mT).softmax(-1), v),
    "einsum of other order": lambda q, k, v: torch.einsum(
        "bkhd,bhqk->bhqd", v.transpose(1, 2), (q @ k.mT).softmax(-1)
    ),
    "sink column": sink_column,
    "saved on the way": saved_on_the_way,
    "differential": differential,
    "batch and heads one dim": reshaped,
}


@pytest.mark.parametrize("name", EAGER)
def test_softmax_attention(name):
    function = EAGER[name]
    seen, out, d = see(function, heads(), heads(), heads())
    assert len(seen) == 1 and d.chart.sites["Calls"].route == "softmax"
    if name != "dropout and cast":
        torch.testing.assert_close(output_of(seen[0]), out)


def test_heads_in_the_batch_dim_are_told_by_the_module():
    tensors = [heads().flatten(0, 1) for _ in range(3)]
    function = lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)  # noqa: E731
    seen, out, d = see(function, *tensors, heads=HEADS)
    assert seen[0].logits.shape == (2, HEADS, LENGTH, LENGTH)
    torch.testing.assert_close(output_of(seen[0]).flatten(0, 1), out)
    assert d.chart.sites["Calls"].heads == HEADS


OTHER_SOFTMAX = {
    "classifier": lambda x: (x @ torch.randn(DIM, 5)).softmax(-1),
    "returned and scaled": lambda x: x.softmax(-1) * x,
    "expected embedding": lambda x: x.softmax(-1) @ torch.randn(DIM, 7),
    "router": lambda x: torch.einsum("ble,bled->bld", x.softmax(-1), torch.randn(*x.shape, 4)),
    "router by matmul": lambda x: x.softmax(-1).unsqueeze(-2) @ torch.randn(*x.shape, 4),
    "top experts": lambda x: x.softmax(-1).topk(2).values.sum(-1),
    "over the batch": lambda x: x.softmax(0) @ x.mT,
    "one row": lambda x: x[0].softmax(-1) @ x[0].T,
    "normalised channels": lambda x: (x.softmax(-1) ** 2).mT @ x,
    "two tensors apart": lambda x: (x.softmax(-1), x @ x.mT)[1],
}


@pytest.mark.parametrize("name", OTHER_SOFTMAX)
def test_a_softmax_that_is_not_attention(name):
    seen, _, d = see(OTHER_SOFTMAX[name], tokens())
    assert seen == [] and d.sites == []


def test_weights_made_in_a_child_meet_values_in_its_parent():
    class Weigh(nn.Module):
        def forward(self, q, k):
            return (q @ k.mT).softmax(-1)

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.weigh, self.softmax = Weigh(), nn.Softmax(-1)

        def forward(self, x):
            return self.weigh(x, x) @ x + self.softmax(x @ x.mT) @ x

    kept, model = Kept(), nn.ModuleDict({"a": Parent()})
    with watch(model, vitals=kept.vitals) as d:
        model["a"](tokens())
    assert d.sites == ["a", "a#2"]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_torch_multihead_attention(need_weights, masked):
    module = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1) if masked else None
    kept, x = Kept(), tokens()
    expected = module(x, x, x, attn_mask=mask, need_weights=need_weights)
    with watch(module, vitals=kept.vitals) as d:
        out = module(x, x, x, attn_mask=mask, need_weights=need_weights)
    assert torch.equal(out[0], expected[0])
    assert d.sites == ["MultiheadAttention"] and d.chart.sites[d.sites[0]].heads == HEADS
    shown = module.out_proj(output_of(kept.seen[0]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(shown, out[0])


def test_torch_transformer_layers():
    model = nn.Transformer(DIM, HEADS, 1, 1, 32, 0.0, batch_first=True)
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens(), tokens(length=4))
    assert d.sites == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    ]
    assert d.notes == []


def test_the_fused_path_of_torch_is_off_and_it_is_said():
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True).eval()
    x = tokens()
    with torch.no_grad():
        with watch(layer, vitals=Kept().vitals) as d:
            out = layer(x)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            plain = layer(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        fused = layer(x)
    assert torch.equal(out, plain)
    torch.testing.assert_close(out, fused)
    assert any("fused inference path is off" in note for note in d.notes)
    assert d.sites == ["self_attn"]


def own(score=None, **options):
    return lambda q, k, v: regard.attention(q, k, v, score, **options)


OWN = {
    "scaled dot": own(),
    "causal": own(mask=Mask.causal()),
    "window": own(mask=Mask.causal() & Mask.window(left=2)),
    "lengths": own(mask=Mask.lengths(keys=torch.tensor([6, 3]))),
    "dense": own(mask=torch.rand(2, HEADS, LENGTH, LENGTH) > 0.3),
    "bias": own(bias=torch.randn(HEADS, LENGTH, LENGTH)[None]),
    "sink": own(sink=torch.tensor([0.3, -1.0])),
    "soft cap": own(softcap=1.5, engine="cpu"),
    "temperature": own(temperature=2.5),
    "temperatures": own(temperature=torch.tensor([0.5, 2.0]), engine="reference"),
    "cosine": own(regard.Cosine(HEADS)),
    "gaussian": own(regard.Gaussian()),
    "gaussian, bias": own(regard.Gaussian(), bias=torch.randn(1, 1, LENGTH, LENGTH)),
    "gaussian, cap": own(regard.Gaussian(), softcap=2.0),
    "gaussian, temperatures": own(regard.Gaussian(), temperature=torch.tensor([0.5, 2.0])),
    "additive": own(regard.Additive(8, HEADS)),
    "additive, cap, sink": own(
        regard.Additive(8, HEADS), softcap=1.0, sink=torch.zeros(HEADS), temperature=0.5
    ),
    "additive, temperatures": own(regard.Additive(8, HEADS), temperature=torch.tensor([0.5, 2.0])),
    "additive by the series": own(regard.Additive(8, HEADS), engine="sine"),
    "gatv2": own(regard.GATv2(8, HEADS), engine="reference"),
}


@pytest.mark.parametrize("name", OWN)
def test_attention_of_regard(name):
    torch.manual_seed(0)
    kept, model = Kept(), Calls(OWN[name])
    with watch(model, "sampled", vitals=kept.vitals) as d, torch.no_grad():
        out = model(heads(), heads(), heads())
    assert d.notes == [] and d.sites == ["Calls"] and len(kept.seen) == 1
    assert d.chart.sites["Calls"].route == "regard"
    close = {"rtol": 1e-3, "atol": 1e-3} if "series" in name else {}
    torch.testing.assert_close(output_of(kept.seen[0]), out, **close)


def test_a_hard_look_up_has_no_softmax_to_see():
    seen, _, _ = see(own(temperature=0.0), heads(), heads(), heads())
    assert seen == []


def test_attention_of_regard_with_fewer_and_more_dims():
    for lead in [(), (3,), (2, 2, HEADS)]:
        tensors = [torch.randn(*lead, LENGTH, 8) for _ in range(3)]
        seen, out, _ = see(own(regard.Gaussian(), mask=Mask.causal()), *tensors)
        torch.testing.assert_close(output_of(seen[0]).reshape(out.shape), out)


def test_modules_of_regard_by_name():
    model = regard.nn.Encoder([regard.nn.EncoderBlock(DIM, HEADS, "additive") for _ in range(2)])
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens())
    assert len(d.sites) == 2 and all(name.startswith("blocks.") for name in d.sites)


def test_names_of_calls_in_wrappers_and_shared_modules():
    shared = Attention()
    model = Stack(shared, Eager(), shared)
    model = torch.nn.DataParallel(model)  # without a GPU it calls the module itself
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens())
        model(tokens())
    assert d.sites == ["layers.0", "layers.1", "layers.0#2"]
    assert d.steps == 2


def test_calls_of_a_loop_are_limited():
    model = Calls(lambda q, k, v: [by_name(q, k, v) for _ in range(70)][-1])
    with watch(model, vitals=Kept().vitals) as d:
        model(heads(), heads(), heads())
    assert len(d.sites) == 64 and d.sites[-1] == "Calls#64"
    assert d.notes == ["Calls: only the first 64 attention calls in a step are measured"]


def test_other_models_are_not_seen():
    model, other = Attention(), Attention()
    with watch(model, vitals=Kept().vitals) as d:
        other(tokens())
        by_name(heads(), heads(), heads())
    assert d.sites == [] and d.steps == 0


def test_nothing_is_kept_alive_after_a_forward_pass():
    model = Stack(Eager(), Calls(lambda x: x.softmax(-1)))
    with watch(model, vitals=Kept().vitals) as d:
        model(tokens())
        assert d.capture.follower.idle() and d.capture.stack == []
