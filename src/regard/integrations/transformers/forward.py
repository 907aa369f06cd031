"""The attention function that transformers' models call, and its registration.

Shape legend: B batch, H query heads, K key heads (K divides H), Q query length, L key length,
D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from regard.attention import attend, attention
from regard.mask import Mask
from regard.scores import Score, named_score

# Tells whether the caller asked for weights; transformers has no public function for that.
try:
    from transformers.utils.output_capturing import _active_collector as COLLECTOR
except ImportError:  # releases that pass `output_attentions` down to every layer
    COLLECTOR = None

IMPLEMENTATION = "regard"
# The variant for models that only support eager attention: see `eager_forward`.
LIKE_EAGER = "regard_like_eager"

# The name under which an attention layer holds its score; None there is the model's own score.
SCORE = "regard_score"

# Arguments that models pass to kernels of their own. Ignoring them would give wrong results.
REFUSED = {
    "cache": "a paged cache (continuous batching)",
    "indices": "sparse attention over chosen keys",
    "block_indices": "sparse attention over chosen blocks of keys",
    "head_mask": "a head mask",
}


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the score of `module`.

    Args:
        module: the attention layer; `use_score` gave it its score.
        query: (B, H, Q, D), projected, with rotary positions where the model has them.
        key: (B, K, L, D), from the cache where there is one.
        value: (B, K, L, value width).
        attention_mask: (B or 1, H or 1, Q or 1, L), boolean with True = attend, or floats to add.
            None: only `is_causal` decides.
        dropout: of the weights, in training only.
        scaling: what the model multiplies dot products by; used by scaled dot alone.
        is_causal: whether no mask means causal; by default the flag of the layer.
        position_bias: (B or 1, H, Q, L) added to the logits, as in T5.
        softcap: bounds the logits, as in Gemma 2.
        s_aux: (H,) logits of an outcome without value, as in gpt-oss.
        kwargs: other arguments of the model. A sliding window is part of the mask already.

    Returns:
        (B, Q, H, value width), and the weights before dropout (B, H, Q, L) where the model was
        asked for `output_attentions`, else None.
    """
    _refuse_unsupported(module, query, attention_mask, kwargs)
    score = _layer_score(module)
    mask, bias = _mask_and_bias(attention_mask, position_bias)
    if attention_mask is None and query.shape[-2] > 1:
        causal = _says_causal(module) if is_causal is None else is_causal
        # Aligned at the first key: transformers leaves the mask out if the cache was empty, and a
        # static cache has free room for later keys at its end.
        mask = Mask.causal("top_left") if causal else None
    options = {
        "mask": mask,
        "bias": bias,
        "sink": s_aux,
        "temperature": _own_temperature(score, query, scaling),
        "softcap": softcap,
        "dropout": dropout if module.training else 0.0,
    }
    if _wants_weights(kwargs):
        result = attend(query, key, value, score, want=("weights",), **options)
        return result.output.transpose(1, 2).contiguous(), result.weights
    output = attention(query, key, value, score, **options)
    return output.transpose(1, 2).contiguous(), None


def eager_forward(
    module: nn.Module, *tensors: Any, is_causal: bool | None = None, **options
) -> tuple[Tensor, Tensor | None]:
    """`attention_forward` where no mask means that nothing is hidden, as in eager attention.

    In models without SDPA no code reads the flag `is_causal` of a layer, and it may be wrong: the
    decoder of Pegasus-X has False. Such models may also compute with their masks, so they get those
    of eager attention: floats, which are always given where something is hidden.
    """
    return attention_forward(module, *tensors, is_causal=False, **options)


def _says_causal(module: nn.Module) -> bool:
    """Whether a layer without a mask is causal.

    Layers of transformers without the attribute `is_causal` are encoders or cross attention (Mllama).
    For a layer of another package either guess could be silently wrong, so it is refused.
    """
    causal = getattr(module, "is_causal", None)
    if causal is None and not type(module).__module__.startswith("transformers."):
        raise NotImplementedError(
            f"{type(module).__name__} was given no mask and does not say whether it is causal: set "
            "its attribute is_causal to True or False"
        )
    return bool(causal)


def _layer_score(module: nn.Module) -> Score:
    """The score of a layer; scaled dot if `use_score` did not choose the layer."""
    if not hasattr(module, SCORE):
        raise RuntimeError(
            f"{type(module).__name__} runs with attn_implementation={IMPLEMENTATION!r} but has no "
            "score: call regard.integrations.transformers.use_score(model, ...) on a fresh model, "
            "or open a saved one with regard.integrations.transformers.load_pretrained(folder)"
        )
    return named_score(getattr(module, SCORE))


def _own_temperature(score: Score, query: Tensor, scaling: float | Tensor | None) -> float | Tensor:
    """The temperature that turns `<q, k> / sqrt(D)` into the model's `scaling * <q, k>`; else 1.

    A wrapped scaled dot keeps the model's scaling too: `SoftCapped(ScaledDot(), 30.0)`.
    """
    if score.name != "scaled_dot" or scaling is None:
        return 1.0
    factor = scaling * query.shape[-1] ** 0.5
    # The usual scaling differs from 1/sqrt(D) by rounding only: let the score apply its own.
    if isinstance(factor, float) and abs(factor - 1) < 1e-12:
        return 1.0
    return 1 / factor


def _mask_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None
) -> tuple[Mask | None, Tensor | None]:
    """A mask and an additive bias from what the model passes.

    In a float mask the lowest number of the dtype means "hidden". It becomes part of the `Mask`, so
    that a row without a visible key gives 0 and not the mean of all values.
    """
    if attention_mask is None:
        return None, position_bias
    if attention_mask.dtype == torch.bool:
        return Mask.dense(attention_mask), position_bias
    hidden = attention_mask <= torch.finfo(attention_mask.dtype).min / 2
    bias = attention_mask.masked_fill(hidden, 0)
    return Mask.dense(~hidden), bias if position_bias is None else bias + position_bias


def _wants_weights(kwargs: dict) -> bool:
    """Whether the model was asked for `output_attentions`.

    Some models (GPT-2) do not pass the argument on; then the recorder of their outputs has it.
    """
    if kwargs.get("output_attentions"):
        return True
    if COLLECTOR is None:
        return False
    # A compiler cannot read it, unless it also traces the call that started the recording.
    if torch.compiler.is_compiling() and not getattr(COLLECTOR, "compiling", False):
        return False
    recorded = COLLECTOR.get()
    return recorded is not None and any(name.endswith("attentions") for name in recorded)


def _refuse_unsupported(
    module: nn.Module, query: Tensor, attention_mask: Tensor | None, kwargs: dict
) -> None:
    """Refuse arguments that would change the result if they were ignored."""
    where = type(module).__name__
    for name, meaning in REFUSED.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"{where} passes {name}=, {meaning}, which attn_implementation="
                f"{IMPLEMENTATION!r} does not support; use another implementation for this model"
            )
    if query.ndim != 4:
        raise NotImplementedError(
            f"{where} passes a query of shape {tuple(query.shape)}; "
            f"attn_implementation={IMPLEMENTATION!r} takes (batch, heads, length, dim)"
        )
    if attention_mask is None:
        if kwargs.get("cu_seq_lens_q") is not None:
            raise NotImplementedError(
                f"{where} packs sequences by cu_seq_lens_q= without a mask, as flash attention "
                "takes them; pass position_ids that start again at 0 for each sequence instead"
            )
        return
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
        given = tuple(getattr(attention_mask, "shape", ())) or type(attention_mask).__name__
        raise NotImplementedError(
            f"{where} passes an attention_mask {given}; attn_implementation={IMPLEMENTATION!r} "
            "takes (batch, heads or 1, queries, keys), as transformers' own mask functions make"
        )
    if not (attention_mask.dtype == torch.bool or attention_mask.is_floating_point()):
        raise TypeError(
            f"attention_mask with 4 dims must be boolean, True = attend, or floats to add, got "
            f"{attention_mask.dtype}; use attention_mask.bool()"
        )


def register() -> None:
    """Register the attention functions with mask functions; transformers makes no mask without one."""
    AttentionInterface.register(IMPLEMENTATION, attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
    AttentionInterface.register(LIKE_EAGER, eager_forward)
    AttentionMaskInterface.register(LIKE_EAGER, eager_mask)


register()
