"""Hosts of transformers: an attention function with a fault is registered, as users register theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .faults import attend

NAME = "regard_laws_tests"
DECODER = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {
        "vocab_size": 40, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, **DECODER,
    },
    "BertForMaskedLM": SMALL,
    "T5ForConditionalGeneration": {
        "vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
        "num_decoder_layers": 2, "num_heads": 4, "decoder_start_token_id": 0,
    },
    "ViTModel": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 8,
    },
    "LlamaForCausalLM": {**SMALL, "num_key_value_heads": 2, **DECODER},
    "MistralForCausalLM": {**SMALL, "num_key_value_heads": 2, "sliding_window": 4, **DECODER},
    "BartForConditionalGeneration": {
        "vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48, "max_position_embeddings": 64, "decoder_start_token_id": 2, **DECODER,
    },
    "RobertaModel": {**SMALL, **DECODER},
    "GPTNeoXForCausalLM": {**SMALL, **DECODER},
    "OPTForCausalLM": {
        "vocab_size": 40, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 32, **DECODER,
    },
}  # fmt: skip


def function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[Tensor, None]:
    """What a user registers; the fault is an attribute of the module."""
    fault = getattr(module, "fault", "")
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    causal, real, bias = masks_of(module, query, key, attention_mask)
    bias = (
        bias
        if more.get("position_bias") is None
        else more["position_bias"] + (0 if bias is None else bias)
    )
    out = attend(query, key, value, causal=causal, real=real, fault=fault, bias=bias, scale=scaling)
    if fault == "result-by-view":
        b, h, t, d = out.shape
        return out.reshape(b, t, h, d), None
    return out.transpose(1, 2).contiguous(), None


def masks_of(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None
) -> tuple[bool, Tensor | None, Tensor | None]:
    """Whether it is causal, which keys are real, and what else is added, from the mask of transformers."""
    causal = bool(getattr(module, "is_causal", False)) and query.shape[2] > 1
    if mask is None:
        return causal, None, None
    if mask.dtype != torch.bool:
        return False, None, mask
    # The last query of a causal mask sees every key that is real; a window needs the mask itself.
    own = (
        torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        if causal
        else torch.tensor(True)
    )
    real = mask[:, 0, -1]
    if bool((mask == (own & real[:, None, None, :])).all()):
        return causal, real, None
    return False, None, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, function)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def built(kind: str, faults: Mapping[int, str], inside: str = "", **more: Any) -> nn.Module:
    """A model of transformers, with faults in its attention modules whose path matches, in their order."""
    import transformers

    register()
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**{**OPTIONS[kind], **more})
    config._attn_implementation = NAME if faults else "sdpa"
    model = model_class(config)
    for index, module in enumerate(x for name, x in attentions(model) if re.search(inside, name)):
        module.fault = faults.get(index, "")
    return model


def attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that call the attention function, in the order of the forward pass."""
    return [(name, x) for name, x in model.named_modules() if hasattr(x, "is_causal")]
