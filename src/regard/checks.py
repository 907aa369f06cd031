"""The checks of a call's arguments: one error message for each mistake.

A message names the argument, says what was given and what would work.

Shape legend: `*` leading dims (broadcast), H query heads, Q query length, L key length.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from regard.arguments import check_positive, check_probability, is_number, readable
from regard.describe import describe
from regard.engines.base import STATISTICS
from regard.forms import InnerKey, InnerQuery, KeySide, QuerySide
from regard.mask import Mask
from regard.precision import working_dtype
from regard.problem import broadcast_lead
from regard.scores.base import Score

# Colder than this, dividing by the temperature overflows fp32.
COLDEST = 1e-30


def check_tensors(
    query: Tensor, key: Tensor, *value: Tensor, autocast: bool, lowered: bool = False
) -> None:
    """Refuse inputs whose types, dims, dtypes, devices or lengths do not fit.

    Under autocast their dtypes may differ: they are cast afterwards. A `lowered` key may be wider than a
    query in half precision: GAT sums its keys to logits in fp32.
    """
    if _all_alike(query, key, *value):
        return
    named = list(zip(("query", "key", "value"), (query, key, *value), strict=False))
    for name, x in named:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {describe(x)}")
        if not x.is_floating_point():
            how = f"{name}.real or {name}.abs()" if x.is_complex() else f"{name}.float()"
            raise TypeError(f"{name} must be floating point, got {x.dtype}; use {how}")
        if x.ndim < 2:
            raise ValueError(
                f"{name} must be (..., length, dim) with at least 2 dims, got shape "
                f"{tuple(x.shape)}; a single vector is {name}.unsqueeze(0)"
            )
    for name, x in named[1:]:
        if x.ndim != query.ndim:
            raise ValueError(
                f"{name} has {x.ndim} dims, shape {tuple(x.shape)}, but query has {query.ndim}, "
                f"shape {tuple(query.shape)}; give all the same number of dims, with size 1 where "
                "they broadcast"
            )
        widened = lowered and name == "key" and x.dtype == working_dtype(query.dtype)
        if x.dtype != query.dtype and not autocast and not widened:
            raise TypeError(
                f"{name} is {x.dtype} but query is {query.dtype}; cast one, or use torch.autocast"
            )
        if x.device != query.device:
            raise ValueError(_elsewhere(name, x, query.device))
    for x in value:
        if x.shape[-2] != key.shape[-2]:
            raise ValueError(
                f"value has length {x.shape[-2]}, shape {tuple(x.shape)}, but key has length "
                f"{key.shape[-2]}, shape {tuple(key.shape)}; each key needs its value"
            )


def _all_alike(query: Tensor, key: Tensor, value: Tensor | None = None) -> bool:
    """Whether query, key and value fit: the few comparisons that pass a correct call.

    `check_tensors` goes on to find the mistake only if this is False. That keeps a correct call fast.
    """
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        return False
    return (
        query.dtype == key.dtype == value.dtype
        and query.is_floating_point()
        and query.ndim == key.ndim == value.ndim
        and query.ndim >= 2
        and query.device == key.device == value.device
        and key.shape[-2] == value.shape[-2]
    )


def check_parameters(score: Score, query: Tensor, autocast: bool) -> None:
    """Refuse score parameters on another device or, outside autocast, of another dtype."""
    for name, parameter in score.named_parameters():
        if parameter.device != query.device:
            raise ValueError(
                f"score parameter {name!r} is on {parameter.device} but query is on "
                f"{query.device}; use score.to({str(query.device)!r})"
            )
        if parameter.dtype != query.dtype and not autocast:
            raise TypeError(
                f"score parameter {name!r} is {parameter.dtype} but query is {query.dtype}; use "
                f"score.to({query.dtype}), or torch.autocast"
            )


def check_lowered(key: KeySide, query: QuerySide, score: Score) -> None:
    """Refuse keys that were lowered by a score of the other form, or whose beta does not fit."""
    if isinstance(key, InnerKey) != isinstance(query, InnerQuery):
        form = "inner" if isinstance(query, InnerQuery) else "pairwise"
        raise TypeError(
            f"key was lowered to {type(key).__name__}, but {type(score).__name__} is {form}; lower the keys "
            "with the same score, key=score.key(k)"
        )
    if isinstance(key, InnerKey) and isinstance(query, InnerQuery) and key.beta is not None:
        _check_beta(key.beta, key.psi, query.phi)


def _check_beta(beta: Tensor, psi: Tensor, phi: Tensor) -> None:
    """Refuse a beta that is not (*, K or H, L): engines would broadcast it, or read past its end.

    A `psi` with 3 dims or fewer has no head dim, and then beta has none either.
    """
    fits = isinstance(beta, Tensor) and beta.is_floating_point() and beta.ndim == psi.ndim - 1
    if fits and psi.ndim <= 3:
        fits = beta.shape == psi.shape[:-1]
    elif fits:
        lead, heads = beta.shape[:-2], beta.shape[-2]
        fits = heads == psi.shape[-3] or heads == phi.shape[-3]
        fits = fits and beta.shape[-1] == psi.shape[-2]
        fits = fits and (_broadcasts(lead, psi.shape[:-3]) or _broadcasts(lead, phi.shape[:-3]))
    if not fits:
        raise ValueError(
            f"the beta of the lowered keys is {describe(beta)}, which does not fit their psi of "
            f"shape {tuple(psi.shape)}: give a number for each key, shape {tuple(psi.shape[:-1])}"
        )


def check_mask(mask: Mask | Tensor, query: Tensor, key: Tensor, value: Tensor, ndim: int) -> Mask:
    """The mask as a `Mask` whose shapes fit and whose dense parts have a head dim, or an error.

    The inputs have their head dim already; `ndim` is the number of dims that the caller gave. The number
    of heads in the dense parts is checked after lowering, by `check_heads`.
    """
    if isinstance(mask, Tensor):
        mask = Mask.dense(mask)
    if not isinstance(mask, Mask):
        hint = "; for example mask=Mask.causal()" if isinstance(mask, (str, bool)) else ""
        raise TypeError(f"mask must be a Mask or a boolean tensor, got {describe(mask)}{hint}")
    lead, queries, keys = broadcast_lead(query, key, value), query.shape[-2], key.shape[-2]
    full = (*lead, None, queries, keys)
    allowed = tuple(_with_heads(x, "mask", ndim, full) for x in mask.allowed)
    _check_lengths(mask.key_lengths, "key", keys, lead)
    _check_lengths(mask.query_lengths, "query", queries, lead)
    for q_ids, k_ids in mask.packed:
        for name, ids, length in (("queries", q_ids, queries), ("keys", k_ids, keys)):
            _check_lead(ids.shape[:-1], lead, f"mask segments of the {name}")
            if ids.shape[-1] != length:
                raise ValueError(
                    f"mask segments of the {name} have length {ids.shape[-1]}, shape "
                    f"{tuple(ids.shape)}, but there are {length} {name}"
                )
    if len(mask.allowed) == 0:
        return mask
    return mask.with_allowed(allowed)


def check_heads(mask: Mask | None, bias: Tensor | None, full: tuple[int, ...]) -> None:
    """Refuse a bias or dense mask whose heads do not broadcast to those of `full`, (*, H, Q, L)."""
    heads = full[-3]
    parts = [] if mask is None else [("mask", x) for x in mask.allowed]
    for name, x in [*parts, ("bias", bias)]:
        if x is not None and x.ndim > 2 and not _fits(x.shape[-3], heads):
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} has {x.shape[-3]} heads, but there are "
                f"{heads} query heads: it does not broadcast to {tuple(full)}"
            )


def check_bias(bias: Tensor, query: Tensor, key: Tensor, value: Tensor, ndim: int) -> Tensor:
    """The bias with a head dim, or an error; its number of heads is checked after lowering."""
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        raise TypeError(
            f"bias must be a floating point tensor added to the logits, got {describe(bias)}; a "
            "boolean mask is `mask=`"
        )
    if bias.device != query.device:
        raise ValueError(_elsewhere("bias", bias, query.device))
    if bias.ndim < 2:
        raise ValueError(
            f"bias ends in (query length, key length), got shape {tuple(bias.shape)}; a bias for "
            "each key is bias.unsqueeze(-2)"
        )
    full = (*broadcast_lead(query, key, value), None, query.shape[-2], key.shape[-2])
    return _with_heads(bias, "bias", ndim, full)


def check_sink(sink: Tensor, heads: int, device: torch.device) -> Tensor:
    """The sink as (H,) or (1,), or an error."""
    if not isinstance(sink, Tensor) or not sink.is_floating_point():
        raise TypeError(f"sink must be a floating point tensor (heads,), got {describe(sink)}")
    if sink.device != device:
        raise ValueError(_elsewhere("sink", sink, device))
    if sink.ndim > 1 or (sink.ndim == 1 and not _fits(sink.shape[0], heads)):
        raise ValueError(
            f"sink is one logit for each head: shape ({heads},), (1,) or (), got "
            f"{tuple(sink.shape)}"
        )
    return sink.reshape(-1)


def check_temperature(
    temperature: float | Tensor, ndim: int, full: tuple[int, ...], device: torch.device
) -> float | Tensor:
    """A number of 0 or more, or a tensor that broadcasts to (*, H, Q); `full` is (*, H, Q, L)."""
    if not isinstance(temperature, Tensor):
        if not is_number(temperature):
            raise TypeError(
                f"temperature must be a number or a tensor, got {describe(temperature)}"
            )
        if not 0 <= temperature < math.inf:
            raise ValueError(
                f"temperature must be 0 (hard look-up) or a positive number, got {temperature}"
            )
        if 0 < temperature < COLDEST:
            raise ValueError(
                f"temperature {temperature} would overflow the logits: give at least {COLDEST}, or "
                "0 for a hard look-up"
            )
        return float(temperature)
    if not temperature.is_floating_point():
        raise TypeError(f"temperature must be floating point, got {temperature.dtype}")
    if temperature.device != device:
        raise ValueError(_elsewhere("temperature", temperature, device))
    if readable(temperature) and (lowest := float(temperature.detach().min())) < 0:
        raise ValueError(f"temperature must be 0 or more everywhere, got {lowest:g}")
    heads = full[-3]
    if temperature.ndim <= 1:
        if temperature.ndim == 1 and not _fits(temperature.shape[0], heads):
            raise ValueError(
                f"temperature is a number, or a tensor for each head ({heads},), got shape "
                f"{tuple(temperature.shape)}"
            )
        return temperature.reshape(-1, 1)
    return _with_heads(temperature, "temperature", ndim, (*full[:-1], 1)).squeeze(-1)


def check_options(softcap: float | None, dropout: float, error: float | None) -> None:
    """Refuse numbers out of range."""
    check_positive(optional=True, softcap=softcap, error=error)
    check_probability(dropout=dropout)


def check_one_softcap(own: float, softcap: float | None) -> float:
    """The score's own soft cap, or an error if the call gives a second one."""
    if softcap is not None:
        raise ValueError(
            f"softcap={softcap}, but the score has a soft cap of its own, {own}; give one of them"
        )
    return own


def check_want(want: Iterable[str]) -> frozenset[str]:
    """The set of statistics that `want` names, or an error that suggests the right name."""
    if isinstance(want, str):
        want = (want,)
    if not isinstance(want, Iterable) or isinstance(want, (bytes, Tensor)):
        raise TypeError(
            f'want must be a collection of names, as {{"lse"}}, got {describe(want)}; names: '
            f"{', '.join(STATISTICS)}"
        )
    for name in (named := list(want)):
        if not isinstance(name, str) or name not in STATISTICS:
            near = difflib.get_close_matches(str(name), STATISTICS, n=1)
            near = ["lse"] if name == "logsumexp" else near
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"unknown statistic {name!r} in want{hint}; statistics: {', '.join(STATISTICS)}"
            )
    return frozenset(named)


def _with_heads(x: Tensor, name: str, ndim: int, full: tuple[int | None, ...]) -> Tensor:
    """The argument `x` with the head dim that 3-dim inputs lack; an error unless it broadcasts to `full`.

    A size of None in `full` takes any number of heads.
    """
    if x.ndim not in (2, ndim):
        each = f"; one for each sequence is {name}[:, None]" if (x.ndim, ndim) == (3, 4) else ""
        raise ValueError(
            f"{name} has {x.ndim} dims, shape {tuple(x.shape)}; give 2 dims {full[-2:]}, or "
            f"{ndim} as the query has, with size 1 where it broadcasts{each}"
        )
    wide = x.unsqueeze(-3) if x.ndim == 3 else x
    if not _broadcasts(wide.shape, full):
        last = "1" if name == "temperature" else "key length"
        meaning = f"heads, query length, {last}" if ndim > 3 else f"query length, {last}"
        sizes = full if ndim > 3 else (*full[:-3], *full[-2:])
        wanted = ", ".join("heads" if n is None else str(n) for n in sizes)
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} does not broadcast to ({wanted}), that is "
            f"(..., {meaning})"
        )
    return wide


def _broadcasts(shape: Sequence[int], full: Sequence[int | None]) -> bool:
    pairs = zip(reversed(shape), reversed(full), strict=False)
    return len(shape) <= len(full) and all(n is None or _fits(m, n) for m, n in pairs)


def _fits(size: int, full: int) -> bool:
    # Not `size in (1, full)`: under torch.compile sizes are symbols, which `in` compares by identity.
    return size == 1 or size == full


def _check_lengths(x: Tensor | None, side: str, length: int, lead: tuple[int, ...]) -> None:
    if x is None:
        return
    _check_lead(x.shape, lead, f"mask {side} lengths")
    if readable(x):
        low, high = int(x.min()), int(x.max())
        if low < 0 or high > length:
            raise ValueError(
                f"mask {side} lengths must be from 0 to the {side} length {length}, got {low} to "
                f"{high}"
            )


def _elsewhere(name: str, x: Tensor, device: torch.device) -> str:
    return f"{name} is on {x.device} but query is on {device}; use {name}.to({str(device)!r})"


def _check_lead(shape: torch.Size, lead: tuple[int, ...], name: str) -> None:
    if not _broadcasts(shape, lead):
        raise ValueError(
            f"{name} have leading shape {tuple(shape)}, which does not broadcast to the leading "
            f"dims {lead} of query, key and value (heads are left out)"
        )
