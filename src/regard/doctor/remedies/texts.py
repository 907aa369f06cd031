"""Remedies that code cannot apply: advice on what to look for and do."""

from __future__ import annotations

from typing import Any

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase


class Told(Remedy):
    """Base class of remedies that are advice only."""

    applies = False

    def refuse(self, finding: Finding) -> str | None:
        """None: advice that changes nothing is never refused."""
        return None

    def cannot(self, case: RemedyCase) -> str:
        """The advice, as the reason why code cannot apply it."""
        return f"{self.name} has to be done by hand: {self.does}"

    def apply(self, case: RemedyCase, **options: Any) -> Applied:
        """Raises: code cannot apply it."""
        raise NotImplementedError(self.cannot(case))


class EpsilonAdvice(Told):
    """Lower the epsilon of AdamW."""

    name = "epsilon"
    does = (
        "The gradients that reach queries and keys are as small as the optimizer's epsilon, so its "
        "steps vanish: lower epsilon, AdamW(eps=1e-15), or raise the loss scale."
    )
    source = "Wortsman et al. 2023 (arXiv 2309.14322): eps 1e-8 to 1e-15"


class GradientAdvice(Told):
    """Look for what cuts the gradients off."""

    name = "gradient"
    does = (
        "Queries, keys or values get no gradient at all: look for detach(), .data, torch.no_grad() or "
        "inference_mode() around them, for parameters with requires_grad=False, for an output layer or "
        "gate that is zero and frozen, and for an optimizer that was made before they were."
    )
    source = "torch's documentation of autograd"


class NumbersAdvice(Told):
    """Look for what makes NaN and Inf."""

    name = "numbers"
    does = (
        "NaN or Inf arise in this layer or before it: look for a division by a norm or standard "
        "deviation of 0 (add an epsilon), a log of 0, and numbers beyond the dtype (half precision "
        "ends at 65504: use bfloat16, or compute that part in float32). "
        "torch.autograd.set_detect_anomaly(True) names the operation that breaks in backward."
    )
    source = "torch's documentation of autograd and autocast"


class RateAdvice(Told):
    """Lower the learning rate, or warm up longer."""

    name = "rate"
    does = (
        "Logits that grow and do not slow down mostly come from steps that are too large: try a third of "
        "the learning rate, or a warm-up of more steps, before anything is changed about the model."
    )
    source = "Wortsman et al. 2023 (arXiv 2309.14322): logits grow with the learning rate"
