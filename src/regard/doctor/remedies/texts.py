"""Remedies that no code can apply: what a person has to look for and do."""

from __future__ import annotations

from typing import Any

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Case, Remedy


class Told(Remedy):
    """A remedy in words."""

    applies = False

    def refuse(self, finding: Finding) -> str | None:
        """Nothing is done, so nothing can be wrong with it."""
        return None

    def cannot(self, case: Case) -> str:
        """Never by code."""
        return f"{self.name} is to be done by hand: {self.does}"

    def apply(self, case: Case, **options: Any) -> Applied:
        """Never by code."""
        raise NotImplementedError(self.cannot(case))


class PositionAdvice(Told):
    """Positions."""

    name = "positions"
    does = (
        "Bring positions and content to one size where they are added: sinusoids have amplitude 1, "
        "so embeddings should have about unit variance, or be scaled by sqrt(d) if they were "
        "initialised with variance 1/d. Or tell positions apart from content: rotary or a relative "
        "bias in each layer."
    )
    source = "Vaswani et al. 2017, 3.4 and 3.5 (arXiv 1706.03762); RoFormer (arXiv 2104.09864)"


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


class ResidualAdvice(Told):
    """Tokens that become one."""

    name = "residual"
    does = (
        "Attention averages tokens, and without a way around it they become one token layer by "
        "layer: put a residual connection around attention and a network after it, or give the "
        "residual more weight."
    )
    source = "Dong et al. 2021 (arXiv 2103.03404)"


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
