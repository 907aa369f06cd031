"""Families with something of their own: sub-configs, narrow values, shared layers, windows."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AlbertConfig,
    AlbertModel,
    CLIPConfig,
    CLIPModel,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    SwinConfig,
    SwinModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from regard.integrations.transformers import attention_layers, load, restore, use_score

from .models import GROUPED, SMALL, inputs, padding, words

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
    assert torch.equal(load(tmp_path)(**given)[field], added)
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
