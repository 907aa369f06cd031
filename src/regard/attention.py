"""The public functions `attention`, `attend`, `score` and `explain`.

A call takes three steps:

1. `prepare` checks the arguments, zeroes padding and lowers the score to one of the two forms. The
   result is a `Problem`.
2. `plan.pick` asks each engine whether it serves that problem, and takes the first that does.
3. The engine runs it and returns an `Attended`.

Small GPU calls that repeat earlier ones skip steps 1 and 2: see `_attend_without_options`.

Inputs with up to 3 dims have no head dim. `prepare` inserts one at dim -3, so that engines always see
(..., heads, length, width), and says so by `squeeze`; the functions here remove it from the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from regard import repeats
from regard.arguments import autocast_enabled
from regard.checks import check_parameters, check_tensors, check_want
from regard.engines import plan
from regard.engines.base import Attended
from regard.engines.plan import Plan
from regard.forms import KeySide
from regard.mask import Mask
from regard.observed import LISTENERS, WATCHERS
from regard.prepare import cast, lower, prepare, unwrap
from regard.problem import Problem
from regard.scores import Score, named_score


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
    """The average of the values for each query, weighted by the softmax of its scores.

    `softmax(softcap(score / temperature) + bias, over visible keys and sink) @ value`

    Args:
        query: (..., heads, query length, query dim). With 3 dims or fewer there is one head and no
            head dim: (batch, length, dim) or (length, dim).
        key: (..., key heads, key length, key dim). Leading dims broadcast; key heads divide heads.
            Keys may also be lowered ahead of the call, `score.key(k)`, so that a decoder lowers
            each key once and not at every step.
        value: (..., value heads, key length, value dim). Value heads divide heads.
        score: a `Score`, the name of one without parameters ("dot", "scaled_dot", "cosine",
            "gaussian"), or None for scaled dot.
        mask: a `Mask`, or a boolean tensor with True = attend: (query length, key length), or as
            many dims as the query.
        bias: added to the logits, shaped as a dense mask; -inf hides a key.
        sink: (heads,), the logit of one more key, seen by every query, whose value is 0.
        temperature: a number, or a tensor for each head (heads,) or for each query (..., heads,
            length, 1). 0 is a hard look-up: each query takes the value of its best key, the first
            one if several are equal.
        softcap: bounds the logits to `cap * tanh(logits / cap)`.
        dropout: probability of dropping a weight; the rest is scaled up. There is no training
            flag: pass 0.0 for evaluation.
        error: the largest output error, in units of the largest |value|, that an approximate
            engine may make; None rules approximations out. Engine "sine" has a proven bound.
        engine: the name of an engine, which then runs or raises with its reasons; None picks one.

    Returns:
        (..., heads, query length, value dim), in the dtype of the inputs.
    """
    # Training loops repeat calls without options, so only those are looked up among earlier calls.
    if mask is None and bias is None and sink is None and softcap is None and error is None:
        return _attend_without_options(query, key, value, score, temperature, dropout, engine)
    problem, squeeze = prepare(
        query, key, value, score, mask, bias, sink, temperature, softcap, dropout, error, engine
    )
    output = _run(problem, score, engine).output
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
    """The output of `attention`, with statistics of its logits and weights from the same pass.

    Args are those of `attention`, and `want`: any of "lse", "entropy", "max_logit", "max_weight",
    "jacobian" and "weights". `Attended` defines each; its other fields are None.
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
    result = _run(problem, score, engine)
    if not squeeze:
        return result
    # Remove the head dim that `prepare` inserted. Statistics have one number for each query, (*, H, Q),
    # so their head dim is -2.
    found = {"output": result.output.squeeze(-3)}
    if result.weights is not None:
        found["weights"] = result.weights.squeeze(-3)
    for name in ("lse", "entropy", "max_logit", "max_weight", "jacobian"):
        if (x := getattr(result, name)) is not None:
            found[name] = x.squeeze(-2)
    return result.with_changed(found)


def score(query: Tensor, key: Tensor | KeySide, score: Score | str | None = None) -> Tensor:
    """The raw logits (..., heads, query length, key length), before temperature, cap, bias and mask.

    On the CPU a pairwise score builds this Q x L result without the Q x L x hidden tensor.
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
    # Logits need no value; the keys stand in for it, since they have its length and device. `Problem`
    # checks that heads and leading dims fit.
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
    """The plan that `attention` would follow for this call; print it to read it.

    It names the engine, its error bound, and why each other engine refused. The score is lowered, but no
    engine runs.
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
    """The output of a call without mask, bias, sink, soft cap and allowed error.

    On a GPU a small call spends more time in Python than in its kernels. From the third call with the same
    shapes, strides, dtypes and score on, checks and plan are skipped, which cuts the forward's time in Python
    to a third (benchmarks/results/host_time.json). `repeats` says which calls qualify.
    """
    call = repeats.find(query, key, value, score, temperature, dropout, engine)
    if call is not None and (output := call.again()) is not None:
        return output
    problem, squeeze = prepare(
        query, key, value, score, temperature=temperature, dropout=dropout, engine=engine
    )
    output = _run(problem, score, engine).output
    output = output.squeeze(-3) if squeeze else output
    if call is not None:
        call.learn(problem, engine, output)
    return output


def _run(problem: Problem, score: Score | str | None, engine: str | None) -> Attended:
    """What the picked engine returns; the doctor, if it is watching, is told before and after."""
    if not WATCHERS and not LISTENERS:
        return _run_engine(problem, engine)
    for tell in LISTENERS:
        tell(problem, score, engine)
    told = []
    for watcher in WATCHERS:
        problem, before = watcher.begin_own(problem)
        told.append((watcher, before))
    try:
        return _run_engine(problem, engine)
    finally:  # Also after an error: a watcher must not believe that the call is still running.
        for watcher, before in told:
            watcher.end_own(before)


def _run_engine(problem: Problem, engine: str | None) -> Attended:
    # An `if` and not `_own_precision` alone: entering even an empty context costs a small call time.
    if autocast_enabled(problem.value):
        with _own_precision(problem):
            return plan.pick(problem, engine).run(problem)
    return plan.pick(problem, engine).run(problem)


def _own_precision(problem: Problem) -> AbstractContextManager:
    """A context with autocast off: inputs were cast already, and engines choose their precision."""
    if autocast_enabled(problem.value):
        return torch.autocast(problem.device.type, enabled=False)
    return nullcontext()


def _one_head(logits: Tensor, score: Score) -> Tensor:
    """The logits without their head dim, or an error if the score made several heads."""
    if logits.shape[-3] != 1:
        raise ValueError(
            f"{type(score).__name__} makes {logits.shape[-3]} heads, but the inputs have no head "
            "dim; use query.unsqueeze(-3) and key.unsqueeze(-3)"
        )
    return logits.squeeze(-3)
