"""The `cpu` engine: what it serves, and its operators."""

from __future__ import annotations

from torch import Tensor

from regard.engines.cpu import calls
from regard.engines.tiled import Operators, Tiled
from regard.forms import Pairwise
from regard.problem import Problem


class Cpu(Tiled):
    """Both forms on the CPU in tiles with online softmax.

    Memory grows with the length, not with its square: the backward recomputes each tile. The
    [Q, L, hidden] tensor of a pairwise score is never built.
    """

    name = "cpu"
    operators = Operators("cpu", calls, devices=("CPU",))

    def refusals(self, problem: Problem) -> list[str]:
        """Tensors on other devices; on the CPU it serves everything."""
        where = problem.device.type
        return [] if problem.on_cpu else [f"the tensors are on {where!r}, not on the CPU"]

    def raw_scores(self, problem: Problem) -> Tensor | None:
        """Raw scores of a pairwise form, without the [Q, L, hidden] tensor."""
        served = problem.on_cpu and isinstance(problem.form, Pairwise)
        return self.scores(problem) if served else None

    def missing_promises(self, problem: Problem) -> list[str]:
        """Second derivatives with dropout; without it they build the Q x L tensors."""
        if problem.dropout:
            return ["with dropout it has no second derivative (engine 'reference' has)"]
        return []
