"""The public functions: check the call, lower the score, pick an engine, run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from regard import repeats
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
    check_want,
)
from regard.engines import plan
from regard.engines.base import Attended
from regard.engines.plan import Plan
from regard.forms import Form, InnerKey, KeySide, PairwiseKey, key_tensor
from regard.mask import Mask
from regard.problem import Problem, broadcast_lead, hide_padding
from regard.scores import Score, named_score

NOTHING: frozenset[str] = frozenset()


class Watcher(Protocol):
    """Is told of every call before its engine runs, and after."""

    def begin_own(self, problem: Problem) -> bool | None:
        """The call is about to run; `problem` may be given tensors of the same values."""
        ...

    def end_own(self, before: bool | None) -> None:
        """It has run, or failed; `before` is what `begin_own` returned."""
        ...


# Those who watch now: `regard.doctor` adds itself here while it does.
WATCHERS: list[Watcher] = []
# Give every call other keys, of the same shape, before its score lowers them: the doctor's attack
# plants a long key there.
KEY_CHANGES: list[Callable[[Tensor], Tensor]] = []


def attention(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: Score | str | None = None,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    dropout: float = 0.0,
    error: float | None = None,
    engine: str | None = None,
) -> Tensor:
    """Attend: score every key against every query, weigh the values, sum them.

    `softmax(softcap(score / temperature) + bias, over visible keys and sink) @ value`

    Args:
        query: (..., heads, query length, query dim). Up to 3 dims there is one head and no head
            dim: (batch, length, dim) or (length, dim).
        key: (..., key heads, key length, key dim). Leading dims broadcast; key heads divide heads.
            Or keys that were lowered before, `score.key(k)`: a decoder lowers them once.
        value: (..., value heads, key length, value dim). Value heads divide heads.
        score: a `Score`, the name of one without parameters ("dot", "scaled_dot", "cosine",
            "gaussian"), or None for scaled dot.
        mask: a `Mask`, or a boolean tensor with True = attend: (query length, key length), or as
            many dims as the query.
        bias: added to the logits, shaped as a dense mask; -inf hides a key.
        sink: (heads,), the logit of one more outcome whose value is 0.
        temperature: a number, or a tensor for each head (heads,) or for each query (..., heads,
            length, 1). 0 is a hard look-up: the best key, the lowest index among equals.
        softcap: bounds the logits to `cap * tanh(logits / cap)`.
        dropout: probability of dropping a weight; the rest is scaled up. Active whenever it is
            not 0: pass 0.0 for evaluation.
        error: the largest output error, in units of the largest |value|, that an approximate
            engine may make; None rules approximations out. Engine "sine" has a proven bound.
        engine: the name of an engine, which then runs or raises with its reasons; None picks one.

    Returns:
        (..., heads, query length, value dim), the dtype of the inputs.
    """
    call = None
    if mask is None and bias is None and sink is None and softcap is None and error is None:
        if not WATCHERS and not KEY_CHANGES:
            call = repeats.find(query, key, value, score, temperature, dropout, engine)
        if call is not None and (output := call.again()) is not None:
            return output
    problem, squeeze = _prepare(
        query, key, value, score, mask, bias, sink, temperature, softcap, dropout, error, NOTHING
    )
    output = _run(problem, engine).output
    output = output.squeeze(-3) if squeeze else output
    if call is not None:
        call.learn(problem, engine, output)
    return output


def attend(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: Score | str | None = None,
    *,
    want: Iterable[str] = ("lse",),
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    dropout: float = 0.0,
    error: float | None = None,
    engine: str | None = None,
) -> Attended:
    """`attention` with statistics from the same pass.

    `want` names any of lse, entropy, max_logit, max_weight, jacobian and weights; `Attended` says
    what each is. Fields not asked for are None.
    """
    problem, squeeze = _prepare(
        query,
        key,
        value,
        score,
        mask,
        bias,
        sink,
        temperature,
        softcap,
        dropout,
        error,
        check_want(want),
    )
    if problem.hard and (undefined := problem.want & {"lse", "max_logit"}):
        raise ValueError(
            f"temperature 0 is a hard look-up, where {' and '.join(sorted(undefined))} would be "
            "infinite; ask for other statistics, or use a small temperature"
        )
    result = _run(problem, engine)
    if not squeeze:
        return result
    found = {"output": result.output.squeeze(-3)}
    if result.weights is not None:
        found["weights"] = result.weights.squeeze(-3)
    for name in ("lse", "entropy", "max_logit", "max_weight", "jacobian"):
        if (x := getattr(result, name)) is not None:
            found[name] = x.squeeze(-2)
    return result.with_changed(found)


def score(query: Tensor, key: Tensor | KeySide, score: Score | str | None = None) -> Tensor:
    """Raw logits (..., heads, query length, key length), before temperature, cap, bias and mask.

    The Q x L result is built, but never the Q x L x hidden tensor of a pairwise score on the CPU.
    """
    autocast = autocast_enabled(query)
    key, lowered = _unwrap(key)
    check_tensors(query, key, None, autocast)
    if autocast:
        query, key = _cast(query, key)
    chosen = named_score(score)
    squeeze = query.ndim <= 3
    if squeeze:
        query, key = query.unsqueeze(-3), key.unsqueeze(-3)
    check_parameters(chosen, query, autocast)
    form = _lower(chosen, query, key, lowered, None)
    # The checks of heads and leading dims are the op's own.
    problem = Problem(form, form.key)
    with _own_precision(problem):
        logits = plan.scores(problem).to(query.dtype)
    return _one_head(logits, chosen) if squeeze else logits


def explain(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: Score | str | None = None,
    *,
    want: Iterable[str] = (),
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    dropout: float = 0.0,
    error: float | None = None,
    engine: str | None = None,
) -> Plan:
    """Say what `attention` would do with this call; print the plan to read it.

    It names the engine, its error bound, and why each other engine refused. Nothing is run.
    """
    problem, _ = _prepare(
        query,
        key,
        value,
        score,
        mask,
        bias,
        sink,
        temperature,
        softcap,
        dropout,
        error,
        check_want(want),
    )
    return plan.make_plan(problem, named_score(score), engine)


def _prepare(
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
    want: frozenset[str],
) -> tuple[Problem, bool]:
    """Check everything and lower the score; also say whether a head dim was inserted."""
    autocast = autocast_enabled(query)
    key, lowered = _unwrap(key)
    check_tensors(query, key, value, autocast)
    given = softcap is not None or error is not None or isinstance(dropout, Tensor)
    if given or dropout != 0.0:
        check_options(softcap, dropout, error)
    chosen = named_score(score)
    if autocast:
        query, key, value = _cast(query, key, value)
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
    lead = broadcast_lead(query, key, value)
    form = _lower(chosen, query, _changed(key), lowered, real)
    problem = Problem(
        form, value, mask, bias, softcap=softcap, dropout=dropout, want=want, lead=lead
    )
    problem.error, problem.key_shape = error, key.shape
    if squeeze and problem.heads != 1:
        raise ValueError(
            f"{type(chosen).__name__} makes {problem.heads} heads, but query with {ndim} dims has "
            "no head dim; use query.unsqueeze(-3), and the same for key and value"
        )
    if mask is not None or bias is not None:
        check_heads(problem)
    if sink is not None:
        problem.sink = check_sink(sink, problem)
    if isinstance(temperature, Tensor) or temperature != 1.0:
        problem.temperature = check_temperature(temperature, ndim, problem)
    if problem.hard and sink is not None:
        raise ValueError("temperature 0 is a hard look-up: it has no use for a sink")
    return problem, squeeze


def _unwrap(key: Tensor | KeySide) -> tuple[Tensor, KeySide | None]:
    """The tensor that carries the keys, and the lowered side it came from, if any."""
    if isinstance(key, (InnerKey, PairwiseKey)):
        return key_tensor(key), key
    return key, None


def _changed(key: Tensor) -> Tensor:
    """The keys of one call after all `KEY_CHANGES`."""
    for change in KEY_CHANGES:
        key = change(key)
    return key


def _lower(
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
        if real.shape[-2] > 1 and real.shape[-2] != beta.shape[-2]:
            real = real.repeat_interleave(beta.shape[-2] // real.shape[-2], -2)
        beta = torch.where(real, beta, 0)
    return score.join(side, InnerKey(key, beta))


def _cast(query: Tensor, *others: Tensor) -> list[Tensor]:
    """All in the dtype of autocast; fp64 stays as it is."""
    dtype = torch.get_autocast_dtype(query.device.type)
    return [x if query.dtype == torch.float64 else x.to(dtype) for x in (query, *others)]


def _run(problem: Problem, engine: str | None) -> Attended:
    if not WATCHERS:
        return _run_engine(problem, engine)
    told = [(watcher, watcher.begin_own(problem)) for watcher in WATCHERS]
    try:
        return _run_engine(problem, engine)
    finally:
        for watcher, before in told:
            watcher.end_own(before)


def _run_engine(problem: Problem, engine: str | None) -> Attended:
    if autocast_enabled(problem.value):
        with _own_precision(problem):
            return plan.pick(problem, engine).run(problem)
    return plan.pick(problem, engine).run(problem)


def _own_precision(problem: Problem) -> AbstractContextManager:
    """Autocast off: inputs were cast already, and engines choose their working precision."""
    if autocast_enabled(problem.value):
        return torch.autocast(problem.device.type, enabled=False)
    return nullcontext()


def _one_head(logits: Tensor, score: Score) -> Tensor:
    if logits.shape[-3] != 1:
        raise ValueError(
            f"{type(score).__name__} makes {logits.shape[-3]} heads, but the inputs have no head "
            "dim; use query.unsqueeze(-3) and key.unsqueeze(-3)"
        )
    return logits.squeeze(-3)
