"""The ways to change the mask of a call, by name.

"causal"  no query sees a later key; with fewer queries than keys the last query is at the last key
"invert"  hidden keys are seen, and seen ones hidden
"fill"    a query that sees no key sees all of them, so that its softmax does not divide by zero
"level"   no bias lifts a key by more than 3 above the median bias of its query

Shape legend: `...` leading dims, Q queries, L keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.doctor.vitals.logits import HIDDEN_LOGIT
from regard.mask import Mask
from regard.problem import Problem

KINDS = ("causal", "invert", "fill", "level")
# e^3 = 20: a bias alone gives a key at most twenty times the weight of the median key.
LIFT = 3.0


def masked_call(kind: str, query: Tensor, key: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of SDPA with its mask changed."""
    mask, queries, keys = given.get("attn_mask"), query.shape[-2], key.shape[-2]
    if kind == "causal":
        # `is_causal` aligns at the top left, which is right only for as many queries as keys. It keeps
        # the fused kernels, which a dense mask may lose.
        if mask is None and queries == keys:
            return {**given, "is_causal": True}
        earlier = visible_before(queries, keys, query.device)
        if mask is None:
            return {**given, "attn_mask": earlier, "is_causal": False}
        hidden = mask & earlier if mask.dtype == torch.bool else hide(mask, ~earlier)
        return {**given, "attn_mask": hidden}
    if mask is None:
        return given
    if kind == "level":
        return given if mask.dtype == torch.bool else {**given, "attn_mask": levelled(mask)}
    if mask.dtype == torch.bool:
        turned = ~mask if kind == "invert" else mask | ~mask.any(-1, keepdim=True)
    elif kind == "invert":
        turned = hide(torch.zeros_like(mask), mask >= HIDDEN_LOGIT)
    else:
        turned = filled(mask)
    return {**given, "attn_mask": turned}


def masked_logits(kind: str, logits: Tensor) -> Tensor:
    """Logits (..., Q, L) of an eager softmax with their mask changed; "causal" and "fill" only."""
    if kind == "fill":
        return filled(logits)
    if kind != "causal":
        raise RuntimeError(
            f"the mask treatment {kind!r} of nn.MultiheadAttention works only without attention "
            "weights: pass need_weights=False, or undo the treatment"
        )
    return hide(logits, ~visible_before(logits.shape[-2], logits.shape[-1], logits.device))


def masked_problem(kind: str, problem: Problem) -> Problem:
    """A call of `regard.attention` with its mask changed.

    "fill" does nothing here: a query that sees no key gets zeros, not NaN.
    """
    if kind == "level" and problem.bias is not None:
        return problem.with_changed({"bias": levelled(problem.bias)})
    if kind == "causal":
        causal = Mask.causal()
        mask = causal if problem.mask is None else problem.mask & causal
        return problem.with_changed({"mask": mask})
    return problem


def levelled(bias: Tensor) -> Tensor:
    """The bias (..., Q, L), bounded to `LIFT` above its median over the keys that a query sees."""
    seen = torch.where(bias > HIDDEN_LOGIT, bias, torch.nan)
    middle = seen.nanmedian(-1, keepdim=True).values.nan_to_num()
    return torch.minimum(bias, middle + LIFT)


def visible_before(queries: int, keys: int, device: torch.device) -> Tensor:
    """(Q, L), True where a query sees a key: up to its own place, aligned at the bottom right."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def hide(logits: Tensor, hidden: Tensor) -> Tensor:
    """The logits, with -inf where `hidden`."""
    return torch.where(hidden, -torch.inf, logits)


def filled(logits: Tensor) -> Tensor:
    """The logits, with zeros in rows where every key is hidden."""
    empty = (logits < HIDDEN_LOGIT).all(-1, keepdim=True)
    return torch.where(empty, 0.0, logits)
