"""Translate the masks of `torch.nn.MultiheadAttention`, where True means *ignore*.

This is the only place in the library where True does not mean *attend*. A boolean mask becomes a
`Mask`, a float mask a bias, which is added to the logits.

Shape legend: N batch, H query heads, L query length, S key length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.describe import describe
from regard.mask import Mask
from regard.nn.multihead.errors import WrongType, WrongValue
from regard.nn.multihead.layout import NO_BATCH, MultiheadSizes
from regard.precision import widened


def translate(
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    sizes: MultiheadSizes,
    added_keys: int,
) -> tuple[Mask | None, Tensor | None]:
    """Both masks as a `Mask` and a bias that broadcast to (N, H, L, S + added_keys).

    Torch's masks do not cover the added keys, which every query sees.
    """
    mask = bias = None
    for given in (_padding(key_padding_mask, sizes), _pairs(attn_mask, sizes)):
        if given is None:
            continue
        # Zero means "attend" in both kinds of mask: False is not ignored, 0.0 adds nothing.
        added = given.new_zeros(*given.shape[:-1], added_keys)
        whole = torch.cat([given, added], -1) if added_keys else given
        if given.dtype == torch.bool:
            part = Mask.dense(~whole)
            mask = part if mask is None else mask & part
        else:
            # Widened, because a sum of two masks in half precision would round, and could overflow
            # to -inf, which hides a key.
            bias = whole if bias is None else widened(bias) + widened(whole)
    return mask, bias


def real_keys(key_padding_mask: Tensor) -> Tensor:
    """True for the keys that a padding mask, boolean or float, does not hide."""
    if key_padding_mask.dtype == torch.bool:
        return ~key_padding_mask
    return key_padding_mask != -torch.inf


def _padding(mask: Tensor | None, sizes: MultiheadSizes) -> Tensor | None:
    """The key padding mask as (N, 1, 1, S)."""
    if mask is None:
        return None
    _check_kind(mask, "key_padding_mask", sizes.device)
    batch, _, _, keys, layout, _ = sizes
    batched = layout != NO_BATCH
    wanted = (batch, keys) if batched else (keys,)
    if mask.shape != wanted:
        raise WrongValue(
            f"key_padding_mask must be {wanted}, that is {'(batch, ' if batched else '('}key "
            f"length), got shape {tuple(mask.shape)}"
        )
    return mask.reshape(batch, 1, 1, keys)


def _pairs(mask: Tensor | None, sizes: MultiheadSizes) -> Tensor | None:
    """The attention mask as (L, S) or (N, H, L, S)."""
    if mask is None:
        return None
    _check_kind(mask, "attn_mask", sizes.device)
    batch, heads, queries, keys, _, _ = sizes
    if mask.shape == (queries, keys):
        return mask
    if mask.shape == (batch * heads, queries, keys):
        return mask.reshape(batch, heads, queries, keys)
    each = ""
    if mask.shape == (batch, queries, keys):
        each = "; one for each sequence is attn_mask.repeat_interleave(num_heads, 0)"
    elif mask.shape == (batch, heads, queries, keys):
        each = "; make it attn_mask.flatten(0, 1)"
    raise WrongValue(
        f"attn_mask must be {(queries, keys)}, that is (query length, key length), or "
        f"{(batch * heads, queries, keys)}, that is (batch * num_heads, query length, key length), "
        f"got shape {tuple(mask.shape)}{each}"
    )


def _check_kind(mask: Tensor, name: str, device: torch.device) -> None:
    if isinstance(mask, Mask):
        raise WrongType(
            f"{name} takes torch's masks, tensors with True = ignore, got {mask}; a Mask, where "
            "True = attend, is for regard.attention(..., mask=)"
        )
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise WrongType(
            f"{name} must be boolean with True = ignore, or floating point and added to the "
            f"logits, got {describe(mask)}. From integers with 1 = ignore use {name}.bool(), with "
            f"1 = attend {name} == 0"
        )
    if mask.device != device:
        raise WrongValue(
            f"{name} is on {mask.device} but query is on {device}; use {name}.to({str(device)!r})"
        )
