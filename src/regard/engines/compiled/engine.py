"""The `compiled` engine: what it serves, and its operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.engines.native import absent
from regard.engines.sizes import is_short_for_compiled
from regard.engines.tiled import Operators, Tiled
from regard.forms import Pairwise
from regard.problem import Problem

SERVED = ("tanh", "leaky_relu")


class LazyCalls:
    """The functions of `calls.py`, which is imported when one of them runs: it needs NumPy, and regard torch alone."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function that calls the one of that name."""

        def call(*given: Any) -> Any:
            from regard.engines.compiled import calls

            return getattr(calls, name)(*given)

        return call


CALLS: Any = LazyCalls()


class Compiled(Tiled):
    """Pairwise scores on the CPU by kernels that numba compiles.

    Each thread takes whole blocks of queries and never waits for another, so a busy core delays little. The
    [Q, L, hidden] tensor is never built, and memory grows with the length.
    """

    name = "compiled"
    operators = Operators("compiled", CALLS, devices=("CPU",))

    def refusals(self, problem: Problem) -> list[str]:
        """Other devices, forms, dtypes and activations, and a machine without numba."""
        reasons, form = [], problem.form
        if not problem.on_cpu:
            reasons.append(f"the tensors are on {problem.device.type!r}, not on the CPU")
        if not isinstance(form, Pairwise):
            reasons.append("it runs pairwise scores; inner products have SDPA")
        elif form.activation not in SERVED:
            reasons.append(
                f"it has kernels for {' and '.join(SERVED)}, not for {form.activation!r}"
            )
        if torch.float64 in (form.query.dtype, form.key.dtype, problem.dtype):
            reasons.append("its kernels compute in fp32, which fp64 inputs ask more of")
        # numba is not imported to refuse what another engine serves.
        missing = absent(load=not reasons)
        return reasons if missing is None else [*reasons, missing]

    def comes_last(self, problem: Problem) -> bool:
        """True for short calls, which would wait for a compiler or for its copies."""
        return (
            problem.on_cpu and isinstance(problem.form, Pairwise) and is_short_for_compiled(problem)
        )

    def raw_scores(self, problem: Problem) -> Tensor | None:
        """Raw scores of the calls that it serves, but for short ones."""
        if is_short_for_compiled(problem) or self.refusals(problem):
            return None
        return self.scores(problem)

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives with dropout; without it they build the Q x L tensors."""
        if problem.dropout:
            return ["with dropout it has no second derivative (engine 'reference' has)"]
        return []
