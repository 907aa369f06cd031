"""Scale: put 1/sqrt(d) right."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.arguments import check_positive
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import (
    Applied,
    Case,
    NotApplicable,
    Remedy,
    fold,
    loud_key,
    needs_sides,
    put_change,
)
from regard.doctor.remedies.change import Change
from regard.doctor.remedies.intervene import changes_in


class Scaled(Change):
    """Logits times a fixed factor."""

    factor: Tensor

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer(
            "factor", torch.tensor([factor], dtype=torch.float64), persistent=False
        )
        self.number = factor

    def rate(self) -> Tensor:
        """The factor."""
        return self.factor

    def arguments(self) -> dict[str, Any]:
        """The factor."""
        return {"factor": self.number}


class Scale(Remedy):
    """Divide dot products by sqrt(d), where that was left out or done twice."""

    name = "scale"
    does = (
        "Makes the factor on the dot products 1/sqrt(d), so that unit-variance queries and keys "
        "give logits of variance 1. It goes into the weights of the queries where they can be told."
    )
    source = "Vaswani et al. 2017, 3.2.1 (arXiv 1706.03762)"
    moves = frozenset(
        {"logit_var", "logit_max", "logit_bound", "entropy", "max_weight", "jacobian", "query_grad"}
    )
    options: ClassVar[dict[str, Any]] = {"to": None}

    def refuse(self, finding: Finding) -> str | None:
        """A loud key stays the loudest."""
        if loud_key(finding):
            return (
                "scale shrinks all logits alike and one loud key stays the loudest: at ten times "
                "the norm it still takes a quarter of the queries, scaled by 1/sqrt(d) (measured at "
                "512 keys, d=64; 37% unscaled). key-clip and cosine stop it"
            )
        return super().refuse(finding)

    def cannot(self, case: Case) -> str | None:
        """The scale must be known."""
        return needs_sides(case)

    def apply(self, case: Case, *, to: float | None = None, **_: Any) -> Applied:
        """Into the weights, or else onto the queries."""
        width, was = case.sides()[0].shape[-1], case.call.seen.scale
        # The call is located as it was before an earlier treatment.
        for _name, change in changes_in(case.model):
            if isinstance(change, Scaled) and change.place == case.place:
                was *= change.number
        now = width**-0.5 if to is None else to
        check_positive(to=now)
        factor = now / was
        if abs(factor - 1) < 0.01:
            raise NotApplicable(f"{case.site} is scaled by {now:.4g} already (d={width})")
        heads, key_heads = case.place.heads, case.place.key_heads
        undo = fold(case, torch.full((heads,), factor, dtype=torch.float64), torch.ones(key_heads))
        where, names = "into the weights that make the queries", ()
        if undo is None:
            where = "onto the queries of each call"
            undo, names = put_change(case, "scale", Scaled(factor).to(**case.like()))
        return Applied(
            f"logits times {factor:.4g} ({was:.4g} to {now:.4g}), {where}",
            "changed on purpose: all logits of the call are other ones",
            undo,
            names,
        )
