"""NaN and infinities in a fuzzed call: where they are, and what is promised of the rest.

- What no query sees, and queries that see nothing, may hold anything: nothing changes.
- NaN in a key or query gives NaN in the rows that see it, in a value in those rows and columns, and nowhere
  else, forward or backward. What the gradients of such a row are is not promised.

Shape legend: `*` leading dims, H query heads, Q query length, L key length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.testing.fuzz.opcase import KEEPS_PARTLY_HIDDEN, OpCase
from regard.testing.fuzz.textbook import Found, unclear
from regard.testing.fuzz.view import View, logits_of
from regard.testing.wrappers import SCORES

if TYPE_CHECKING:
    from regard.testing.fuzz.op import Built

ROWS = ("lse", "entropy", "max_logit", "max_weight", "jacobian")


@dataclass
class Poison:
    """Where a case is poisoned.

    Attributes:
        places: for each of query, key and value booleans of its shape (without the width), True for poison.
        what: NaN or infinity.
        rows: (*, H, Q), rows that read poison; None where none does.
        nan: whether these rows must be NaN; of infinities nothing is promised.
    """

    places: Found = field(default_factory=dict)
    what: float = torch.nan
    rows: Tensor | None = None
    nan: bool = False
    of_value: bool = False
    has_heads: bool = True

    def put(self, name: str, x: Tensor) -> Tensor:
        """The tensor with its poison."""
        at = self.places.get(name)
        return x if at is None else torch.where(at.unsqueeze(-1), self.what, x)

    def clean(self, name: str, x: Tensor) -> Tensor:
        """What the textbook reads in its place: not 0, where formulas with norms have no derivative."""
        at = self.places.get(name)
        return x if at is None else torch.where(at.unsqueeze(-1), 0.5, x)

    def flowing(self, upstream: Callable[[Tensor, str], Tensor]) -> Callable[[Tensor, str], Tensor]:
        """Gradients that flow into the textbook: none into rows whose own are not promised."""
        if self.rows is None:
            return upstream
        rows = self.rows if self.has_heads else self.rows.squeeze(-2)

        def flow(like: Tensor, name: str) -> Tensor:
            at = rows if name in ROWS else rows.unsqueeze(-1)
            return torch.where(at, 0, upstream(like, name))

        return flow

    def promises(self, b: Built, got: Found) -> tuple[Found, Found, Found]:
        """For each result where nothing is promised, where NaN must be, and where exactly 0."""
        case, seen = b.case, b.seen
        if case.function == "score":
            return {}, {}, {}
        free, nan, zeros = {}, {}, {}
        no_key = ~seen.any(-1)
        for name in got:
            if name in ("output", "weights") or name in ROWS:
                zeros[name] = self._fit(no_key, name)
        if "weights" in zeros:
            zeros["weights"] = self._squeeze(~seen)
        zeros.pop("lse", None)
        zeros.pop("max_logit", None)
        if case.sink:
            zeros.pop("entropy", None)
        unseen = {"query": no_key, "key": ~seen.any(-2), "value": ~seen.any(-2)}
        for name, at in unseen.items():
            if f"gradient of {name}" in got:
                shape = b.tensors[name].shape
                zeros[f"gradient of {name}"] = ~any_to(~at, shape, self.has_heads).unsqueeze(-1)
        if self.rows is not None:
            self._rows_that_read(b, got, free, nan)
        hard = _unclear_rows(b)
        if hard is not None:
            for name in got:
                if name in ("output", "weights"):
                    free[name] = free.get(name, False) | self._fit(hard, name)
                elif name.startswith("gradient") and bool(hard.any()):
                    free[name] = torch.tensor(True)
        return free, nan, zeros

    def _rows_that_read(self, b: Built, got: Found, free: Found, nan: Found) -> None:
        """Rows with poison in them, and the gradients that they touch."""
        rows, seen = self.rows, b.seen
        assert rows is not None
        any_row = bool(rows.any())
        # A hard look-up reads one value, which the poison need not be.
        soft = b.case.temperature[0] == "number" and not b.case.hard
        for name in got:
            if name == "output" and self.nan and soft:
                nan[name] = self._fit(rows, name)
            elif name == "weights":
                # A hidden key has none, also where the row is NaN.
                free[name] = self._squeeze(rows.unsqueeze(-1) & seen)
            elif name == "output" or name in ROWS:
                free[name] = self._fit(rows, name)
        touched = rows.unsqueeze(-1) & seen
        by_side = {"query": rows, "key": touched.any(-2), "value": touched.any(-2)}
        for name in got:
            if not name.startswith("gradient of "):
                continue
            of = name.removeprefix("gradient of ")
            if any_row and b.case.engine not in KEEPS_PARTLY_HIDDEN:
                free[name] = torch.tensor(True)  # SDPA's backward multiplies hidden pairs by 0
            elif of in by_side:
                at = any_to(by_side[of], b.tensors[of].shape, self.has_heads)
                free[name] = at.unsqueeze(-1)
            elif any_row:
                free[name] = torch.tensor(True)

    def _fit(self, rows: Tensor, name: str) -> Tensor:
        rows = rows if self.has_heads else rows.squeeze(-2)
        return rows if name in ROWS else rows.unsqueeze(-1)

    def _squeeze(self, pairs: Tensor) -> Tensor:
        return pairs if self.has_heads else pairs.squeeze(-3)


def any_to(used: Tensor, shape: torch.Size, has_heads: bool) -> Tensor:
    """Reduce (*, H, length) with `any` to the lead, heads and length of a tensor of that shape."""
    heads = shape[-3] if has_heads else 1
    if used.shape[-2] != heads:
        if heads and used.shape[-2] % heads == 0 and used.shape[-2]:
            used = used.unflatten(-2, (heads, -1)).any(-2)
        else:
            used = used.any(-2, keepdim=True)
    lead = shape[:-3] if has_heads else shape[:-2]
    for dim, n in enumerate(lead):
        if n == 1 and used.shape[dim] != 1:
            used = used.any(dim, keepdim=True)
    return used if has_heads else used.squeeze(-2)


def to_pairs(at: Tensor, heads: int, has_heads: bool) -> Tensor:
    """Booleans of a tensor (*, heads, length) for every query head, (*, H, length)."""
    at = at if has_heads else at.unsqueeze(-2)
    return at.repeat_interleave(heads // max(at.shape[-2], 1), -2)


def draw_poison(case: OpCase, generator: torch.Generator, seen: Tensor) -> Poison:
    """Where the poison of a case is."""
    none = Poison(has_heads=case.has_heads)
    if not case.poison or "expanded" in case.layouts:
        return none
    shapes = {name: torch.Size(case.shape(i)) for i, name in enumerate(("query", "key", "value"))}
    if case.poison.startswith("hidden"):
        what = torch.inf if "inf" in case.poison else torch.nan
        used = {"query": seen.any(-1), "key": seen.any(-2), "value": seen.any(-2)}
        places = {
            name: ~any_to(used[name], shape, case.has_heads).expand(shape[:-1])
            for name, shape in shapes.items()
        }
        return Poison(places, what, None, has_heads=case.has_heads)
    side = case.poison.removeprefix("inf ")
    at = torch.rand(shapes[side][:-1], generator=generator) < 0.3
    if shapes[side][-1] == 0:
        return none
    full = to_pairs(at, case.heads, case.has_heads)
    if side == "query":
        rows = full.expand(seen.shape[:-1]) & seen.any(-1)
    else:
        rows = (seen & full.unsqueeze(-2)).any(-1)
    what = torch.inf if case.poison == "inf key" else torch.nan
    return Poison({side: at}, what, rows, case.poison != "inf key", side == "value", case.has_heads)


def _unclear_rows(b: Built) -> Tensor | None:
    """Rows of a hard look-up whose best key is a matter of rounding; None where no look-up is hard."""
    case = b.case
    if not case.hard and not (case.temperature[0] == "tensor" and case.temperature[2]):
        return None
    numbers = {n: p.detach().cpu().double() for n, p in b.score.named_parameters()}
    query, key = (b.poison.clean(n, b.tensors[n]).double() for n in ("query", "key"))
    if not case.has_heads:
        query, key = query.unsqueeze(-3), key.unsqueeze(-3)
    scores = logits_of(View(b.score, numbers), query, key).expand(b.seen.shape)
    rows = unclear(scores, b.seen, torch.finfo(case.torch_dtype).eps)
    if SCORES[case.score].form == "inner" and case.dtype in ("bf16", "fp16"):
        # Features of half precision are rounded before they are multiplied: by more than an eps of the score.
        rows = rows | unclear(scores, b.seen, 8 * torch.finfo(case.torch_dtype).eps)
    return rows
