"""Turns the arguments of a call into a `Problem`: checks them, zeroes padding, lowers the score.

Shape legend: `*` leading dims (broadcast), H query heads, Q query length, L key length.
"""

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
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    dropout: float = 0.0,
    error: float | None = None,
    engine: str | None = None,
    want: frozenset[str] = frozenset(),
) -> tuple[Problem, bool]:
    """The checked and lowered call, and whether a head dim was inserted.

    The arguments are those of `regard.attention`. Options that have their default are not checked at all: a
    small call on the CPU takes some 50 microseconds, and each check adds to that.
    """
    autocast = autocast_enabled(query)
    key, lowered = unwrap(key)
    check_tensors(query, key, value, autocast=autocast, lowered=lowered is not None)
    given = softcap is not None or error is not None or isinstance(dropout, Tensor)
    if given or dropout != 0.0:
        check_options(softcap, dropout, error)
    chosen = named_score(score)
    if autocast:
        query, key, value = cast(query, key, value)
    ndim, squeeze = query.ndim, query.ndim <= 3
    if squeeze:
        query, key, value = query.unsqueeze(-3), key.unsqueeze(-3), value.unsqueeze(-3)
    if chosen.softcap is not None:
        softcap = check_one_softcap(chosen.softcap, softcap)
    if score is not None and not isinstance(score, str):
        check_parameters(chosen, query, autocast)
    real = None  # which keys are real, (*, heads or 1, L); None: all
    if mask is not None or bias is not None:
        mask = None if mask is None else useful_mask(mask, query, key, value, ndim)
        bias = None if bias is None else check_bias(bias, query, key, value, ndim)
        # Before lowering: NaN in padding must not reach the gradients of the score's parameters.
        query, key, value, real = hide_padding(query, key, value, mask, bias)
    if 0 in (*query.shape[:-1], *key.shape[:-1], *value.shape[:-1]):
        query, key, value = hide_unpaired(query, key, value)
    lead = broadcast_lead(query, key, value)
    form = lower(chosen, query, changed_keys(key), lowered, real)
    # The shape of the logits, (*, H, Q, L). H is known only now: a score may make its own heads.
    full = (*lead, *form.query.shape[-3:-1], form.key.shape[-2])
    check_one_head(chosen, full[-3], ndim)
    if mask is not None or bias is not None:
        check_heads(mask, bias, full)
    if sink is not None:
        sink = check_sink(sink, full[-3], value.device)
    given = isinstance(temperature, Tensor) or temperature != 1.0 or temperature is True
    temperature = check_temperature(temperature, ndim, full, value.device) if given else 1.0
    error = plan.allowed_error(error, engine, form)
    problem = Problem(
        form, value, mask, bias, sink, temperature, softcap, dropout, want, lead, error, key.shape
    )
    if sink is not None:
        check_soft(problem)
    return problem, squeeze


def useful_mask(
    mask: Mask | Tensor, query: Tensor, key: Tensor, value: Tensor, ndim: int
) -> Mask | None:
    """The checked mask, or None if it hides nothing: more engines serve a call without a mask.

    So it is in a decoder's step, where a causal mask hides nothing from the one query at the last key.
    """
    checked = check_mask(mask, query, key, value, ndim)
    return None if checked.hides_nothing(query.shape[-2], key.shape[-2]) else checked


def check_soft(problem: Problem) -> None:
    """Refuse a hard look-up, for a call with a sink."""
    if problem.hard:
        raise ValueError(
            "temperature 0 is a hard look-up, which takes the best key and cannot use a sink; leave "
            "sink= out, or give a small positive temperature"
        )


def check_one_head(score: Score, heads: int, ndim: int) -> None:
    """Refuse a score that makes several heads from inputs without a head dim."""
    if ndim <= 3 and heads != 1:
        raise ValueError(
            f"{type(score).__name__} makes {heads} heads, but a query with {ndim} dims has "
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
    """The score of a query and a key as a form; keys that were `lowered` before are used as they are.

    For those, `key` is the tensor of `lowered` with its head dim inserted and its padding zeroed, and
    `real` says which keys are not padding.
    """
    if lowered is None:
        return score.lower(query, key, real)
    if isinstance(lowered, PairwiseKey):
        side = score.query(query)
        check_lowered(lowered, side, score)
        return score.join(side, PairwiseKey(key))
    # `key` has its head dim and zeroed padding already. The other two parts of `lowered`, beta and
    # origin, are brought into the same state here.
    beta, origin = lowered.beta, lowered.origin
    if key.ndim > lowered.psi.ndim:  # a head dim was inserted
        beta = None if beta is None else beta.unsqueeze(-2)
        origin = None if origin is None else origin.unsqueeze(-3)
    side = score.query(query) if origin is None else score.query_at(query, origin)
    check_lowered(lowered, side, score)
    if beta is not None and real is not None:
        # `real` has the heads of the keys. Beta may have those of the queries, each key head for a group.
        if real.ndim > 1 and real.shape[-2] > 1 and real.shape[-2] != beta.shape[-2]:
            real = real.repeat_interleave(beta.shape[-2] // real.shape[-2], -2)
        beta = torch.where(real, beta, 0)
    return score.join(side, InnerKey(key, beta))


def cast(query: Tensor, *others: Tensor) -> list[Tensor]:
    """The tensors in the dtype of autocast; with an fp64 query nothing is cast, as in PyTorch."""
    dtype = torch.get_autocast_dtype(query.device.type)
    return [x if query.dtype == torch.float64 else x.to(dtype) for x in (query, *others)]
