"""Choosing layers, bad input, and what surrounds a model: compilers, checkpointing, autocast."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch.testing import assert_close
from transformers import BloomConfig, BloomModel, LlamaForCausalLM

from regard import Additive, Projected, ScaledDot
from regard.integrations.transformers import Layer, attention_layers, restore, use_score
from regard.integrations.transformers.attach import check_made_score
from regard.integrations.transformers.forward import attention_forward
from regard.scores import SIZED
from regard.stabilize import SoftCapped

from .models import FAMILIES, inputs, real_rows, tiny

NAMES = {
    "llama": "model.layers.0.self_attn",
    "gemma2": "model.layers.0.self_attn",
    "gpt_oss": "model.layers.0.self_attn",
    "gpt2": "transformer.h.0.attn",
    "bert": "bert.encoder.layer.0.attention.self",
    "t5": "encoder.block.0.layer.0.SelfAttention",
    "bart": "model.encoder.layers.0.self_attn",
    "vit": "vit.layers.0.attention",
}


def test_absence_of_transformers_is_one_clear_error(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("regard.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ImportError) as caught:
        importlib.import_module("regard.integrations.transformers")
    assert str(caught.value) == (
        "regard.integrations.transformers needs transformers 5 or later: pip install regard[hf]"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_layers_and_their_sizes(family):
    layers = attention_layers(tiny(family))
    assert len(layers) == (6 if family in ("t5", "bart") else 2)
    assert layers[0].name == NAMES[family]
    assert [layer.index for layer in layers] == list(range(len(layers)))
    grouped = family in ("llama", "gemma2", "gpt_oss")
    assert {(x.heads, x.key_heads, x.head_dim) for x in layers} == {(4, 2 if grouped else 4, 8)}


def test_layers_by_pattern_place_and_both():
    model = use_score(tiny("t5"), "additive", layers="*EncDecAttention")
    scored = [x.name for x in attention_layers(model) if x.module.regard_score is not None]
    assert scored == [f"decoder.block.{i}.layer.1.EncDecAttention" for i in (0, 1)]
    use_score(model, "gatv2", layers=["encoder.*", -1])
    names = [getattr(x.module.regard_score, "name", None) for x in attention_layers(model)]
    assert names == ["gatv2", "gatv2", None, "additive", None, "gatv2"]


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        (
            "decoder.*",
            ValueError,
            r"'decoder.\*' matches none of the 2 .* model.layers.0.self_attn",
        ),
        (2, ValueError, "layers=2 matches none"),
        ([], ValueError, "layers is empty"),
        (True, TypeError, "names, patterns or indices"),
        ([1.5], TypeError, "names, patterns or indices"),
        (1.5, TypeError, "names, patterns or indices, got 1.5"),
    ],
)
def test_wrong_layers_leave_the_model_as_it_was(layers, error, message):
    model = tiny("llama")
    with pytest.raises(error, match=message):
        use_score(model, "additive", layers=layers)
    assert model.config._attn_implementation == "eager"
    assert not hasattr(model.config, "regard_scores")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (Additive, "score must be a name, a Score object, or a function"),
        (3, "score must be a name, a Score object, or a function"),
        (lambda layer: "additive", "layer 'model.layers.0.self_attn' must return a Score or None"),
    ],
)
def test_wrong_scores_are_refused(score, message):
    with pytest.raises(TypeError, match=message):
        use_score(tiny("llama"), score)
    with pytest.raises(ValueError, match="did you mean 'cosine'"):
        use_score(tiny("llama"), "cosin")


def test_models_that_cannot_be_served_are_refused():
    with pytest.raises(TypeError, match="must be a transformers PreTrainedModel"):
        use_score(torch.nn.Linear(2, 2), "additive")
    bloom = BloomModel(BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="no layer that calls transformers' attention interface"):
        use_score(bloom, "additive")


def test_model_that_keeps_its_implementation_is_refused(monkeypatch):
    model = tiny("llama")
    monkeypatch.setattr(
        LlamaForCausalLM, "_can_set_attn_implementation", classmethod(lambda cls: False)
    )
    with pytest.raises(ValueError, match=r"does not let .* be changed: model.layers.0.self_attn"):
        use_score(model, "additive")
    assert model.config._attn_implementation == "eager"


def test_sizes_that_a_layer_does_not_tell():
    with pytest.raises(
        ValueError, match=r"number of heads of layer 'odd' \(Linear\); pass a Score"
    ):
        _ = Layer("odd", 0, torch.nn.Linear(2, 2)).heads


def test_wrong_sizes_are_named_by_the_score():
    fix = r"layer 'model.layers.0.self_attn': score does not fit 4 .*build Additive\(hidden=8, heads=4\)"
    for score in (Additive(8, 2), Additive(5, 4), Additive(5, 2)):
        model = tiny("llama")
        with pytest.raises(ValueError, match=fix):
            use_score(model, score)
        assert not hasattr(attention_layers(model)[0].module, "regard_score")
    inside = (
        r"build Projected\(Additive\(hidden=5, heads=4\), query_dim=8, key_dim=8, .*key_heads=2"
    )
    with pytest.raises(ValueError, match=inside):
        use_score(tiny("llama"), Projected(Additive(5, 2), 6, 8))


@pytest.mark.parametrize("name", SIZED)
@torch.no_grad()
def test_every_score_by_name(name):
    model = use_score(tiny("llama"), name)
    assert {x.module.regard_score.name for x in attention_layers(model)} == {name}
    assert real_rows("llama", model(**inputs("llama")).logits).isfinite().all()


def test_a_layer_that_does_not_tell_its_sizes_takes_any_score():
    odd = Layer("odd", 0, torch.nn.Linear(2, 2))
    score = Additive(3, 7)
    assert not odd.tells_sizes and check_made_score(score, odd) is score


def test_the_given_score_is_copied_into_each_layer():
    score = Additive(8, 4)
    model = use_score(tiny("llama"), score)
    ours = [layer.module.regard_score for layer in attention_layers(model)]
    assert ours[0] is not ours[1] and score not in ours
    assert torch.equal(ours[0].v, score.v)


def test_one_score_for_several_layers_is_refused():
    score = Additive(8, 4)
    with pytest.raises(ValueError, match="same Score object to several layers"):
        use_score(tiny("llama"), lambda layer: score)
    use_score(tiny("llama"), lambda layer: score if layer.index else None)


def test_config_of_a_model_with_scores_makes_a_fresh_model():
    first = use_score(tiny("llama"), "additive")
    model = use_score(LlamaForCausalLM(first.config), "gatv2", layers=0)
    assert list(model.config.regard_scores) == ["model.layers.0.self_attn"]
    assert len(first.config.regard_scores) == 2
    assert restore(model).config._attn_implementation == "sdpa"
    assert model(**inputs("llama")).logits.isfinite().all()


def test_scores_of_an_inner_model():
    model, given = tiny("llama"), inputs("llama")
    use_score(model, "additive", layers=0)
    use_score(model.model, "gatv2", layers=1)
    assert set(model.config.regard_scores) == {"layers.0.self_attn", "layers.1.self_attn"}
    assert model(**given).logits.isfinite().all()
    restore(model.model)
    with pytest.raises(ValueError, match="no scores to remove"):
        restore(model)
    use_score(model, "additive")
    assert model.config._attn_implementation == "regard"


def test_implementation_without_use_score_is_refused():
    config = tiny("llama").config
    config._attn_implementation = "regard"
    with pytest.raises(RuntimeError, match=r"LlamaAttention runs with .* but has no score"):
        LlamaForCausalLM(config)(**inputs("llama"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"indices": torch.zeros(1)}, NotImplementedError, "indices=, sparse attention"),
        ({"block_indices": torch.zeros(1)}, NotImplementedError, "blocks of keys"),
        ({"cache": object()}, NotImplementedError, "paged cache"),
        ({"cu_seq_lens_q": torch.zeros(2)}, NotImplementedError, "position_ids that start again"),
        ({"attention_mask": torch.ones(2, 5).bool()}, NotImplementedError, r"mask \(2, 5\)"),
        ({"attention_mask": torch.ones(2, 1, 5, 5).long()}, TypeError, "attention_mask.bool()"),
    ],
)
def test_what_would_change_the_result_is_refused(options, error, message):
    layer = attention_layers(use_score(tiny("llama"), "additive"))[0].module
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    with pytest.raises(error, match=message):
        attention_forward(layer, q, k, k, **{"attention_mask": None, **options})


def test_two_soft_caps_are_refused():
    model = use_score(tiny("gemma2"), SoftCapped(ScaledDot(), 5.0))
    with pytest.raises(ValueError, match=r"softcap=2.0, but the score has a soft cap of its own"):
        model(**inputs("gemma2"))


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_gradient_checkpointing_gives_the_same_gradients(family):
    model, given = use_score(tiny(family, dropout_rate=0.0), "additive").train(), inputs(family)
    found = []
    for _ in range(2):
        model.zero_grad()
        real_rows(family, model(**given, use_cache=False).logits).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
        model.gradient_checkpointing_enable()
    for name, grad in found[0].items():
        assert_close(found[1][name], grad, msg=lambda m, n=name: n + m)


@pytest.mark.skipif(
    torch.__version__ < (2, 9), reason="Dynamo of torch 2.6 cannot trace this transformers release"
)
@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.slow), "bert"])
def test_compiled_model_gives_the_same(family):
    model, given = use_score(tiny(family), "additive"), inputs(family)
    options = {"use_cache": False} if family == "llama" else {}
    with torch.no_grad():
        plain = model(**given, **options).logits
        torch.compiler.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert_close(compiled(**given, **options).logits, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@torch.no_grad()
def test_exported_model_gives_the_same():
    model, given = use_score(tiny("bert"), "additive"), inputs("bert")
    exported = torch.export.export(model, (), given).module()
    assert_close(exported(**given).logits, model(**given).logits)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_model_trains():
    model, given = use_score(tiny("bert"), "additive"), inputs("bert")
    score = attention_layers(model)[0].module.regard_score
    found = []
    for run in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        real_rows("bert", run(**given).logits).square().mean().backward()
        found.append(score.v.grad.clone())
    assert_close(found[1], found[0])


def test_autocast_and_bf16():
    model, given = use_score(tiny("llama"), "additive"), inputs("llama")
    with torch.no_grad():
        exact = real_rows("llama", model(**given).logits)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = real_rows("llama", model(**given).logits)
        model.to(torch.bfloat16)
        assert model.model.layers[0].self_attn.regard_score.v.dtype == torch.bfloat16
        half = real_rows("llama", model(**given).logits)
    size = float(exact.abs().max())
    for rough in (mixed, half):
        assert float((rough.float() - exact).abs().max()) < 0.1 * size
