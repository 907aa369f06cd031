"""Shrink-tanh: brings the hidden units of an additive score out of saturation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.arguments import check_positive
from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, Remedy, RemedyCase, fold, put_change, vitals_of
from regard.doctor.remedies.change import Change, by_head

# With standard normal sums inside tanh, 7% of the units have less than a tenth of the largest slope; in a
# saturated head most do.
SIZE = 1.0


class ShrunkSides(Change):
    """Both sides of a pairwise score multiplied by a fixed `factor` (H,)."""

    factor: Tensor
    pairwise = True

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(heads))

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Both a and b, scaled."""
        # All heads of a group have the same factor: the key takes that of the first.
        group = self.factor.shape[0] // key.shape[-3]
        return query * by_head(self.factor, query), key * by_head(self.factor[::group], key)

    def arguments(self) -> dict[str, Any]:
        """The number of heads."""
        return {"heads": self.factor.shape[0]}


class ShrinkTanh(Remedy):
    """Shrink-tanh: scales the projections of an additive score down."""

    name = "shrink-tanh"
    does = (
        "Multiplies the projections of query and key by one factor, so that the sums inside tanh "
        "have size 1 and most units have a slope again. The signs of the sums and v stay, so logits "
        "keep their order of magnitude and the bound that v sets."
    )
    source = "ours: a sum of size 1 leaves 7% of the units with less than a tenth of the slope"
    moves = frozenset({"tanh_saturated", "tanh_slope"})
    changes = (ShrunkSides,)

    def refuse(self, finding: Finding) -> str | None:
        """Refuses findings that are not about a saturated tanh."""
        if vitals_of(finding) & self.moves:
            return None
        return f"shrink-tanh treats saturated additive scores, and {finding.disease} is about none"

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs a score with a tanh."""
        form = case.call.seen.pairwise
        if case.call.seen.hidden is not None:
            return (
                f"the score of {case.site} is written out: divide the weights of its two projections by "
                "the size of the sums inside tanh, or use regard.nn with a score"
            )
        if form is None or form.activation not in ("tanh", "sine"):
            return f"{case.site} has no tanh: only additive scores have one"
        return None

    def apply(self, case: RemedyCase, *, size: float = SIZE, **_: Any) -> Applied:
        """Scale each head by one factor; heads that share a key take the smallest of theirs."""
        check_positive(size=size)
        a, b = case.sides()
        place = case.place
        group = place.heads // place.key_heads
        # Mean square of a + b over all pairs, without building them: E a² + E b² + 2 E a E b.
        mean_a, mean_b = a.mean(-2), b.mean(-2).repeat_interleave(group, 1)
        square = a.square().mean((-2, -1)) + b.square().mean((-2, -1)).repeat_interleave(group, 1)
        square = square + 2 * (mean_a * mean_b).mean(-1)
        rms = square.mean(0).clamp(min=1e-30).sqrt()
        factor = (size / rms).clamp(max=1.0).cpu()
        factor = factor.unflatten(0, (-1, group)).amin(-1)
        on_query = factor.repeat_interleave(group)
        undo, where = fold(case, on_query, factor), "into the projections"
        names: tuple[str, ...] = ()
        if undo is None:
            change = ShrunkSides(place.heads).to(**case.like())
            change.factor.copy_(on_query)
            undo, names = put_change(case, "shrink_tanh", change)
            where = "onto both sides of each call"
        least = float(factor.min())
        return Applied(
            f"sums inside tanh times {least:.3g} at the least, {where}",
            "signs of all units and the bound on the logits stay; saturated units get a slope",
            undo,
            names,
        )
