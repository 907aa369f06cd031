"""What an engine is, and what it gives back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.problem import Problem

# The output of query, key, value and v, of calls like one that was made before.
RunAgain = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")


class Attended(NamedTuple):
    """What `attend` returns; fields that were not asked for are None.

    Logits are `softcap(score / temperature) + bias`; a sink counts as one more outcome.

    Args:
        output: (*, H, Q, value dim).
        lse: log of the sum of exp of the logits, sink included, (*, H, Q). -inf where a query sees
            nothing. Differentiable.
        entropy: of the weights in nats, sink included, (*, H, Q). 0 where a query sees nothing.
            Differentiable.
        max_logit: the largest visible logit, (*, H, Q). -inf where a query sees nothing. Detached.
        max_weight: the largest weight, (*, H, Q). Detached.
        jacobian: Frobenius norm of the softmax's Jacobian over the keys, (*, H, Q): how much
            gradient can reach the scores at all. Detached.
        weights: (*, H, Q, L), before dropout. Differentiable. Costs memory Q * L.
    """

    output: Tensor
    lse: Tensor | None = None
    entropy: Tensor | None = None
    max_logit: Tensor | None = None
    max_weight: Tensor | None = None
    jacobian: Tensor | None = None
    weights: Tensor | None = None

    def with_changed(self, fields: dict[str, Tensor]) -> Attended:
        """The same with some fields changed; unlike `_replace` older compilers can trace it."""
        return Attended(
            fields.get("output", self.output),
            fields.get("lse", self.lse),
            fields.get("entropy", self.entropy),
            fields.get("max_logit", self.max_logit),
            fields.get("max_weight", self.max_weight),
            fields.get("jacobian", self.jacobian),
            fields.get("weights", self.weights),
        )


class Engine(Protocol):
    """Runs a lowered problem on some hardware.

    `refusals` is empty where the engine serves the problem and keeps all its promises; otherwise
    each reason is one sentence for the user. An engine subclasses this and writes `name`, `refusals`,
    `missing_promises` and `run`. The rest has defaults that suit an exact engine without short cuts,
    so that `plan.py` asks every engine the same questions and knows none by name.

    Attributes:
        name: by which a caller asks for it.
        approximate: the result has an error beyond rounding. It then runs only where the caller
            allows one, by `error=` or by asking for the engine by name.
        repeats_on: types of devices on which `repeated` may return something.
    """

    name: str
    approximate: bool = False
    repeats_on: tuple[str, ...] = ()

    @abstractmethod
    def refusals(self, problem: Problem) -> list[str]:
        """Why this engine will not run the problem; empty if it will."""

    @abstractmethod
    def run(self, problem: Problem) -> Attended:
        """Run it. Called only where `refusals` is empty."""

    @abstractmethod
    def missing_promises(self, problem: Problem) -> list[str]:
        """What this engine does not promise here although it serves the problem."""

    def refusals_of_call(self, problem: Problem) -> list[str]:
        """`refusals` of a call that is really made, which an engine may count; `explain` makes none."""
        return self.refusals(problem)

    def comes_first(self, problem: Problem) -> bool:
        """Whether to ask this engine before those that are preferred to it; must be cheap to answer."""
        return False

    def added_error(self, problem: Problem) -> float:
        """What an approximate engine adds to the error bound of rounding."""
        return 0.0

    def raw_scores(self, problem: Problem) -> Tensor | None:
        """Raw logits (*, H, Q, L) in working precision; None where another engine has them leaner."""
        return None

    def repeated(
        self, problem: Problem, given: Sequence[Tensor], output: Tensor
    ) -> RunAgain | None:
        """What runs further calls like this one from their tensors alone; None for no such short cut.

        `given` is query, key, value and v as the caller gave them, `output` what was returned.
        """
        return None


def jacobian_norm(peak: Tensor, rest: Tensor, squares: Tensor, cubes: Tensor) -> Tensor:
    """Frobenius norm of `diag(p) - p p'` without cancellation in saturated rows.

    Args:
        peak: the largest weight p_1.
        rest: 1 - p_1, summed from the other outcomes and not subtracted from 1.
        squares: sum of the squares of the other weights.
        cubes: sum of their cubes.
    """
    other = squares - 2 * cubes + squares * squares
    return (peak * peak * (rest * rest + 2 * squares) + other).clamp(min=0).sqrt()


def with_hard_rows(result: Attended, hard: Tensor, mass: Tensor) -> Attended:
    """Put the statistics of hard rows (temperature 0) in place of the soft ones.

    The weights there are one-hot, with `mass` 1, or 0 where nothing is seen: entropy and Jacobian
    are 0, and LSE and the largest logit, which grow without bound as the temperature falls, NaN.
    """
    instead = {"lse": torch.nan, "max_logit": torch.nan, "entropy": 0.0, "jacobian": 0.0}
    changed = {
        name: torch.where(hard, constant, x)
        for name, constant in instead.items()
        if (x := getattr(result, name)) is not None
    }
    if result.max_weight is not None:
        changed["max_weight"] = torch.where(hard, mass, result.max_weight)
    return result.with_changed(changed)


def soft_capped(logits: Tensor, cap: float) -> Tensor:
    """Logits bounded to `cap * tanh(logits / cap)`."""
    return cap * torch.tanh(logits / cap)


def repeat_heads(x: Tensor, heads: int, dim: int = -3) -> Tensor:
    """Repeat grouped heads so that every query head has its own."""
    group = heads // x.shape[dim]
    return x if group == 1 else x.repeat_interleave(group, dim)
