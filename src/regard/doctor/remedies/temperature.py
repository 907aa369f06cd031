"""Temperature: learned for each head, starting at 1 so that the model computes the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.arguments import check_positive
from regard.doctor.findings.dead_softmax import ONE, SLOPE
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, for_heads, loud_key, put_change
from regard.doctor.remedies.change import Change


class Temperature(Change):
    """Logits divided by `exp(log_factor)` (H,), a temperature for each head that stays positive."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(torch.zeros(heads))

    def rate(self) -> Tensor:
        """One over the temperature."""
        return torch.exp(-self.log_factor)

    def arguments(self) -> dict[str, Any]:
        """The number of heads."""
        return {"heads": self.log_factor.shape[0]}


class LearnedTemperature(Remedy):
    """Give every head a temperature to learn."""

    name = "temperature"
    does = (
        "Divides the logits of each head by a learned temperature. It starts at 1, so nothing changes "
        "until the model is trained. No gradient comes through a dead softmax, so there it starts at "
        "the temperature that gives logits of variance 1. start=2.0 halves the logits of the sick "
        "heads."
    )
    source = "QKNorm's learned g, Henry et al. 2020 (arXiv 2010.04245); Swin V2 (arXiv 2111.09883)"
    moves = frozenset({"logit_var", "logit_max", "entropy", "max_weight", "jacobian", "query_grad"})
    changes = (Temperature,)

    def refuse(self, finding: Finding) -> str | None:
        """A loud key stays the loudest."""
        if loud_key(finding):
            return (
                "a temperature divides all logits of a head alike and one loud key stays the "
                "loudest. key-clip and cosine stop it"
            )
        return super().refuse(finding)

    def cannot(self, case: RemedyCase) -> str | None:
        """None: logits can be divided in every call."""
        return None

    def apply(self, case: RemedyCase, *, start: float | None = None, **_: Any) -> Applied:
        """Add a temperature for each head."""
        check_positive(optional=True, start=start)
        heads = case.place.heads
        if start is not None:
            begin = torch.full((heads,), start)
        elif dead(case):
            begin = case.vital("logit_var").nan_to_num(1.0).sqrt().clamp(min=1.0)
        else:
            begin = torch.ones(heads)
        begin = for_heads(case, begin.double(), torch.ones(heads, dtype=torch.float64))
        change = Temperature(case.place.heads).to(**case.like())
        with torch.no_grad():
            change.log_factor.copy_(begin.log())
        undo, names = put_change(case, "temperature", change)
        same = bool((begin == 1).all())
        keeps = "exactly: temperatures begin at 1" if same else "exactly but for the sick heads"
        most = float(begin.max())
        what = f"a learned temperature for each of {heads} heads, starting at {most:.3g} at most"
        return Applied(what, keeps, undo, names)


def dead(case: RemedyCase) -> bool:
    """Whether no gradient comes through the softmax: a temperature of 1 could not learn then."""
    if any(x.made_of == "jacobian" and not x.above for x in case.finding.signals):
        return True
    slope, largest = (case.vital(name)[case.heads] for name in ("jacobian", "max_weight"))
    return bool(((slope < SLOPE) & (largest > ONE)).any())
