"""Attention of one query for each sequence over a prepared memory, in a dozen operations or two kernels.

A small step is bound by Python and kernel launches, not by arithmetic. What `regard.attend` checks,
zeroes and plans at each call was done once in `prepare`: padding is 0, and the masks are ready. The
rest is the textbook formula; for pairwise scores it is what engine `plain` computes, and on a GPU what
`kernels.py` does.

Shape legend: B batch, H heads, K key heads, L keys, D width of queries, V value width, E hidden
width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.activations import ACTIVATIONS
from regard.checks import check_lowered
from regard.engines.plain import FEW_TANH_OF_ONE_QUERY, weighted_sum
from regard.forms import Inner, InnerKey, KeySide, PairwiseKey, key_tensor
from regard.nn.seq2seq import kernels
from regard.nn.seq2seq.memory import AttentionResult, AttentionState, Memory
from regard.observed import is_observed
from regard.precision import HALF, widened, working_dtype
from regard.scores import PairwiseScore, Projected, Score
from regard.scores.base import is_as_written

# The largest number of pairs times hidden units that is built on a GPU: 16 MiB in single precision, which
# it writes and reads in the time of a few launches. A loop keeps that much for each step until backward.
# Above it, kernels that never build the tensor are faster.
FEW_PRODUCTS_ON_GPU = 2**22
# Activations that are one operation in PyTorch.
ONE_OPERATION = ("tanh", "leaky_relu")
# The methods of `Projected` as written there: the short way repeats what they compute, so it is not taken
# if a patch replaces one.
PROJECTING = {
    name: getattr(Projected, name)
    for name in ("join", "project_query", "query", "query_at", "query_for")
}


class StepForm(NamedTuple):
    """The pairwise form of a step: a (B, H or 1, 1, E), b (B, K, L, E), v (H, E) and the activation."""

    a: Tensor
    b: Tensor
    v: Tensor
    activation: str
    parameter: float


def short_way(query: Tensor, memory: Memory, score: Score, engine: str | None) -> str | None:
    """The short way that queries (B, D) may take, with the same result: "kernels", "plain", or None.

    Calls that are observed, large, or to be refused with an error go through `regard.attend`. Modes
    and profilers do not count as observers of the plain way: they see its PyTorch operations.
    """
    key, value = key_tensor(memory.side), memory.value
    # First: under torch.compile each attribute read below would become a guard.
    if is_observed((query, key, value), keeps_operations=True):
        return None
    visible, hidden = memory.visible, memory.hidden
    if visible is not None and (
        hidden is None or hidden.by is not visible or memory.zeroed is not visible
    ):
        return None
    if value.is_inference() and torch.is_grad_enabled():  # autograd cannot save inference tensors
        return None
    if score.softcap is not None or not _is_one_operation(score):
        return None
    if not _fit(query, key, value, score):
        return None
    if isinstance(memory.side, InnerKey):
        # On a CPU products in half precision take longer than the copy to fp32 that engines make.
        slow = key.dtype in HALF and key.device.type == "cpu"
        return "plain" if engine is None and not slow else None
    if engine in (None, "triton") and kernels.serve(memory, query):
        return "kernels"
    heads = score.heads or 1
    products = key.numel() if key.shape[1] == heads else key.numel() * heads
    few = FEW_TANH_OF_ONE_QUERY if key.device.type == "cpu" else FEW_PRODUCTS_ON_GPU
    return "plain" if engine in (None, "plain") and products <= few else None


def attend_once(
    way: str, query: Tensor, side: KeySide, memory: Memory, state: AttentionState, score: Score
) -> AttentionResult | None:
    """The result for queries (B, D) by a way that `short_way` returned.

    `side` is the memory's keys with the terms of this step. None if the score is lowered to a form
    that other engines run better.
    """
    hidden = None if memory.visible is None else memory.hidden
    if hidden is not None and torch.is_grad_enabled():
        # NaN in a query that sees nothing, times a gradient of 0, would reach the parameters.
        query = query.masked_fill(hidden.whole, 0)
    form = _step_form(query, side, score)
    if way == "kernels" and isinstance(form, StepForm):
        return kernels.attend_in_kernels(*form, memory, state)
    logits = _logits(form, score)
    if logits is None:
        return None
    dtype = working_dtype(logits.dtype)
    if hidden is None:
        weights = torch.softmax(logits, -1, dtype=dtype)
    else:
        logits = torch.where(hidden.keys, hidden.logit, logits)
        weights = torch.softmax(logits, -1, dtype=dtype).masked_fill(hidden.keys, 0)
    value = memory.value.squeeze(1)
    if weights.dtype == value.dtype:
        context = torch.bmm(weights, value)
    elif isinstance(form, Inner):  # as its logits, in the dtype of the inputs
        context = torch.bmm(weights.to(value.dtype), value)
    else:
        context = weighted_sum(weights, value)
    state = AttentionState(weights, state.total + weights)
    # A copy for the caller, who may change it: backward reads the original.
    return AttentionResult(context.flatten(1), weights.clone(), state)


def _is_one_operation(score: Score) -> bool:
    """Whether the activation of a pairwise score is one operation; True for other scores."""
    inner = score.inner
    while isinstance(inner, Projected):
        inner = inner.score.inner
    return not isinstance(inner, PairwiseScore) or inner.activation in ONE_OPERATION


def _fit(query: Tensor, key: Tensor, value: Tensor, score: Score) -> bool:
    """Whether shapes, dtypes and devices fit; if not, `regard.attend` raises the error."""
    if key.ndim != 4:
        return False
    batch, key_heads, keys, width = key.shape
    if (
        value.ndim != 4
        or value.shape[:3] != (batch, 1, keys)
        or key_heads not in (1, score.heads or 1)
    ):
        return False
    dtype, device = query.dtype, query.device
    if not (key.dtype == value.dtype == dtype and key.device == value.device == device):
        return False
    return batch * keys * width > 0 and _are_alike(score, dtype, device)


def _are_alike(module: nn.Module, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether all parameters have this dtype and device.

    Not by `parameters()`, which takes as long as two operations of the step.
    """
    for x in module._parameters.values():
        if x is not None and (x.dtype != dtype or x.device != device):
            return False
    for part in module._modules.values():
        if part is not None and not _are_alike(part, dtype, device):
            return False
    return True


def _step_form(query: Tensor, side: KeySide, score: Score) -> StepForm | Inner:
    """The form of queries (B, D) and lowered keys."""
    given = score
    if type(score) is Projected and is_as_written(score, PROJECTING):
        # One matrix product for all sequences, not one for each.
        rows = linear(query, score.query_weight, score.query_bias)
        query, score = rows.view(rows.shape[0], score.heads, 1, -1), score.score
    else:
        query = query[:, None, None]
    if isinstance(score, PairwiseScore) and isinstance(side, PairwiseKey):
        v = score.bare()
        if v is not None and query.shape[1] in (1, len(v)) and query.shape[3] == side.b.shape[3]:
            return StepForm(query, side.b, v, score.activation, score.parameter)
    # As `attend` lowers queries, also if a score overrides `query_for`.
    origin = side.origin if isinstance(side, InnerKey) else None
    lowered = score.query(query) if origin is None else score.query_at(query, origin)
    check_lowered(side, lowered, given)
    form = score.join(lowered, side)
    if isinstance(form, Inner):
        return form
    return StepForm(form.a, form.b, form.v.squeeze(-2), form.activation, form.parameter)


def _logits(form: StepForm | Inner, score: Score) -> Tensor | None:
    """The logits (B, H, L) in working precision, or None; see `attend_once`."""
    if isinstance(form, Inner):
        return _inner_logits(form) if _is_usual(form, score.heads or 1) else None
    return _pairwise_logits(*form)


def _pairwise_logits(
    a: Tensor, b: Tensor, v: Tensor, activation: str, parameter: float
) -> Tensor | None:
    """`sum_e v_e f(a_e + b_e)` of a (B, H, 1, E), b (B, K, L, E) and v (H, E)."""
    if activation not in ONE_OPERATION or v.ndim != 2:
        return None
    if not a.dtype == b.dtype == v.dtype or b.dtype in HALF:
        a, v = widened(a), widened(v)
        if a.dtype != v.dtype or (b.dtype not in HALF and b.dtype != a.dtype):
            return None
    # The dim of the single query broadcasts to that of the keys.
    units = ACTIVATIONS[activation].value(a + b, parameter)
    if v.shape[0] == 1:
        return units @ v.reshape(-1)
    return (units @ v.unsqueeze(-1)).squeeze(-1)


def _is_usual(form: Inner, heads: int) -> bool:
    """Whether queries have as many heads as the score, and all tensors have one dtype."""
    beta, dtype = form.beta, form.psi.dtype
    alike = form.phi.dtype == dtype and (beta is None or beta.dtype == dtype)
    return alike and form.phi.shape[1] == heads


def _inner_logits(form: Inner) -> Tensor:
    """Logits of inner products, without alpha: a term of the query alone does not change weights."""
    phi, psi = form.phi if form.scale == 1 else form.phi * form.scale, form.psi
    # Heads that share keys become rows of one product, which needs no copies of the keys.
    shared = psi.shape[1] == 1
    logits = phi.squeeze(2) @ psi.squeeze(1).mT if shared else (phi @ psi.mT).squeeze(2)
    return logits if form.beta is None else logits + form.beta
