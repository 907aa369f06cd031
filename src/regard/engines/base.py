"""The protocol of an engine (`Engine`), its result (`Attended`), and small maths that engines share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.problem import Problem

# Computes the output from query, key, value and v of a call that repeats an earlier one.
RunAgain = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
STATISTICS = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")


class Attended(NamedTuple):
    """The result of `attend`: the output and the requested statistics; all others are None.

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
        """A copy with some fields replaced."""
        # Written out: torch.compile of older releases cannot trace `_replace`.
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

    An engine subclasses this and writes `name`, `refusals`, `missing_promises` and `run`. The other
    methods have defaults that suit an exact engine without short cuts. `plan.py` therefore asks every
    engine the same questions and knows none by name.

    Attributes:
        name: the value of `engine=` that requests this engine.
        approximate: whether the result has an error beyond rounding. Such an engine runs only where the
            caller allows one, with `error=` or by requesting the engine by name.
        runs_series: whether it is the engine of a series that a score names.
        every_derivative: whether forward-mode derivatives, and derivatives of derivatives under
            transforms of `torch.func`, pass through it. They pass through PyTorch's plain operations.
        repeats_on: device types on which `repeated` may return a short cut.
    """

    name: str
    approximate: bool = False
    runs_series: bool = False
    every_derivative: bool = False
    repeats_on: tuple[str, ...] = ()

    @abstractmethod
    def refusals(self, problem: Problem) -> list[str]:
        """Reasons why this engine does not run the problem, one sentence each; empty if it does."""

    @abstractmethod
    def run(self, problem: Problem) -> Attended:
        """The result. Called only where `refusals` is empty."""

    @abstractmethod
    def missing_promises(self, problem: Problem) -> list[str]:
        """Promises of the specification that this engine does not keep for a problem it serves."""

    def refusals_of_call(self, problem: Problem) -> list[str]:
        """`refusals` for a call that is about to run, so that an engine may count it; `explain` counts none."""
        return self.refusals(problem)

    def comes_first(self, problem: Problem) -> bool:
        """Whether this engine is asked before the engines preferred to it. Every call asks: keep it cheap."""
        return False

    def comes_last(self, problem: Problem) -> bool:
        """Whether this engine is asked after all others. Every call asks: keep it cheap."""
        return False

    def added_error(self, problem: Problem) -> float:
        """The error bound of an approximation, on top of that of rounding."""
        return 0.0

    def error_bound(self, problem: Problem) -> float | None:
        """A bound on the whole error of the output, or None for that of rounding plus `added_error`."""
        return None

    def raw_scores(self, problem: Problem) -> Tensor | None:
        """Raw logits (*, H, Q, L) in working precision, or None to leave them to a later engine."""
        return None

    def repeated(
        self, problem: Problem, given: Sequence[Tensor], output: Tensor
    ) -> RunAgain | None:
        """A function that runs further calls like this one from their tensors alone, or None.

        `given` is query, key, value and v as the caller passed them, `output` what the call returned.
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
    # The square of the norm is S2 - 2 S3 + S2^2 with Sn the sum of all p^n. Terms of p_1 are collected,
    # so that 1 - p_1 never appears as a difference.
    other = squares - 2 * cubes + squares * squares
    return (peak * peak * (rest * rest + 2 * squares) + other).clamp(min=0).sqrt()


def with_hard_rows(result: Attended, hard: Tensor, mass: Tensor) -> Attended:
    """`result` with the statistics of hard rows (temperature 0) in place of the soft ones.

    Weights of a hard row are one-hot; their sum `mass` is 1, or 0 where the query sees nothing. Entropy
    and Jacobian are 0. LSE and the largest logit are NaN: they grow without bound as the temperature
    falls.
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
    """The soft cap `cap * tanh(logits / cap)`, within (-cap, cap)."""
    return cap * torch.tanh(logits / cap)


def repeat_heads(x: Tensor, heads: int, dim: int = -3) -> Tensor:
    """`x` with grouped heads repeated, one for each query head."""
    group = heads // x.shape[dim]
    return x if group == 1 else x.repeat_interleave(group, dim)
