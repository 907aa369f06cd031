"""From the arguments of a call to a `Problem`: check them, zero padding, lower the score."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.arguments import autocast_enabled
from regard.checks import (
    check_bias,
    check_heads,
    check_lowered,
    check_mask,
    check_one_softcap,
    check_options,
    check_parameters,
    check_sink,
    check_temperature,
    check_tensors,
)
from regard.engines import plan
from regard.forms import Form, InnerKey, KeySide, PairwiseKey, key_tensor
from regard.mask import Mask
from regard.observed import KEY_CHANGES
from regard.problem import Problem, broadcast_lead, hide_padding, hide_unpaired
from regard.scores import Score, named_score


def prepare(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: Score | str | None,
    mask: Mask | Tensor | None,
    bias: Tensor | None,
    sink: Tensor | None,
    temperature: float | Tensor,
    softcap: float | None,
    dropout: float,
    error: float | None,
    engine: str | None,
    want: frozenset[str],
) -> tuple[Problem, bool]:
    """Check everything and lower the score; also say whether a head dim was inserted."""
    autocast = autocast_enabled(query)
    key, lowered = unwrap(key)
    check_tensors(query, key, value, autocast=autocast, lowered=lowered is not None)
    given = softcap is not None or error is not None or isinstance(dropout, Tensor)
    if given or dropout != 0.0:
        check_options(softcap, dropout, error)
    chosen = named_score(score)
    if autocast:
        query, key, value = cast(query, key, value)
    ndim = query.ndim
    squeeze = ndim <= 3
    if squeeze:
        query, key, value = query.unsqueeze(-3), key.unsqueeze(-3), value.unsqueeze(-3)
    if chosen.softcap is not None:
        check_one_softcap(chosen.softcap, softcap)
        softcap = chosen.softcap
    if score is not None and not isinstance(score, str):
        check_parameters(chosen, query, autocast)
    real = None
    if mask is not None or bias is not None:
        mask = None if mask is None else check_mask(mask, query, key, value, ndim)
        if mask is not None and mask.hides_nothing(query.shape[-2], key.shape[-2]):
            mask = None
        bias = None if bias is None else check_bias(bias, query, key, value, ndim)
        query, key, value, real = hide_padding(query, key, value, mask, bias)
    if 0 in query.shape[:-1] or 0 in key.shape[:-1]:
        query, key, value = hide_unpaired(query, key, value)
    lead = broadcast_lead(query, key, value)
    form = lower(chosen, query, changed_keys(key), lowered, real)
    full = (*lead, form.query.shape[-3], form.query.shape[-2], form.key.shape[-2])
    check_one_head(chosen, full[-3], ndim)
    if mask is not None or bias is not None:
        check_heads(mask, bias, full)
    if sink is not None:
        sink = check_sink(sink, full[-3], value.device)
    given = isinstance(temperature, Tensor) or temperature != 1.0 or temperature is True
    temperature = check_temperature(temperature, ndim, full, value.device) if given else 1.0
    error = plan.allowed_error(error, engine)
    problem = Problem(
        form, value, mask, bias, sink, temperature, softcap, dropout, want, lead, error, key.shape
    )
    if problem.hard and sink is not None:
        raise ValueError("temperature 0 is a hard look-up: it has no use for a sink")
    return problem, squeeze


def check_one_head(score: Score, heads: int, ndim: int) -> None:
    """Refuse a score that makes several heads of inputs without a head dim."""
    if ndim <= 3 and heads != 1:
        raise ValueError(
            f"{type(score).__name__} makes {heads} heads, but query with {ndim} dims has "
            "no head dim; use query.unsqueeze(-3), and the same for key and value"
        )


def unwrap(key: Tensor | KeySide) -> tuple[Tensor, KeySide | None]:
    """The tensor that carries the keys, and the lowered side it came from, if any."""
    if isinstance(key, (InnerKey, PairwiseKey)):
        return key_tensor(key), key
    return key, None


def changed_keys(key: Tensor) -> Tensor:
    """The keys of one call after all `KEY_CHANGES`."""
    for change in KEY_CHANGES:
        key = change(key)
    return key


def lower(
    score: Score, query: Tensor, key: Tensor, lowered: KeySide | None, real: Tensor | None
) -> Form:
    """Lower both sides, or the query alone where the keys were `lowered` before.

    `key` is then what `lowered` holds, with padding already zeroed where `real` says so.
    """
    if lowered is None:
        return score.lower(query, key, real)
    if isinstance(lowered, PairwiseKey):
        side = score.query(query)
        check_lowered(lowered, side, score)
        return score.join(side, PairwiseKey(key))
    beta, origin = lowered.beta, lowered.origin
    if key.ndim > lowered.psi.ndim:  # a head dim was inserted
        beta = None if beta is None else beta.unsqueeze(-2)
        origin = None if origin is None else origin.unsqueeze(-3)
    side = score.query(query) if origin is None else score.query_at(query, origin)
    check_lowered(lowered, side, score)
    if beta is not None and real is not None:
        if real.ndim > 1 and real.shape[-2] > 1 and real.shape[-2] != beta.shape[-2]:
            real = real.repeat_interleave(beta.shape[-2] // real.shape[-2], -2)
        beta = torch.where(real, beta, 0)
    return score.join(side, InnerKey(key, beta))


def cast(query: Tensor, *others: Tensor) -> list[Tensor]:
    """All in the dtype of autocast; fp64 stays as it is."""
    dtype = torch.get_autocast_dtype(query.device.type)
    return [x if query.dtype == torch.float64 else x.to(dtype) for x in (query, *others)]
