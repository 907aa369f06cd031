"""Captures FlexAttention, where one user function changes the logits and another hides pairs.

torch always compiles the operator, so the mode meets each call twice: when it is traced and when it
runs. A call outside the user's own graphs is measured when it runs: both functions are available
then, so every level works. Inside a graph of the user's the functions no longer exist at run time,
so the logits of sampled rows are computed in the graph.

Shape legend: B batch, H query heads, R sampled queries, L keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.doctor.capture.gradient_hooks import SIDES, tapped
from regard.doctor.seen import Seen, SeenFlex
from regard.doctor.vitals import widen
from regard.doctor.vitals.flexed import flex_logits, indexing
from regard.doctor.vitals.logits import products, size_of
from regard.doctor.vitals.parts import MOST_LOGITS
from regard.doctor.vitals.table import Level

if TYPE_CHECKING:
    from regard.doctor.capture.capture import Capture
    from regard.doctor.capture.mode import Mode

ARGUMENTS = (
    *SIDES,
    "score_mod",
    "block_mask",
    "scale",
    "kernel_options",
    "score_mod_other_buffers",
    "mask_mod_other_buffers",
)


def flex(mode: Mode, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Measure and run the operator behind torch's `flex_attention`."""
    capture = mode.capture
    if passes_by() or not capture.looking():
        return func(*args, **kwargs)
    given = {**dict(zip(ARGUMENTS[: len(args)], args, strict=True)), **kwargs}
    query, key, value = (given[side] for side in SIDES)
    q, k, v = query.detach(), key.detach(), value.detach()
    if k.shape[0] != q.shape[0]:  # all sequences share the keys
        k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
    seen = Seen(q, k, v, given["scale"])
    if torch.compiler.is_compiling():
        found = in_graph(capture, seen, given["score_mod"], given["block_mask"][-1])
    else:
        found = with_functions(given)
    seen = seen._replace(flex=found)
    sides = {"query": query, "key": key, "value": value}
    ticket = capture.show("flex", seen, sides, given["scale"])
    if ticket is not None:
        query, key, value = tapped(query, key, value, ticket)
    rest = {name: x for name, x in given.items() if name not in SIDES}
    return func(query, key, value, **rest)


def passes_by() -> bool:
    """Whether this is the one of the two meetings with a call at which it is not measured."""
    return called_uncompiled() == torch.compiler.is_compiling()


def called_uncompiled() -> bool:
    """Whether torch's `flex_attention` itself is running, and not a graph compiled from it."""
    module = sys.modules["torch.nn.attention.flex_attention"]
    code = module.flex_attention.__code__
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


# What `torch.compiler.assume_constant_result` sets. Calling it would load the compiler, which takes
# seconds.
called_uncompiled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def with_functions(given: dict[str, Any]) -> SeenFlex:
    """Both user functions, given the tensors that torch has lifted out of them."""
    score, mask = given["score_mod"], given["block_mask"][-1]
    of_score = given.get("score_mod_other_buffers", ())
    of_mask = given.get("mask_mod_other_buffers", ())

    def logit(*pair: Tensor) -> Tensor:
        return score(*pair, *of_score)

    def visible(*places: Tensor) -> Tensor:
        return mask(*places, *of_mask)

    return functions(logit, visible, given["query"])


def functions(score: Callable, mask: Callable, like: Tensor) -> SeenFlex:
    """Both user functions; the score function only where it does more than return the product."""
    product, place = like.new_zeros((), dtype=torch.float32), like.new_zeros((), dtype=torch.int64)
    with torch.no_grad(), indexing():
        # A function that changes nothing returns the very tensor that it was given.
        changes = score(product, place, place, place, place) is not product
    return SeenFlex(changes, score if changes else None, mask)


def in_graph(capture: Capture, seen: Seen, score: Callable, mask: Callable) -> SeenFlex:
    """The logits of sampled queries, computed in the graph; none where only norms are measured."""
    query = seen.query
    assert query is not None
    found = functions(score, mask, query)
    chart = capture.chart
    if chart.vitals is None or chart.level is Level.CHEAP:
        return SeenFlex(found.changes)
    size = size_of(seen)
    most = MOST_LOGITS // (size.batch * size.heads * size.keys)
    count = max(1, min(chart.rows, most))
    rows = torch.ops.regard.doctor_rows(capture.stack[-1].handle, query, count)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        logits = flex_logits(found, products(widen(seen, with_value=False), size, rows), rows)
    return SeenFlex(found.changes, rows=rows, logits=logits)
