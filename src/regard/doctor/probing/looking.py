"""Runs a model repeatedly on one batch and reads its attention, without lasting changes.

Shape legend: B batch, H query heads, R queries read, L keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.doctor.chart import Chart, Ticket, anchor, unmeasurable
from regard.doctor.running import call
from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import HIDDEN, row_logits, shift_at, size_of
from regard.doctor.vitals.rows import pick_rows
from regard.doctor.vitals.table import Level
from regard.doctor.watch import watch
from regard.precision import widened

Found = TypeVar("Found")
MOST_ROWS = 256


class Look(NamedTuple, Generic[Found]):
    """The result of one run: what was read at each site, by name, and the model's output."""

    sites: dict[str, Found]
    output: Tensor


class ReadingChart(Chart):
    """A chart that keeps the result of `read` for each call, instead of vitals."""

    def __init__(self, read: Callable[[Seen], Any], only: str | None) -> None:
        super().__init__(level=Level.EXACT)
        self.read, self.only = read, only
        self.found: dict[str, Any] = {}

    def record(self, module: str, route: str, seen: Seen) -> Ticket | None:
        """Read the call."""
        site = self.site_of(module, route)
        if site is None or unmeasurable(seen) or self.only not in (None, site.name):
            return None
        # During a call of regard's attention the doctor's mode is active and would capture what is
        # computed here. During a call of FlexAttention it is not, and `indexing` needs modes
        # enabled.
        alone = torch._C.DisableTorchFunction() if seen.flex is None else nullcontext()
        with alone, torch.no_grad():
            self.found[site.name] = self.read(seen)
        return None


def look(
    model: nn.Module, batch: Any, read: Callable[[Seen], Found], only: str | None = None
) -> Look[Found]:
    """Run the model once, inside `undisturbed`, with the same random numbers each time.

    Args:
        model: the model to run.
        batch: a tensor, or a tuple or dict of all arguments.
        read: returns what to keep of a call.
        only: the site to read, None for all.
    """
    doctor, reader = watch(model, vitals=None), ReadingChart(read, only)
    torch.default_generator.manual_seed(0)  # of the CPU; `undisturbed` restores it
    with doctor, doctor.capture.writing_in(reader):
        output = call(model, batch)
    return Look(reader.found, main_output(output))


def main_output(output: Any) -> Tensor:
    """The main tensor of a model's output: logits, or else the first tensor of floats."""
    if isinstance(output, Tensor):
        return output.detach()
    if isinstance(output, Mapping):
        ordered = [output[name] for name in ("logits", "last_hidden_state") if name in output]
        output = [*ordered, *output.values()]
    if isinstance(output, list | tuple):
        for x in output:
            if isinstance(x, Tensor) and x.is_floating_point() and x.ndim:
                return x.detach()
    raise TypeError(f"the model must return a tensor of floats, got {type(output).__name__}")


class ReadWeights(NamedTuple):
    """The weights of one call.

    Attributes:
        weights: (B, H, R, L) over the keys that are visible; with a sink they sum to less than 1.
        rows: (R,), the places of the queries.
        logits: (B, H, R, L); hidden ones hold `HIDDEN`.
    """

    weights: Tensor
    rows: Tensor
    logits: Tensor


def weights_of(seen: Seen, most: int = MOST_ROWS) -> ReadWeights:
    """The weights of at most `most` evenly spaced queries of a call."""
    seen, size = in_full(seen), size_of(seen)
    rows = pick_rows(size.queries, most, 0, anchor(seen).device)
    logits, _ = row_logits(seen, size, rows)
    # A query that sees no key has weights of 0; softmax alone would make them uniform.
    weights = logits.softmax(-1) * (logits.amax(-1, keepdim=True) > HIDDEN / 2)
    if seen.sink is not None:
        over = logits.logsumexp(-1) - shift_at(seen.sink, rows)
        weights = weights * over.sigmoid().unsqueeze(-1)
    return ReadWeights(weights, rows, logits)


def in_full(seen: Seen) -> Seen:
    """The call with query and key in at least fp32."""
    query, key = (None if x is None else widened(x) for x in (seen.query, seen.key))
    return seen._replace(query=query, key=key)


def moved_by(before: Tensor, after: Tensor) -> float:
    """How far an output has moved: |after - before| over |before|; inf where it is NaN."""
    if before.shape != after.shape:
        return float("nan")
    distance = torch.linalg.vector_norm((after - before).double())
    found = float(distance / torch.linalg.vector_norm(before.double()).clamp(min=1e-30))
    return found if found == found else float("inf")
