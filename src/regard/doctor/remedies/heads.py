"""Heads: draw the weights of copies anew."""

from __future__ import annotations

from typing import Any

import torch

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, named
from regard.doctor.remedies.projections import redraw_rows


class RedrawHeads(Remedy):
    """Give copies of a head weights of their own."""

    name = "heads"
    does = (
        "Draws the weights that make the queries and keys of all but the first of the copies anew, "
        "as large as they were, so that they can learn something of their own. Or take them out: "
        "most models lose 20 to 40% of their heads without notice."
    )
    source = "Michel et al. 2019 (arXiv 1905.10650); Voita et al. 2019 (arXiv 1905.09418)"
    moves = frozenset({"head_similarity"})

    def refuse(self, finding: Finding) -> str | None:
        """For copies alone."""
        if finding.disease == "identical-heads" or len(finding.heads) > 1:
            return super().refuse(finding)
        return f"heads draws copies of a head anew, and {finding.disease} has found none"

    def cannot(self, case: RemedyCase) -> str | None:
        """There must be queries and keys of their own."""
        if case.place.heads != case.place.key_heads:
            return f"heads of {case.site} share their keys: a copy cannot be drawn alone"
        if case.call.seen.query is None and case.call.seen.pairwise is None:
            return f"queries and keys of {case.site} cannot be told"
        return None

    def apply(self, case: RemedyCase, *, seed: int = 0, **_: Any) -> Applied:
        """All but the first."""
        copies = case.heads[1:]
        generator = torch.Generator().manual_seed(seed)
        undo = redraw_rows(case.module, case.call, copies, generator, case.look)
        if undo is None:
            raise NotApplicable(f"the weights that make the heads of {case.site} cannot be told")
        return Applied(
            f"queries and keys of {named(copies)} drawn anew",
            "exactly for the other heads",
            undo,
        )
