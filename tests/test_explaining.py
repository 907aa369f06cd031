"""`regard.explain(module, *inputs)`: one entry for each place that attends, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import _get_current_function_mode_stack

import regard
from regard.observed import LISTENERS, WATCHERS

DIM, HEADS = 16, 4


def encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Calls(nn.Module):
    """Calls a function on its input as query, key and value."""

    def __init__(self, *functions) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, x, x) for function in self.functions]


def test_torchs_encoder_and_ours_in_its_place() -> None:
    model, x = encoder(), torch.randn(2, 5, DIM)
    paths = ["layers.0.self_attn", "layers.1.self_attn"]
    sites = regard.explain(model, x)
    assert [site.path for site in sites] == paths
    assert {(site.kind, site.plan.engine) for site in sites} == {("sdpa", "torch:flash_attention")}
    assert all(0 < site.plan.error_bound < 1e-3 for site in sites)
    assert all("one fused kernel" in site.plan.notes[-1] for site in sites)
    regard.nn.replace_attention(model, "additive")
    sites = regard.explain(model, x)
    assert [(site.path, site.kind) for site in sites] == [(path, "regard") for path in paths]
    q = torch.randn(2, HEADS, 5, DIM // HEADS)
    alone = regard.explain(q, q, q, model.layers[0].self_attn.score)
    assert [site.plan.engine for site in sites] == [alone.engine] * 2
    assert sites[0].plan.refused == alone.refused and sites[0].plan.score == "additive"


def test_which_backend_of_torch_runs_and_why_not_the_others() -> None:
    model = Calls(
        scaled_dot_product_attention,
        lambda q, k, v: scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        lambda q, k, v: scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True, scale=0.3),
        lambda q, k, v: regard.attention(q, k, v, "cosine", engine="cpu"),
    )
    plans = [site.plan for site in regard.explain(model, torch.randn(2, 3, 5, 8))]
    engines = ["torch:flash_attention", "torch:math", "torch:math", "cpu"]
    assert [plan.engine for plan in plans] == engines
    assert "dropout" in plans[1].refused["torch:flash_attention"][0]
    assert "4 dimensional" in plans[2].refused["torch:flash_attention"][0]
    assert plans[0].also == ["torch:math"] and not plans[0].refused
    assert "engine 'sdpa'" in plans[0].notes[0] and "engine 'cpu'" in plans[1].notes[0]
    assert plans[3].score == "cosine"


@pytest.mark.parametrize("kind", [torch.float32, torch.bool])
def test_masks_of_torchs_sdpa(kind: torch.dtype) -> None:
    mask = torch.ones(2, 1, 5, 5).tril().to(kind)
    model = Calls(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask))
    (site,) = regard.explain(model, torch.randn(2, 3, 5, 8))
    assert "regard.attention would run" in site.plan.notes[0]


def test_attention_written_out_says_what_would_help() -> None:
    module, x = nn.MultiheadAttention(DIM, HEADS), torch.randn(5, 2, DIM)
    (site,) = regard.explain(module, x, x, value=x)
    assert (site.path, site.kind) == ("MultiheadAttention", "softmax")
    assert any("need_weights=False" in note for note in site.plan.notes)
    assert "not known" in str(regard.explain(module, x, x, x))
    (site,) = regard.explain(module, x, x, x, need_weights=False)
    assert site.kind == "sdpa"


def test_calls_that_run_alike_are_counted_and_others_listed() -> None:
    layer = regard.nn.SelfAttention(DIM, HEADS)
    model = nn.Sequential(layer, layer, layer)
    (site,) = regard.explain(model, torch.randn(2, 5, DIM))
    assert (site.path, site.calls) == ("0", 3) and "3 calls" in str(site)
    both = Calls(regard.attention, lambda q, k, v: regard.attention(q, k, v, softcap=3.0))
    engines = [site.plan.engine for site in regard.explain(both, torch.randn(1, 2, 5, 8))]
    assert engines == ["sdpa", "cpu"]


def test_the_table() -> None:
    text = str(regard.explain(encoder(), torch.randn(2, 5, DIM)))
    head, *rows = text.split("\n\n", maxsplit=1)[0].splitlines()
    assert head.split()[:4] == ["path", "calls", "score", "engine"] and len(rows) == 2
    assert text.count("regard.attention would run") == 1  # once for both layers
    assert "no attention was seen" in str(regard.explain(nn.Linear(2, 2), torch.randn(1, 2)))


class Counting(nn.Module):
    """Draws random numbers, writes to a buffer and attends."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.norm, self.inner = nn.BatchNorm1d(DIM), encoder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        assert not torch.is_grad_enabled() and not self.training
        return self.inner(self.norm(x.mT).mT + torch.randn_like(x))


def test_nothing_is_left_behind() -> None:
    model, x = Counting().train(), torch.randn(2, 5, DIM, requires_grad=True)
    model.inner.layers[0].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(model)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    random = torch.get_rng_state()
    assert len(regard.explain(model, x)) == 2
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        regard.explain(model, x[None, None])
    assert torch.equal(torch.get_rng_state(), random) and torch.is_grad_enabled()
    assert [m.training for m in model.modules()] == [m.training for m in before.modules()]
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    for ours, theirs in zip(model.state_dict().values(), before.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert all((p.grad == 1).all() for p in model.parameters()) and x.grad is None
    assert WATCHERS == [] and LISTENERS == [] and _get_current_function_mode_stack() == []


def test_a_call_with_tensors_is_as_before() -> None:
    q = torch.randn(1, 2, 5, 8)
    plan = regard.explain(q, key=q, value=q, score="cosine", engine="cpu")
    assert isinstance(plan, regard.Plan) and plan.engine == "cpu"
    assert str(regard.explain(query=q, key=q, value=q)) == str(regard.explain(q, q, q))


def test_a_watched_model_can_be_explained() -> None:
    model, x = encoder(), torch.randn(2, 5, DIM)
    with regard.doctor.watch(model) as doctor:
        model(x)
        steps = doctor.steps
        assert [site.path for site in regard.explain(model, x)] == doctor.sites
        model(x)
    assert doctor.steps >= steps + 1
