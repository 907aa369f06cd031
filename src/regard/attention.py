"""The public functions: check the call, lower the score, pick an engine, run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from regard import repeats
from regard.arguments import autocast_enabled
from regard.checks import (
    check_parameters,
    check_tensors,
    check_want,
)
from regard.engines import plan
from regard.engines.base import Attended
from regard.engines.plan import Plan
from regard.forms import KeySide
from regard.mask import Mask
from regard.observed import WATCHERS
from regard.prepare import cast, lower, prepare, unwrap
from regard.problem import Problem
from regard.scores import Score, named_score

NOTHING: frozenset[str] = frozenset()


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
    if mask is None and bias is None and sink is None and softcap is None and error is None:
        return _attend_without_options(query, key, value, score, temperature, dropout, engine)
    problem, squeeze = prepare(
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
        engine,
        NOTHING,
    )
    output = _run(problem, engine).output
    return output.squeeze(-3) if squeeze else output


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
    problem, squeeze = prepare(
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
        engine,
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
    key, lowered = unwrap(key)
    check_tensors(query, key, autocast=autocast, lowered=lowered is not None)
    if autocast:
        query, key = cast(query, key)
    chosen = named_score(score)
    squeeze = query.ndim <= 3
    if squeeze:
        query, key = query.unsqueeze(-3), key.unsqueeze(-3)
    check_parameters(chosen, query, autocast)
    form = lower(chosen, query, key, lowered, None)
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
    problem, _ = prepare(
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
        engine,
        check_want(want),
    )
    return plan.make_plan(problem, named_score(score), engine)


def _attend_without_options(
    query: Tensor,
    key: Tensor | KeySide,
    value: Tensor,
    score: Score | str | None,
    temperature: float | Tensor,
    dropout: float,
    engine: str | None,
) -> Tensor:
    """The output of a call of tensors and a score alone, which loops repeat.

    A small call waits for Python longer than for its kernels. So a call that agrees with two earlier ones skips
    checks and plan, which leaves a third of Python's time forward (benchmarks/results/host_time.json); see
    `repeats`.
    """
    call = repeats.find(query, key, value, score, temperature, dropout, engine)
    if call is not None and (output := call.again()) is not None:
        return output
    problem, squeeze = prepare(
        query,
        key,
        value,
        score,
        None,
        None,
        None,
        temperature,
        None,
        dropout,
        None,
        engine,
        NOTHING,
    )
    output = _run(problem, engine).output
    output = output.squeeze(-3) if squeeze else output
    if call is not None:
        call.learn(problem, engine, output)
    return output


def _run(problem: Problem, engine: str | None) -> Attended:
    if not WATCHERS:
        return _run_engine(problem, engine)
    told = []
    for watcher in WATCHERS:
        problem, before = watcher.begin_own(problem)
        told.append((watcher, before))
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
