"""Remedies that code cannot apply: what the user has to look for and do."""

from __future__ import annotations

from typing import Any

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase


class Told(Remedy):
    """A remedy in words."""

    applies = False

    def refuse(self, finding: Finding) -> str | None:
        """Never: it changes nothing."""
        return None

    def cannot(self, case: RemedyCase) -> str:
        """Never by code."""
        return f"{self.name} is to be done by hand: {self.does}"

    def apply(self, case: RemedyCase, **options: Any) -> Applied:
        """Never by code."""
        raise NotImplementedError(self.cannot(case))


class EpsilonAdvice(Told):
    """AdamW's epsilon."""

    name = "epsilon"
    does = (
        "The gradients that reach queries and keys are of the size of the optimiser's epsilon, so "
        "that its steps vanish: lower it, AdamW(eps=1e-15), or raise the loss scale."
    )
    source = "Wortsman et al. 2023 (arXiv 2309.14322): eps 1e-8 to 1e-15"


class GradientAdvice(Told):
    """Gradients that are cut off."""

    name = "gradient"
    does = (
        "Queries and keys get no gradient at all: look for detach(), torch.no_grad() or "
        "inference_mode() around them, for parameters with requires_grad=False, and for an optimizer "
        "that was made before they were."
    )
    source = "torch's documentation of autograd"


class NumbersAdvice(Told):
    """NaN and Inf."""

    name = "numbers"
    does = (
        "NaN or Inf are made before or in this layer: look for a division by a norm or deviation of "
        "0 (add an epsilon), a log of 0, and numbers beyond the dtype (half precision ends at 65504: "
        "use bfloat16, or compute that part in float32). torch.autograd.set_detect_anomaly(True) "
        "names the place in backward."
    )
    source = "torch's documentation of autograd and autocast"
