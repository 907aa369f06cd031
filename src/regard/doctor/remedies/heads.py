"""Heads: draws the weights of heads that are copies again."""

from __future__ import annotations

from typing import Any

import torch

from regard.doctor.findings.finding import Finding
from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, named
from regard.doctor.remedies.projections import redraw_rows


class RedrawHeads(Remedy):
    """Heads: gives copies of a head weights of their own."""

    name = "heads"
    does = (
        "Draws the query and key weights of all copies but the first again, as large as they were, so "
        "that each head can learn something of its own. Or remove the copies: most models can lose 20 "
        "to 40% of their heads without a noticeable loss."
    )
    source = "Michel et al. 2019 (arXiv 1905.10650); Voita et al. 2019 (arXiv 1905.09418)"
    moves = frozenset({"head_similarity"})

    def refuse(self, finding: Finding) -> str | None:
        """Refuses findings that name no copies."""
        if finding.disease == "identical-heads" or len(finding.heads) > 1:
            return super().refuse(finding)
        return f"heads redraws copies of a head, and {finding.disease} names none"

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs heads that do not share their keys."""
        if case.place.heads != case.place.key_heads:
            return f"heads of {case.site} share their keys: one head cannot be redrawn alone"
        if case.call.seen.query is None and case.call.seen.pairwise is None:
            return f"queries and keys of {case.site} cannot be identified"
        return None

    def apply(self, case: RemedyCase, *, seed: int = 0, **_: Any) -> Applied:
        """Redraw all copies but the first."""
        copies = case.heads[1:]
        generator = torch.Generator().manual_seed(seed)
        undo = redraw_rows(case.module, case.call, copies, generator, case.look)
        if undo is None:
            raise NotApplicable(f"the query and key weights of {case.site} cannot be identified")
        return Applied(
            f"query and key weights of {named(copies)} drawn again",
            "exactly for the other heads",
            undo,
        )
