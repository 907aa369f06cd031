"""Small, randomly initialised models of several families, and inputs with padding for each."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

WORDS, LENGTH, PADDED = 40, 9, 3
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,  # logits far enough apart for a mistake to show
    **SPECIAL,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
CONFIGS = {
    "llama": (LlamaForCausalLM, LlamaConfig, GROUPED),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {
            **GROUPED,
            "sliding_window": 4,
            "query_pre_attn_scalar": 5,
            "attn_logit_softcapping": 2.0,
        },
    ),
    "gpt_oss": (
        GptOssForCausalLM,
        GptOssConfig,
        {**GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config,
        {**SMALL, "n_positions": 64, "n_inner": 48, "scale_attn_by_inverse_layer_idx": True},
    ),
    "bert": (BertForMaskedLM, BertConfig, {**SMALL, "max_position_embeddings": 64}),
    "t5": (
        T5ForConditionalGeneration,
        T5Config,
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            **SPECIAL,
        },
    ),
    "bart": (
        BartForConditionalGeneration,
        BartConfig,
        {
            "vocab_size": WORDS,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
            "init_std": 0.3,
            **SPECIAL,
        },
    ),
    "vit": (
        ViTForImageClassification,
        ViTConfig,
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 8,
            "patch_size": 4,
            "num_labels": 3,
        },
    ),
}
FAMILIES = tuple(CONFIGS)
DECODERS = ("llama", "gemma2", "gpt_oss", "gpt2")
ENCODER_DECODERS = ("t5", "bart")


def tiny(family: str, **changes) -> PreTrainedModel:
    """A model in evaluation mode with their own eager attention."""
    model_class, config_class, options = CONFIGS[family]
    model = model_class(config_class(**{**options, "attn_implementation": "eager", **changes}))
    return model.eval()


def words(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(3, WORDS, (rows, length))


def padding(family: str) -> Tensor:
    """Which tokens are real: decoders are padded on the left, encoders on the right."""
    real = torch.ones(2, LENGTH, dtype=torch.long)
    if family in DECODERS:
        real[0, :PADDED] = 0
    else:
        real[0, -PADDED:] = 0
    return real


def inputs(family: str) -> dict[str, Tensor]:
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    given = {"input_ids": words(), "attention_mask": padding(family)}
    if family in ENCODER_DECODERS:
        given["decoder_input_ids"] = words(length=5)
    return given


def real_rows(family: str, logits: Tensor) -> Tensor:
    """The logits of real positions; transformers says nothing of the others."""
    if family == "vit" or family in ENCODER_DECODERS:
        return logits
    return logits[padding(family).bool()]
