"""Healthy models of transformers, small and with random weights, from their own configurations."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .models import LENGTH, WORDS
from .patient import Patient, tokens, vectors

SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}


class HuggingFace(Patient):
    """Words with padding at the end of one sequence, and as labels."""

    needs = "transformers"
    kind: ClassVar[str]
    options: ClassVar[dict[str, Any]]

    def build(self) -> nn.Module:
        import transformers

        model_class = getattr(transformers, self.kind)
        return model_class(model_class.config_class(**self.options)).train()

    def batch(self, step: int) -> dict[str, Any]:
        batch = {"input_ids": tokens(step, WORDS, (4, LENGTH), 3)}
        batch["attention_mask"] = torch.ones(4, LENGTH, dtype=torch.long)
        batch["attention_mask"][0, -9:] = 0
        return batch


class GPT2(HuggingFace):
    """GPT-2."""

    kind, options = "GPT2LMHeadModel", {**SMALL, "n_positions": 64}


class LeftPadded(GPT2):
    """GPT-2 with padding at the left, as for generation."""

    def batch(self, step: int) -> dict[str, Any]:
        batch = super().batch(step)
        batch["attention_mask"] = batch["attention_mask"].flip(1)
        return batch


class Llama(HuggingFace):
    """Llama with grouped heads."""

    kind, options = "LlamaForCausalLM", GROUPED


class Bert(HuggingFace):
    """BERT."""

    kind, options = "BertModel", {**SMALL, "max_position_embeddings": 64}


class T5(HuggingFace):
    """T5: no scale, relative bias, encoder, decoder and cross-attention."""

    kind = "T5ForConditionalGeneration"
    options: ClassVar[dict[str, Any]] = {
        "vocab_size": WORDS,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 96,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    }

    def batch(self, step: int) -> dict[str, Any]:
        return {**super().batch(step), "decoder_input_ids": tokens(step + 500, WORDS, (4, 20), 3)}


class Pictures(HuggingFace):
    """Given pictures."""

    def batch(self, step: int) -> dict[str, Any]:
        return {"pixel_values": vectors(step, 2, 3, 16, 16)}

    def loss(self, output: Any, step: int) -> Tensor:
        return output[0].float().square().mean()


class ViT(Pictures):
    """A vision transformer, whose learned positions start small."""

    kind = "ViTModel"
    options: ClassVar[dict[str, Any]] = {**SMALL, "image_size": 16, "patch_size": 4}


class Swin(Pictures):
    """Swin V2: cosine, windows, and a bias from a small network."""

    kind = "Swinv2Model"
    options: ClassVar[dict[str, Any]] = {
        "image_size": 16,
        "patch_size": 2,
        "embed_dim": 16,
        "depths": [2, 1],
        "num_heads": [2, 4],
        "window_size": 4,
    }


class Gemma2(HuggingFace):
    """Gemma 2: soft cap and windows."""

    kind = "Gemma2ForCausalLM"
    options: ClassVar[dict[str, Any]] = {**GROUPED, "sliding_window": 8}


class GptOss(HuggingFace):
    """gpt-oss: learned sinks and windows."""

    kind = "GptOssForCausalLM"
    options: ClassVar[dict[str, Any]] = {
        **GROUPED,
        "sliding_window": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    }


class Deberta(HuggingFace):
    """DeBERTa: content to position and back."""

    kind = "DebertaV2Model"
    options: ClassVar[dict[str, Any]] = {
        **SMALL,
        "max_position_embeddings": 64,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
    }


class Whisper(HuggingFace):
    """Whisper: sinusoids of amplitude 1 beside sound whose fresh convolutions say next to nothing."""

    kind = "WhisperForConditionalGeneration"
    options: ClassVar[dict[str, Any]] = {
        "vocab_size": WORDS,
        "d_model": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96,
        "num_mel_bins": 20,
        "max_source_positions": LENGTH,
        "max_target_positions": LENGTH,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }

    def batch(self, step: int) -> dict[str, Any]:
        sound = vectors(step, 4, 20, 2 * LENGTH)
        return {"input_features": sound, "labels": tokens(step, WORDS, (4, LENGTH // 2), 3)}
