"""What transformers' models compute with our scores, held against their own eager attention."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from regard import Additive, Projected
from regard.integrations.transformers import attention_layers, use_score

from .models import (
    DECODERS,
    ENCODER_DECODERS,
    FAMILIES,
    LENGTH,
    PADDED,
    WORDS,
    inputs,
    padding,
    real_rows,
    tiny,
    words,
)

TIGHT = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_dot_is_their_eager_result_forward_and_backward(family):
    model, given = tiny(family), inputs(family)
    weight, found = None, []
    for implementation in ("eager", "regard"):
        if implementation == "regard":
            use_score(model, "scaled_dot")
        model.zero_grad()
        out = real_rows(family, model(**given).logits)
        weight = torch.randn_like(out) if weight is None else weight
        (out * weight).sum().backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        found.append((out.detach(), grads))
    assert model.config._attn_implementation == "regard"
    assert_close(found[1][0], found[0][0], **TIGHT)
    assert found[0][1].keys() == found[1][1].keys()
    largest = max(float(grad.abs().max()) for grad in found[0][1].values())
    for name, grad in found[0][1].items():
        # A key's bias shifts all logits of a query alike: its gradient is 0 but for rounding.
        bias_of_keys = name.endswith(("k_proj.bias", "key.bias"))
        size = largest if bias_of_keys else float(grad.abs().max()) or 1.0
        assert_close(found[1][1][name] / size, grad / size, **TIGHT, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("family", FAMILIES)
def test_output_attentions_are_our_weights(family):
    model, given = tiny(family), inputs(family)
    with torch.no_grad():
        theirs = model(**given, output_attentions=True)
        use_score(model, "scaled_dot")
        ours = model(**given, output_attentions=True)
        use_score(model, "additive")
        added = model(**given, output_attentions=True)
    kinds = [name for name in ours if name.endswith("attentions") and len(ours[name])]
    assert sum(len(ours[name]) for name in kinds) == len(attention_layers(model))
    for name in kinds:
        for ours_one, theirs_one, added_one in zip(
            ours[name], theirs[name], added[name], strict=True
        ):
            real = torch.ones(ours_one.shape[::2], dtype=torch.bool)
            if ours_one.shape[-2] == LENGTH:
                real = padding(family).bool()
            rows = ours_one.transpose(1, 2)[real]
            assert_close(rows, theirs_one.transpose(1, 2)[real], **TIGHT)
            total = added_one.transpose(1, 2)[real].sum(-1)
            if family == "gpt_oss":  # the sink takes a share
                assert bool((total < 1).all()) and bool((total > 0).all())
            else:
                assert_close(total, torch.ones_like(total), **TIGHT)
            assert not torch.allclose(added_one, ours_one, atol=1e-3)


def test_no_weights_unless_asked_for():
    model = use_score(tiny("bert"), "additive")
    assert model(**inputs("bert")).attentions is None
    seen = []
    model.bert.encoder.layer[0].attention.self.register_forward_hook(
        lambda module, args, out: seen.append(out[1])
    )
    model(**inputs("bert"))
    assert seen == [None]


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_future_tokens_change_nothing(family, score):
    model, given = use_score(tiny(family), score), inputs(family)
    for mask in (given["attention_mask"], None):  # None leaves it to the causal flag
        before = model(input_ids=given["input_ids"], attention_mask=mask).logits
        changed = given["input_ids"].clone()
        changed[:, 6] = (changed[:, 6] + 1) % WORDS
        after = model(input_ids=changed, attention_mask=mask).logits
        real = slice(PADDED, 6)
        assert_close(after[:, real], before[:, real], rtol=0, atol=1e-6)
        assert not torch.allclose(after[:, 7], before[:, 7], atol=1e-4), "position 7 sees it"


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "vit"])
@torch.no_grad()
def test_padded_tokens_change_nothing(family, score):
    model, given = use_score(tiny(family), score), inputs(family)
    before = real_rows(family, model(**given).logits)
    hidden = padding(family) == 0
    changed = torch.where(hidden, (given["input_ids"] + 7) % WORDS, given["input_ids"])
    after = real_rows(family, model(**{**given, "input_ids": changed}).logits)
    assert_close(after, before, rtol=0, atol=1e-6)
    unpadded = {**given, "input_ids": changed, "attention_mask": torch.ones_like(hidden).long()}
    assert not torch.allclose(real_rows(family, model(**unpadded).logits), before, atol=1e-4)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_decoder_of_an_encoder_decoder_is_causal_and_its_cross_attention_is_not(family):
    model, given = use_score(tiny(family), "additive"), inputs(family)
    del given["attention_mask"]
    before = model(**given).logits
    later = given["decoder_input_ids"].clone()
    later[:, 3] = (later[:, 3] + 1) % WORDS
    after = model(**{**given, "decoder_input_ids": later}).logits
    assert_close(after[:, :3], before[:, :3], rtol=0, atol=1e-6)
    source = given["input_ids"].clone()
    source[:, -1] = (source[:, -1] + 1) % WORDS
    assert not torch.allclose(model(**{**given, "input_ids": source}).logits[:, 0], before[:, 0])


def test_rows_that_see_nothing_are_0_and_not_nan():
    model, given = use_score(tiny("llama"), "additive"), inputs("llama")
    seen = []
    model.model.layers[0].self_attn.o_proj.register_forward_hook(
        lambda module, args, out: seen.append(args[0])
    )
    out = model(**given)
    assert bool((seen[0][0, :PADDED] == 0).all())
    assert bool((seen[0][0, PADDED:] != 0).any())
    assert bool(out.logits.isfinite().all())
    real_rows("llama", out.logits).square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_additive_learns(family):
    model, given = use_score(tiny(family), "additive").train(), inputs(family)
    scores = {n: p for n, p in model.named_parameters() if "regard_score" in n}
    assert len(scores) == len(attention_layers(model))
    start = {name: p.detach().clone() for name, p in scores.items()}
    if family == "vit":
        given["labels"] = torch.tensor([0, 1])
    else:
        given["labels"] = words(length=5) if family in ENCODER_DECODERS else given["input_ids"]
        given.pop("decoder_input_ids", None)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(8):
        loss = model(**given).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(bool((p.grad != 0).any()) for p in scores.values())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert all(not torch.equal(p, start[name]) for name, p in scores.items())


def test_dropout_of_the_model_drops_weights_in_training_only():
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5}
    model, given = use_score(tiny("bert", **quiet), "additive"), inputs("bert")
    with torch.no_grad():
        assert torch.equal(model(**given).logits, model(**given).logits)
        model.train()
        assert not torch.allclose(model(**given).logits, model(**given).logits)


@torch.no_grad()
def test_only_the_chosen_layers_change():
    model, given = tiny("llama"), inputs("llama")
    before = model(**given, output_hidden_states=True).hidden_states
    use_score(model, "additive", layers=-1)
    after = model(**given, output_hidden_states=True).hidden_states
    assert_close(real_rows("llama", after[1]), real_rows("llama", before[1]), **TIGHT)
    assert not torch.allclose(real_rows("llama", after[2]), real_rows("llama", before[2]))
    use_score(model, "gatv2", layers="*.0.self_attn")
    names = [layer.module.regard_score.name for layer in attention_layers(model)]
    assert names == ["gatv2", "additive"]


def test_projected_score_for_another_hidden_width_on_grouped_heads():
    model, given = tiny("llama"), inputs("llama")

    def wide(layer):
        score = Additive(5, layer.heads, bias=True)
        dims = {"query_dim": layer.head_dim, "key_dim": layer.head_dim}
        return Projected(score, **dims, key_heads=layer.key_heads)

    use_score(model, wide)
    real_rows("llama", model(**given).logits).square().mean().backward()
    scores = [p for n, p in model.named_parameters() if "regard_score" in n]
    assert len(scores) == 2 * 4
    assert all(bool((p.grad != 0).any()) for p in scores)


@torch.no_grad()
def test_models_own_scaling_is_used_by_scaled_dot_alone():
    """Gemma 2 scales by query_pre_attn_scalar; an additive score has its own size."""
    given = inputs("gemma2")
    for score, same in (("scaled_dot", False), ("additive", True)):
        torch.manual_seed(0)
        model = use_score(tiny("gemma2"), score)
        first = real_rows("gemma2", model(**given).logits)
        for layer in attention_layers(model):
            layer.module.scaling *= 3
        assert torch.equal(real_rows("gemma2", model(**given).logits), first) == same


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@torch.no_grad()
def test_masks_with_4_dims_are_taken_as_they_are(dtype):
    """Floats are added, and their lowest number hides."""
    model, ids = tiny("llama"), words()
    visible = torch.ones(LENGTH, LENGTH).tril().bool() & (torch.rand(LENGTH, LENGTH) < 0.7)
    visible = (visible | torch.eye(LENGTH).bool()).expand(2, 1, LENGTH, LENGTH)
    floats = torch.where(visible, torch.randn(2, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min)
    if dtype == torch.bool:
        floats = torch.where(visible, 0.0, torch.finfo(torch.float32).min)
    theirs = model(input_ids=ids, attention_mask=floats).logits
    use_score(model, "scaled_dot")
    ours = model(input_ids=ids, attention_mask=visible if dtype == torch.bool else floats).logits
    assert_close(ours, theirs, **TIGHT)


@torch.no_grad()
def test_sequences_packed_by_position_ids_do_not_see_each_other():
    model, ids = use_score(tiny("llama"), "additive"), words(rows=1)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    packed = model(input_ids=ids, position_ids=places, use_cache=False).logits
    alone = model(input_ids=ids[:, 4:], use_cache=False).logits
    assert_close(packed[:, 4:], alone, **TIGHT)


@torch.no_grad()
def test_a_causal_model_asked_to_look_both_ways_does():
    model, ids = tiny("llama"), words()
    theirs = model(input_ids=ids, is_causal=False).logits
    use_score(model, "scaled_dot")
    assert_close(model(input_ids=ids, is_causal=False).logits, theirs, **TIGHT)
    assert not torch.allclose(model(input_ids=ids).logits, theirs, atol=1e-2)
