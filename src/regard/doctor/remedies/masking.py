"""What can be done to the mask of a call, by name.

"causal"  no query sees a later key; with fewer queries than keys the last ones are at the end
"invert"  hidden keys are seen, and seen ones hidden
"fill"    a query that sees no key sees all of them, so that nothing is divided by zero
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
# Twenty times the weight of the median key, by bias alone.
LIFT = 3.0


def masked_call(kind: str, query: Tensor, key: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of SDPA with another mask."""
    mask, queries, keys = given.get("attn_mask"), query.shape[-2], key.shape[-2]
    if kind == "causal":
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
    """Logits (..., Q, L) of an eager softmax with more, or fewer, hidden; only the first and third kind."""
    if kind == "fill":
        return filled(logits)
    if kind != "causal":
        raise RuntimeError(
            f"the mask of this call is treated ({kind}), which nn.MultiheadAttention allows where it "
            "is not asked for weights: pass need_weights=False, or undo the treatment"
        )
    return hide(logits, ~visible_before(logits.shape[-2], logits.shape[-1], logits.device))


def masked_problem(kind: str, problem: Problem) -> Problem:
    """A call of regard's own, where queries that see nothing get zeros anyway."""
    if kind == "level" and problem.bias is not None:
        return problem.with_changed({"bias": levelled(problem.bias)})
    if kind == "causal":
        causal = Mask.causal()
        mask = causal if problem.mask is None else problem.mask & causal
        return problem.with_changed({"mask": mask})
    return problem


def levelled(bias: Tensor) -> Tensor:
    """A bias (..., Q, L) at most `LIFT` above its median over the keys that a query sees."""
    seen = torch.where(bias > HIDDEN_LOGIT, bias, torch.nan)
    middle = seen.nanmedian(-1, keepdim=True).values.nan_to_num()
    return torch.minimum(bias, middle + LIFT)


def visible_before(queries: int, keys: int, device: torch.device) -> Tensor:
    """(Q, L), True up to the own place, which is counted from the end."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def hide(logits: Tensor, hidden: Tensor) -> Tensor:
    """-inf where hidden."""
    return torch.where(hidden, -torch.inf, logits)


def filled(logits: Tensor) -> Tensor:
    """Rows in which all is hidden as zeros."""
    empty = (logits < HIDDEN_LOGIT).all(-1, keepdim=True)
    return torch.where(empty, 0.0, logits)
