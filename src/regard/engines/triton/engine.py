"""The `triton` engine: both forms in fused kernels on a GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from regard.engines.base import RunAgain
from regard.engines.gpu import HAS_TRITON, MOST_ROWS, generation, is_known, too_large
from regard.engines.sizes import is_too_short_for_series
from regard.engines.tiled import Kernels, Layout, Operators, Tiled
from regard.forms import Pairwise
from regard.problem import Problem

LARGEST_VALUE_DIM = 1024
OLDEST_FOR_TRITON = 8  # Ampere
# Kernels then run on the CPU, in NumPy: slow, and meant for tests. What Triton takes for yes, without
# importing it.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
KERNEL_ACTIVATIONS = ("tanh", "leaky_relu")
# With fewer queries than this the decode kernels run: laying the keys out would cost more than it saves.
FEWEST_QUERIES_FOR_TILES = 16
# What those kernels compute; all else goes by the others.
OF_FEW_QUERIES = {"lse", "max_logit", "max_weight"}


class Lazy:
    """`calls.py`, imported when the first kernel runs, so that `import regard` needs no Triton."""

    def __getattr__(self, name: str):
        def run(*arguments):
            return getattr(loaded(), name)(*arguments)

        return run


@functools.cache
def loaded() -> ModuleType:
    """The module itself."""
    from regard.engines.triton import calls

    return calls


class Triton(Tiled):
    """Both forms in Triton: online softmax in tiles, forward and backward, statistics included.

    The [Q, L, hidden] tensor of a pairwise score is never built, nor the Q x L matrix.
    """

    name = "triton"
    devices = ("cuda", "cpu") if INTERPRETED else ("cuda",)
    repeats_on = devices if HAS_TRITON else ()
    operators = Operators("triton", cast(Kernels, Lazy()), devices=("CUDA", "CPU"))

    def refusals(self, problem: Problem) -> list[str]:
        """What has no kernel here, and machines that cannot run one."""
        p, reasons = problem, []
        if not HAS_TRITON:
            return ["it needs Triton 3.6 or newer: pip install regard[triton]"]
        if p.on_cpu and not INTERPRETED:
            return ["the tensors are on the CPU; its kernels run on a GPU"]
        if p.device.type not in ("cuda", "cpu"):
            return [f"the tensors are on {p.device.type!r}, and its kernels run on CUDA devices"]
        if not p.on_cpu:
            if generation(p.device.index) < OLDEST_FOR_TRITON:
                reasons.append("its kernels need compute capability 8.0 (Ampere) or newer")
            if p.dtype == torch.float64:
                reasons.append("fp64 is left to engine 'reference'")
        activation = getattr(p.form, "activation", KERNEL_ACTIVATIONS[0])
        if activation not in KERNEL_ACTIVATIONS:
            reasons.append(f"it has no kernel for the activation {activation!r}")
        if p.value.shape[-1] > LARGEST_VALUE_DIM:
            reasons.append(
                f"value dim {p.value.shape[-1]} is beyond the {LARGEST_VALUE_DIM} that fit a program"
            )
        if is_known(p.queries, p.keys):
            reasons += sizes_refused(p)
        return reasons

    def comes_first(self, problem: Problem) -> bool:
        """Short calls, for which the series would refuse: they would notice the time of asking it."""
        p = problem
        return isinstance(p.form, Pairwise) and not p.on_cpu and is_too_short_for_series(p)

    def raw_scores(self, problem: Problem) -> Tensor | None:
        """Of pairwise scores, without the [Q, L, hidden] tensor."""
        if not isinstance(problem.form, Pairwise) or self.refusals(problem):
            return None
        return None if self.has_long_heads(problem) else self.scores(problem)

    def has_long_heads(self, problem: Problem) -> bool:
        """Whether raw scores are refused, also of few queries: theirs come from other kernels."""
        p = problem
        rows, units = max(p.queries, p.keys), p.form.query.shape[-1]
        return is_known(p.queries, p.keys) and len(too_large(rows, units)) > 0

    def repeated(
        self, problem: Problem, given: Sequence[Tensor], output: Tensor
    ) -> RunAgain | None:
        """What runs calls like this one by bound launches; see `Engine.repeated`."""
        if self.refusals(problem):
            return None
        from regard.engines.triton.repeated import repeated

        return repeated(Layout(problem).arguments(None), given, output)

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives; and a fixed order of sums, unless asked for."""
        missing = ["it has no second derivative (engine 'reference' has)"]
        if not torch.are_deterministic_algorithms_enabled():
            missing.append(
                "gradients are summed in no fixed order; torch.use_deterministic_algorithms(True) "
                "fixes it, at some cost"
            )
        return missing


def sizes_refused(p: Problem) -> list[str]:
    """What 32 bits cannot number or count. Under a compiler `prepare.py` asks when the call runs."""
    rows, units = max(p.queries, p.keys), p.form.query.shape[-1]
    if rows > MOST_ROWS:
        return [f"more than {MOST_ROWS:,} queries or keys are too many for its kernels"]
    if not isinstance(p.form, Pairwise) or only_few_queries(p):
        return []
    return too_large(rows, units)


def only_few_queries(p: Problem) -> bool:
    """Whether none but the kernels for few queries serve, which count places in 64 bits."""
    soft = not isinstance(p.temperature, torch.Tensor) and p.temperature != 0
    return (
        p.queries < FEWEST_QUERIES_FOR_TILES and not p.dropout and soft and p.want <= OF_FEW_QUERIES
    )
