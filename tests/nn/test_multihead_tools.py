"""`MultiheadAttention` under compilers, transforms, autocast and copies."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import regard
from regard.nn.multihead import MultiheadAttention, replace_attention

DIM, HEADS = 8, 2
SCORES = {"scaled dot": lambda: None, "additive": lambda: regard.Additive(3, HEADS)}
pytestmark = [
    # Dynamo makes an object of every autograd.Function that it traces, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # torch 2.6 warns of how it traces a constant itself.
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
    pytest.mark.filterwarnings("ignore:Node .*lifted_tensor"),
]


def build(score: str, **options) -> MultiheadAttention:
    options = {"batch_first": True, "score": SCORES[score]()} | options
    return MultiheadAttention(DIM, HEADS, **options)


def data(batch: int = 2, length: int = 5) -> torch.Tensor:
    return torch.randn(batch, length, DIM)


def hidden(batch: int = 2, length: int = 5) -> torch.Tensor:
    return torch.arange(length).expand(batch, length) >= length - 1


@pytest.mark.parametrize(("score", "need"), [("scaled dot", False), ("additive", True)])
def test_compiled_as_one_graph(score, need):
    torch._dynamo.reset()
    module, x = build(score, add_zero_attn=need), data()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    call = {"key_padding_mask": hidden(), "need_weights": need}
    found, wanted = compiled(x, x, x, **call), module(x, x, x, **call)
    torch.testing.assert_close(found, wanted)
    gradients = [
        torch.autograd.grad(y[0].square().sum(), list(module.parameters()), allow_unused=True)
        for y in (found, wanted)
    ]
    torch.testing.assert_close(*gradients)


def test_an_encoder_layer_in_evaluation_compiles_and_runs_our_score():
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, batch_first=True)
    replace_attention(layer, regard.Additive(3, HEADS))
    layer.eval()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with torch.no_grad():
        for length in (5, 7):
            x, ignore = data(length=length), hidden(length=length)
            found = compiled(x, src_key_padding_mask=ignore)
            torch.testing.assert_close(found, layer(x, src_key_padding_mask=ignore))


@pytest.mark.parametrize("score", SCORES)
def test_156681_exported_in_evaluation_with_any_length(score):
    """With torch's own, an operator of its fast path is exported that little else knows."""
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, batch_first=True)
    replace_attention(layer, SCORES[score]())
    layer.eval()
    length = torch.export.Dim("length", min=2, max=64)
    shapes = {"src": {1: length}}
    with torch.no_grad():
        program = torch.export.export(layer, (data(),), dynamic_shapes=shapes, strict=False)
    names = {str(node.target) for node in program.graph.nodes}
    assert not any("native_multi_head" in name or "encoder_layer" in name for name in names)
    x = data(length=9)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("need", [True, False])
@pytest.mark.parametrize("score", SCORES)
def test_autocast(score, need):
    module, x = build(score, add_bias_kv=True), data()
    wanted, _ = module(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = module(x, x, x, key_padding_mask=None, need_weights=need)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), wanted, atol=0.05, rtol=0.05)
    output.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    module, x = build("additive").to(dtype), data().to(dtype)
    output, weights = module(x, x, x, key_padding_mask=hidden())
    assert output.dtype == weights.dtype == dtype
    wanted, _ = module.float()(x.float(), x.float(), x.float(), key_padding_mask=hidden())
    torch.testing.assert_close(output.float(), wanted, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("score", SCORES)
def test_a_deep_copy_stands_alone(score):
    module, x = build(score), data()
    again = copy.deepcopy(module)
    wanted, _ = module(x, x, x)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    torch.testing.assert_close(again(x, x, x)[0], wanted)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("need", [True, False])
def test_an_ensemble_by_vmap_over_parameters(need):
    """Without weights through SDPA, which torch maps with a loop, and says so."""
    modules, x = [build("scaled dot").double() for _ in range(3)], data().double()
    stacked, buffers = stack_module_state(modules)
    base = copy.deepcopy(modules[0]).to("meta")

    def call(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x, x, x), {"need_weights": need})[0]

    found = vmap(call, (0, 0, None))(stacked, buffers, x)
    wanted = torch.stack([module(x, x, x)[0] for module in modules])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_by_torch_func(score):
    module, x = build(score), data()
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters):
        return functional_call(module, parameters, (x, x, x))[0].square().sum()

    found = torch.func.grad(loss)(parameters)
    wanted = torch.autograd.grad(module(x, x, x)[0].square().sum(), list(module.parameters()))
    for got, want in zip(found.values(), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_gradients_by_finite_differences():
    module = build("additive", add_bias_kv=True, add_zero_attn=True).double()
    x = data(1, 3).double().requires_grad_()
    bias = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    for need in (True, False):
        call = lambda x, b, n=need: module(x, x, x, attn_mask=b, need_weights=n)[0]  # noqa: E731
        assert torch.autograd.gradcheck(call, (x, bias))


@pytest.mark.parametrize("need", [True, False])
def test_on_meta_only_shapes_are_computed(need):
    module = MultiheadAttention(8, 2, batch_first=True, device="meta")
    x, ignore = torch.ones(2, 5, 8, device="meta"), torch.ones(2, 5, device="meta").bool()
    output, weights = module(x, x, x, key_padding_mask=ignore, need_weights=need)
    assert output.shape == (2, 5, 8)
    assert weights is None or weights.shape == (2, 5, 5)


def test_the_repr_names_the_score_and_the_sizes():
    text = repr(build("additive", key_heads=1))
    assert "embed_dim=8, num_heads=2, dropout=0.0, batch_first=True, key_heads=1" in text
    assert "(score): Additive" in text


def test_the_engine_is_passed_on():
    module, x = build("scaled dot", engine="reference"), data()
    torch.testing.assert_close(module(x, x, x), build_like(module)(x, x, x))
    assert "engine='reference'" in repr(module)
    with pytest.raises(ValueError, match="unknown engine"):
        build("scaled dot", engine="none such")(x, x, x)


def build_like(module: MultiheadAttention) -> MultiheadAttention:
    """The same parameters, and the engine left free."""
    other = build("scaled dot")
    other.load_state_dict(module.state_dict())
    return other
