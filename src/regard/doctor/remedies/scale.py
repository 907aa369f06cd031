"""Scale: makes the factor on the dot products 1/sqrt(d)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.arguments import check_positive
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import (
    Applied,
    NotApplicable,
    Remedy,
    RemedyCase,
    fold,
    loud_key,
    needs_sides,
    put_change,
)
from regard.doctor.remedies.change import Change, ChangePlace
from regard.doctor.remedies.intervene import changes_in

# Attribute of a module that holds the factors folded into its weights, by place. The weights themselves
# do not show them, and without them a second treatment would scale again.
FOLDED = "_regard_folded_scales"


class Scaled(Change):
    """Logits multiplied by a fixed factor."""

    factor: Tensor

    def __init__(self, factor: float) -> None:
        super().__init__()
        # A buffer, to move with the model; not saved, because `arguments` rebuilds it.
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
    """Scale: divides dot products by sqrt(d) where the model forgot it or did it twice."""

    name = "scale"
    does = (
        "Makes the factor on the dot products 1/sqrt(d), so that unit-variance queries and keys give "
        "logits of variance 1. The factor is folded into the query weights if they can be identified."
    )
    source = "Vaswani et al. 2017, 3.2.1 (arXiv 1706.03762)"
    moves = frozenset(
        {"logit_var", "logit_max", "logit_bound", "entropy", "max_weight", "jacobian", "query_grad"}
    )
    changes = (Scaled,)

    def refuse(self, finding: Finding) -> str | None:
        """Also refuses one loud key, which stays the loudest."""
        if loud_key(finding):
            return (
                "scale shrinks all logits alike, so one loud key stays the loudest: at ten times "
                "the norm it still takes a quarter of the queries, scaled by 1/sqrt(d) (measured at "
                "512 keys, d=64; 37% unscaled). key-clip and cosine stop it"
            )
        return super().refuse(finding)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs query and key, from which the scale is known."""
        return needs_sides(case)

    def apply(self, case: RemedyCase, *, to: float | None = None, **_: Any) -> Applied:
        """Fold the factor into the query weights, or put it onto the queries of each call."""
        width = case.sides()[0].shape[-1]
        was = case.call.seen.scale * scaled_before(case)
        now = width**-0.5 if to is None else to
        check_positive(to=now)
        factor = now / was
        if abs(factor - 1) < 0.01:
            raise NotApplicable(f"{case.site} is scaled by {now:.4g} already (d={width})")
        heads, key_heads = case.place.heads, case.place.key_heads
        undo = fold(case, torch.full((heads,), factor, dtype=torch.float64), torch.ones(key_heads))
        where, names = "into the weights that make the queries", ()
        if undo is not None:
            undo = remembered(case, factor, undo)
        else:
            where = "onto the queries of each call"
            undo, names = put_change(case, "scale", Scaled(factor).to(**case.like()))
        return Applied(
            f"logits times {factor:.4g} ({was:.4g} to {now:.4g}), {where}",
            "changed on purpose: all logits of the call differ",
            undo,
            names,
        )


def scaled_before(case: RemedyCase) -> float:
    """The factor on the logits from earlier treatments, which the call itself does not show."""
    factor = math.prod(getattr(case.module, FOLDED, {}).get(case.place, ()))
    for _name, change in changes_in(case.model):
        if isinstance(change, Scaled) and change.place == case.place:
            factor *= change.number
    return factor


def remembered(case: RemedyCase, factor: float, undo: Callable[[], None]) -> Callable[[], None]:
    """Record a factor folded into the module's weights; returns `undo` that also removes the record."""
    module = case.module
    folded: dict[ChangePlace, list[float]] = module.__dict__.setdefault(FOLDED, {})
    folded.setdefault(case.place, []).append(factor)

    def forget() -> None:
        undo()
        folded[case.place].remove(factor)
        if not any(folded.values()):
            module.__dict__.pop(FOLDED, None)

    return forget
