"""The `triton` engine: both forms in fused kernels on a GPU."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import cast

import torch

from regard.engines.gpu import HAS_TRITON, generation, too_large
from regard.engines.tiled import Kernels, Operators, Tiled
from regard.forms import Pairwise
from regard.problem import Problem

LARGEST_VALUE_DIM = 1024
OLDEST = 8  # Ampere
# Kernels then run on the CPU, in NumPy: slow, and meant for tests. What Triton takes for yes, without
# importing it.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
ACTIVATIONS = ("tanh", "leaky_relu")
# Fewer queries have kernels of their own: they do not repay what it takes to lay keys out.
FEWEST_QUERIES = 16


class Lazy:
    """`calls.py`, imported when the first kernel runs: without a GPU nobody needs Triton."""

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
            if generation(p.device.index) < OLDEST:
                reasons.append("its kernels need compute capability 8.0 (Ampere) or newer")
            if p.dtype == torch.float64:
                reasons.append("fp64 is left to engine 'reference'")
        activation = getattr(p.form, "activation", ACTIVATIONS[0])
        if activation not in ACTIVATIONS:
            reasons.append(f"it has no kernel for the activation {activation!r}")
        if p.value.shape[-1] > LARGEST_VALUE_DIM:
            reasons.append(
                f"value dim {p.value.shape[-1]} is beyond the {LARGEST_VALUE_DIM} that fit a program"
            )
        few = p.queries < FEWEST_QUERIES and not p.dropout and "entropy" not in p.want
        if isinstance(p.form, Pairwise) and not few:
            reasons += too_large(max(p.queries, p.keys), p.form.v.shape[-1])
        return reasons

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives; and a fixed order of sums, unless asked for."""
        missing = ["it has no second derivative (engine 'reference' has)"]
        if not torch.are_deterministic_algorithms_enabled():
            missing.append(
                "gradients are summed in no fixed order; torch.use_deterministic_algorithms(True) "
                "fixes it, at some cost"
            )
        return missing
