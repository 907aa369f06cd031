"""The `triton` engine: what it serves, without importing Triton."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from regard.engines.base import RunAgain
from regard.engines.gpu import HAS_TRITON, MOST_KERNEL_ROWS, generation, is_known, too_large
from regard.engines.sizes import is_too_short_for_series
from regard.engines.tiled import Kernels, Layout, Operators, Tiled
from regard.forms import Pairwise
from regard.problem import Problem

LARGEST_VALUE_DIM = 1024
OLDEST_FOR_TRITON = 8  # Ampere
# Whether kernels run on the CPU in Triton's interpreter (NumPy), which is slow and meant for tests. The
# accepted values are Triton's; `launching.interpreted` asks Triton itself once it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
KERNEL_ACTIVATIONS = ("tanh", "leaky_relu")
# With fewer queries than this the decode kernels run: laying keys out would cost more than it saves.
FEWEST_QUERIES_FOR_TILES = 16
# Statistics that the decode kernels compute; a request for any other one takes the tiled kernels.
OF_FEW_QUERIES = {"lse", "max_logit", "max_weight"}


class Lazy:
    """A stand-in for `calls.py`, which it imports at the first call: `import regard` needs no Triton."""

    def __getattr__(self, name: str):
        def run(*arguments):
            return getattr(loaded(), name)(*arguments)

        return run


@functools.cache
def loaded() -> ModuleType:
    """The module `calls.py`, which imports Triton."""
    from regard.engines.triton import calls

    return calls


class Triton(Tiled):
    """Both forms in Triton: online softmax in tiles, forward and backward, statistics included.

    Neither the [Q, L, hidden] tensor of a pairwise score nor the Q x L matrix is ever built.
    """

    name = "triton"
    devices = ("cuda", "cpu") if INTERPRETED else ("cuda",)
    repeats_on = devices if HAS_TRITON else ()
    operators = Operators("triton", cast(Kernels, Lazy()), devices=("CUDA", "CPU"))

    def refusals(self, problem: Problem) -> list[str]:
        """Calls without a kernel, and machines that cannot run one."""
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
        """True for short calls on a GPU: the series would refuse them, and asking it takes time."""
        p = problem
        return isinstance(p.form, Pairwise) and not p.on_cpu and is_too_short_for_series(p)

    def raw_scores(self, problem: Problem) -> Tensor | None:
        """Raw scores of a pairwise form, without the [Q, L, hidden] tensor."""
        if not isinstance(problem.form, Pairwise) or self.refusals(problem):
            return None
        return None if self.has_long_heads(problem) else self.scores(problem)

    def has_long_heads(self, problem: Problem) -> bool:
        """Whether heads are too large for the kernel of raw scores, which also serves few queries."""
        p = problem
        rows, units = max(p.queries, p.keys), p.form.query.shape[-1]
        return is_known(p.queries, p.keys) and len(too_large(rows, units)) > 0

    def repeated(
        self, problem: Problem, given: Sequence[Tensor], output: Tensor
    ) -> RunAgain | None:
        """A function that runs calls like this one by bound launches; see `Engine.repeated`."""
        if self.refusals(problem):
            return None
        from regard.engines.triton.repeated import repeated

        return repeated(Layout(problem).arguments(None), given, output)

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives; and sums in a fixed order, unless torch is set to be deterministic."""
        missing = ["it has no second derivative (engine 'reference' has)"]
        if not torch.are_deterministic_algorithms_enabled():
            missing.append(
                "gradients are summed in no fixed order; torch.use_deterministic_algorithms(True) "
                "fixes it, at some cost"
            )
        return missing


def sizes_refused(p: Problem) -> list[str]:
    """Reasons of sizes that 32 bits cannot index. For compiled graphs `prepare.py` checks them at run time."""
    rows, units = max(p.queries, p.keys), p.form.query.shape[-1]
    if rows > MOST_KERNEL_ROWS:
        return [f"more than {MOST_KERNEL_ROWS:,} queries or keys are too many for its kernels"]
    if not isinstance(p.form, Pairwise) or only_few_queries(p):
        return []
    return too_large(rows, units)


def only_few_queries(p: Problem) -> bool:
    """Whether only the decode kernels run for this call; they index with 64 bits."""
    soft = not isinstance(p.temperature, torch.Tensor) and p.temperature != 0
    return (
        p.queries < FEWEST_QUERIES_FOR_TILES and not p.dropout and soft and p.want <= OF_FEW_QUERIES
    )
