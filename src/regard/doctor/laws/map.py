"""`InfluenceMap`: who sees whom, beside who should.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.visibility import own_sites

LONGEST = 48  # tokens of a map that is drawn; longer ones are drawn in blocks


class InfluenceMap(NamedTuple):
    """Who sees whom.

    Attributes:
        sees: (T, T), how much the output of a row moved when the token of a column was replaced, over the
            largest change; 0 for noise, NaN where the token was not replaced.
        may: (T, T), True where a row may see a column; None if it is not declared.
        site: (T, T), the mean weight of the first attention call that shows all tokens; None without one.
        name: of that call.
    """

    sees: Tensor
    may: Tensor | None
    site: Tensor | None
    name: str

    def as_dict(self) -> dict[str, object]:
        """The map as plain data: rows of numbers, None where nothing was tested."""
        sees = [[None if math.isnan(x) else round(x, 4) for x in row] for row in self.sees.tolist()]
        may = None if self.may is None else self.may.int().tolist()
        return {"sees": sees, "may": may, "site": self.name}


def map_of(bench: LawBench) -> InfluenceMap | None:
    """The map of the passes that were made; None where no output has rows."""
    target = bench.target
    if target is None or "influences" not in vars(bench):
        return None
    length = target.length
    sees = torch.full((length, length), torch.nan)
    for at, deltas in zip(bench.changed_tokens, bench.influences, strict=True):
        for key, delta in deltas.items():
            if key[1].startswith("output:") and delta.moved.shape == (len(at), length):
                shown = delta.moved * bench.dirty(key, delta)
                most = shown.amax(1, keepdim=True).clamp(min=1e-30)
                for sample, column in enumerate(at.tolist()):
                    moved = (shown / most)[sample]
                    sees[:, column] = torch.fmax(sees[:, column], moved)
                break
    may = bench.declared.visible
    if may is not None and may.ndim > 2:
        may = may[0]
    site = next((x for x in own_sites(bench) if bench.facts[x].picture is not None), "")
    weights = bench.facts[site].picture if site else None
    return InfluenceMap(sees, may, weights, site)
