"""Picks what runs attention over the edges of a graph, and says why.

As in `plan.py`, the choice depends on shapes, dtypes and options, never on timing nor on what is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.engines.edges.call import EdgeCall, common_refusals
from regard.engines.edges.graph import SortedEdges
from regard.engines.gpu import HAS_TRITON, generation
from regard.engines.native import absent
from regard.engines.plan import Plan
from regard.scores import Score

PLAIN = "edges-plain"
# On a CPU, below this `EdgeCall.work` sorting and dividing takes as long as PyTorch's own operations.
FEW_ON_CPU = 2**17
# On a GPU few edges, as in examples and tests, do not wait for kernels to compile.
FEW_ON_GPU = 2**16
OLDEST_FOR_TRITON = 8  # Ampere
SMALL = "{0:,} numbers at the edges are few: PyTorch's own operations are as fast below {1:,}"
BUILDS = "it builds tensors with a row of H x max(W, C) numbers for each edge"


def cpu_refusals(call: EdgeCall) -> list[str]:
    """Why numba's kernels do not run the call; empty if they do."""
    if call.device.type != "cpu":
        return [f"the tensors are on {call.device.type!r}"]
    reasons = common_refusals(call)
    if not reasons and call.work < FEW_ON_CPU:
        reasons.append(SMALL.format(call.work, FEW_ON_CPU))
    # Asked last: it imports numba.
    if not reasons and (missing := absent()):
        reasons.append(missing)
    return reasons


def triton_refusals(call: EdgeCall) -> list[str]:
    """Why Triton's kernels do not run the call; empty if they do."""
    if call.device.type != "cuda":
        return [f"the tensors are on {call.device.type!r}, and its kernels run on CUDA devices"]
    reasons = common_refusals(call)
    if not HAS_TRITON:
        reasons.append("it needs Triton 3.6 or newer: pip install regard[triton]")
    if generation(call.device.index) < OLDEST_FOR_TRITON:
        reasons.append("its kernels need compute capability 8.0 (Ampere) or newer")
    if not reasons and call.work < FEW_ON_GPU:
        reasons.append(SMALL.format(call.work, FEW_ON_GPU))
    return reasons


REFUSALS: dict[str, Callable[[EdgeCall], list[str]]] = {
    "edges-cpu": cpu_refusals,
    "edges-triton": triton_refusals,
}


def by_kernels(call: EdgeCall) -> bool:
    """Whether kernels run the call; PyTorch's own operations do otherwise."""
    refusals = cpu_refusals if call.device.type == "cpu" else triton_refusals
    return not refusals(call)


def explain_edges(call: EdgeCall, score: Score) -> Plan:
    """The plan of a call; see `Plan`."""
    refused = {name: reasons for name, ask in REFUSALS.items() if (reasons := ask(call))}
    served = next((name for name in REFUSALS if name not in refused), PLAIN)
    notes = [BUILDS] if served == PLAIN else []
    if served != PLAIN:
        notes.append("second derivatives are computed in PyTorch's operations")
        if not isinstance(call.edges, SortedEdges):
            notes.append("edge_index is sorted in every call; regard.SortedEdges.of sorts it once")
    return Plan(
        engine=served,
        score=score.name,
        form=call.describe(),
        error_bound=math.nan,
        refused=refused,
        notes=notes,
    )
