"""Families with something of their own: sub-configs, narrow values, shared layers, windows."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AlbertConfig,
    AlbertModel,
    AlignTextConfig,
    AlignTextModel,
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
    CLIPConfig,
    CLIPModel,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PegasusXConfig,
    PegasusXForConditionalGeneration,
    SplinterConfig,
    SplinterModel,
    SwinConfig,
    SwinModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from regard.integrations.transformers import attention_layers, load_pretrained, restore, use_score
from regard.integrations.transformers.forward import attention_forward

from .models import CONFIGS, GROUPED, SMALL, inputs, padding, words

VISION = {**CLIPConfig().vision_config.to_dict(), **SMALL, "image_size": 8, "patch_size": 4}


def clip():
    """Two towers, each with a config of its own; the text is causal."""
    config = CLIPConfig(text_config=SMALL, vision_config=VISION, projection_dim=16)
    given = {**inputs("bert"), "pixel_values": torch.randn(2, 3, 8, 8)}
    return CLIPModel(config), given, "logits_per_text"


def deepseek():
    """Queries and keys of width 12, values of width 8."""
    sizes = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    experts = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
    config = DeepseekV3Config(
        **SMALL, **sizes, **experts, v_head_dim=8, num_key_value_heads=4, moe_intermediate_size=16
    )
    return DeepseekV3ForCausalLM(config), inputs("llama"), "logits"


def llama4():
    """Chunked attention."""
    config = Llama4TextConfig(
        **GROUPED, intermediate_size_mlp=48, num_local_experts=2, attention_chunk_size=4
    )
    return Llama4ForCausalLM(config), inputs("llama"), "logits"


def albert():
    """One layer, used twice."""
    return AlbertModel(AlbertConfig(**SMALL)), inputs("bert"), "last_hidden_state"


def swin():
    """Windows as batches, and a relative position bias passed as a float mask."""
    config = SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return SwinModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}, "last_hidden_state"


def whisper():
    """Queries that are scaled before they are handed over."""
    config = WhisperConfig(
        vocab_size=40,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    given = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": words(length=5)}
    return WhisperForConditionalGeneration(config), given, "logits"


@pytest.mark.parametrize("make", [clip, deepseek, llama4, albert, swin, whisper])
@torch.no_grad()
def test_parity_saving_and_restoring(make, tmp_path):
    model, given, field = make()
    model.eval().set_attn_implementation("eager")
    real = slice(None)
    if "attention_mask" in given and field != "logits_per_text":
        real = given["attention_mask"].bool()
    theirs = model(**given)[field]
    use_score(model, "scaled_dot")
    assert_close(model(**given)[field][real], theirs[real], rtol=1e-5, atol=1e-5)
    use_score(model, "additive")
    added = model(**given)[field]
    assert not torch.allclose(added[real], theirs[real], atol=1e-6)
    model.save_pretrained(tmp_path)
    assert torch.equal(load_pretrained(tmp_path)(**given)[field], added)
    restore(model)
    assert torch.equal(model(**given)[field], theirs)


def test_sizes_of_narrow_values_and_shared_layers():
    layer = attention_layers(deepseek()[0])[0]
    assert (layer.heads, layer.key_heads, layer.head_dim) == (4, 4, 12)
    assert len(attention_layers(albert()[0])) == 1
    assert [x.name.partition(".")[0] for x in attention_layers(clip()[0])] == (
        ["text_model"] * 2 + ["vision_model"] * 2
    )
    assert padding("bert").sum() < padding("bert").numel(), "the inputs are padded"


EAGER_ONLY = {
    # Encoders whose layers do not say that they are not causal.
    "align": (AlignTextModel, AlignTextConfig, SMALL),
    "splinter": (SplinterModel, SplinterConfig, {**SMALL, "question_token_id": 3}),
    # Decoders whose layers say that they are not causal; sums with masks outside of their layers.
    "pegasus_x": (
        PegasusXForConditionalGeneration,
        PegasusXConfig,
        {**CONFIGS["bart"][2], "block_size": 4, "num_global_tokens": 2},
    ),
    "bigbird_pegasus": (
        BigBirdPegasusForConditionalGeneration,
        BigBirdPegasusConfig,
        {**CONFIGS["bart"][2], "attention_type": "original_full"},
    ),
}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", EAGER_ONLY)
@torch.no_grad()
def test_models_without_sdpa_keep_their_masks(name, padded):
    """Without a mask at hand the flag `is_causal` of their layers says nothing, or a wrong thing."""
    model_class, config_class, options = EAGER_ONLY[name]
    model = model_class(config_class(**options, attn_implementation="eager")).eval()
    given = inputs("bart" if "decoder_layers" in options else "bert")
    real = given["attention_mask"].bool()
    if not padded:
        del given["attention_mask"]
    theirs = model(**given)[0]
    ours = use_score(model, "scaled_dot")(**given)[0]
    rows = real if ours.shape[:2] == real.shape else slice(None)
    assert_close(ours[rows], theirs[rows], rtol=1e-4, atol=1e-4)
    assert_close(restore(model)(**given)[0], theirs, rtol=0, atol=0)


class Silent(torch.nn.Module):
    """A layer from elsewhere that does not say whether it is causal."""


def test_a_foreign_layer_without_mask_and_flag_is_refused():
    layer = Silent().eval()
    layer.regard_score = None
    query = torch.randn(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="does not say whether it is causal"):
        attention_forward(layer, query, query, query, None)
    layer.is_causal = False
    assert attention_forward(layer, query, query, query, None)[0].shape == (1, 3, 2, 4)
