"""Steps whose memory was laid out for the kernels when it was prepared: the shortest way.

What `short_way` asks at each step is asked once, by `prepare`. A step then only sees that nothing was replaced
since, projects its query, and launches two kernels.

Shape legend: B batch, H heads, L keys, E hidden units.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.engines import step_plan
from regard.forms import KeySide, PairwiseKey
from regard.nn.seq2seq.gathering import Gathering, SharedMemory
from regard.nn.seq2seq.kernels import take_step
from regard.nn.seq2seq.memory import AttentionResult, AttentionState, Memory
from regard.observed import is_observed
from regard.scores import PairwiseScore, Projected, Score
from regard.scores.base import is_as_written

FLOAT = torch.float32
# The methods of `Projected` that a step repeats.
PROJECTING = {name: getattr(Projected, name) for name in ("join", "project_query", "query")}


class Ready(NamedTuple):
    """What `prepare` has laid out for the steps over a memory.

    Args:
        over: the kernels' launches over the keys and values.
        score: the score that lowered the keys, and `inner` the one inside of its projections.
        v: its v (H, E) as the score holds it, and `shared` as the kernels get it.
        side, value, visible: the parts of the memory that it was made of.
        queries: the shape of queries, and `weights` of weights.
        gathering: where steps add up their gradients, or None.
    """

    over: Any
    score: Score
    inner: PairwiseScore
    v: Tensor
    shared: Tensor
    side: KeySide
    value: Tensor
    visible: Tensor | None
    queries: tuple[int, ...]
    weights: tuple[int, ...]
    gathering: Gathering | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a memory have none: their steps are asked anew."""
        return (type(None), ())

    def __repr__(self) -> str:
        """Without the numbers."""
        return f"Ready(queries={self.queries})"


def made_ready(memory: Memory, score: Score) -> Memory:
    """The memory with a `Ready` where the kernels serve its steps, else as it is."""
    side, value = memory.side, memory.value
    if type(score) is not Projected or not isinstance(side, PairwiseKey):
        return memory
    inner, b = score.score, side.b
    v = inner.bare() if isinstance(inner, PairwiseScore) else None
    if v is None or not isinstance(inner, PairwiseScore) or score.softcap is not None:
        return memory
    if not (step_plan.serves(b, value) and step_plan.computes(inner.activation, v)):
        return memory
    if len(v) != score.heads or not v.is_contiguous() or is_observed((b, value, v)):
        return memory
    given = (b, v.dtype, value, memory.visible, inner.activation, inner.parameter)
    steps = step_plan.steps()
    launches = steps.launches_for(steps.step_signature((len(v), len(v)), *given))
    gathering, shared = None, v
    wanted = any(x.requires_grad for x in (b, value, v))
    # Of several heads the gradients have sums over heads left.
    if torch.is_grad_enabled() and wanted and len(v) == 1:
        keys = b.shape[2]
        gathering = Gathering(lambda copies: launches.of_v(copies, keys))
        b, value, shared = SharedMemory.apply(gathering, b, value, v)  # type: ignore[not-iterable] # untyped
        memory = memory._replace(side=PairwiseKey(b), value=value)
    over = steps.MemorySteps(launches, b, value, memory.visible)
    ready = Ready(
        over,
        score,
        inner,
        v,
        shared,
        memory.side,
        memory.value,
        memory.visible,
        (b.shape[0], score.query_dim),
        (b.shape[0], len(v), b.shape[2]),
        gathering,
    )
    return memory._replace(ready=ready)


def ready_step(
    parts: Any, engine: str | None, query: Tensor, memory: Memory, state: AttentionState | None
) -> AttentionResult | None:
    """The result of queries (B, D), or None where anything is not as it was when the memory was prepared.

    `parts` are the modules inside the attention, by name.
    """
    ready, score = memory.ready, parts["score"]
    if ready is None or torch.compiler.is_compiling() or score is not ready.score:
        return None
    if engine not in (None, "triton") or parts["terms"]._modules or type(query) is not Tensor:
        return None
    if memory.side is not ready.side or memory.value is not ready.value:
        return None
    if memory.visible is not ready.visible or memory.zeroed is not ready.visible:
        return None
    held = score._parameters
    weight, v, value = held.get("query_weight"), ready.inner.bare(), ready.value
    if (
        weight is None
        or score._modules["score"] is not ready.inner
        or v is not ready.v
        or v.data_ptr() != ready.shared.data_ptr()
    ):
        return None
    if not weight.dtype is query.dtype is value.dtype or query.shape != ready.queries:
        return None
    if query.device != value.device or is_observed((query,)):
        return None
    if not is_as_written(score, PROJECTING):
        return None
    before = started(ready, state)
    if before is None:
        return None
    if torch.is_grad_enabled():
        if value.is_inference():  # autograd cannot save inference tensors
            return None
        if memory.hidden is not None:
            # NaN in a query that sees nothing, times a gradient of 0, would reach the parameters.
            query = query.masked_fill(memory.hidden.whole, 0)
    bias = held.get("query_bias")
    a = linear(query, weight, bias)
    return take_step(ready.over, ready.gathering, a, ready.shared, before)


def started(ready: Ready, state: AttentionState | None) -> Tensor | None:
    """The total of the weights before this step, as the kernels read it; None for a state of another kind."""
    if state is None:
        return torch.zeros(ready.weights, dtype=FLOAT, device=ready.value.device)
    total = state.total if type(state) is AttentionState else None
    if total is None or total.shape != ready.weights or total.dtype is not FLOAT:
        return None
    return total if total.is_contiguous() else None
