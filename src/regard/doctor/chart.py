"""`Chart`: the measurements of a model, a ring of the last steps for each site.

A ring stays on the device until it is read, so that a step costs no host synchronisation.

A site is one attention call of the model's forward pass: a module, and the index of the call among
those it makes in a step. Its name is the module's path; the second call in one step gets #2, the
third #3.

Shape legend: W window, H heads, V vitals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.doctor.facts import Facts, facts_of
from regard.doctor.seen import Seen
from regard.doctor.vitals.cheap import kernels_fit
from regard.doctor.vitals.rows import pick_rows
from regard.doctor.vitals.table import Level
from regard.doctor.vitals.waiting import Waiting, squares_fit

# A module called in a loop (a recurrent decoder) makes a site for each turn, up to this many.
MOST_CALLS = 64
# What `WatchedSite.asked` says of a side.
ASKED, DETACHED, NO_GRAD, UNREAD = "asked", "detached", "no_grad", "unread"


class Vitals(NamedTuple):
    """The functions that measure a call, and the names of the numbers they give.

    Attributes:
        names: one for each column.
        measure: `(seen, level, rows, turn) -> (H, V)`, NaN for what the level does not measure.
        gradient: `(gradient (B, K, T, D), heads) -> (H,)`.
        gradient_columns: the columns for gradients of "query", "key" and "value".
        can_wait: whether `Waiting` may measure in place of `measure`, with the same results.
    """

    names: tuple[str, ...]
    measure: Callable[[Seen, Level, Tensor | None, int], Tensor]
    gradient: Callable[[Tensor, int], Tensor]
    gradient_columns: Mapping[str, int]
    can_wait: bool = False


class History(NamedTuple):
    """The last steps of a site on the host: `steps` and `values` (steps, H, V), oldest first."""

    steps: list[int]
    values: Tensor


class Ring:
    """The last W rows (H, V) on the device, allocated once and overwritten in place.

    Args:
        size: (W, H, V).
        device: the device of the model.
        finish: called before anything is read, because `Waiting` fills rows later than `put`
            reserves them.
    """

    def __init__(
        self, size: tuple[int, int, int], device: torch.device, finish: Callable[[], None]
    ) -> None:
        # A tensor created in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            self._values = torch.full(size, torch.nan, device=device)
        self.steps: list[int] = [0] * size[0]
        self.count = 0
        self._finish = finish

    @property
    def values(self) -> Tensor:
        """(W, H, V), with all rows written."""
        self._finish()
        return self._values

    def put(self, step: int, device: torch.device) -> Tensor:
        """A view (H, V) to write the row of a new step to; it replaces the oldest row."""
        if device != self._values.device:  # the model was moved
            self._values = self.values.to(device)
        place = self.count % len(self.steps)
        self.steps[place] = step
        self.count += 1
        return self._values[place]

    def amend(self, step: int, column: int) -> Tensor | None:
        """A view (H,) of one column of an earlier step; None if the ring has dropped that step."""
        # Gradients nearly always belong to the newest row, so it is tried before the search.
        place = (self.count - 1) % len(self.steps)
        if self.steps[place] != step:
            if step not in self.steps:
                return None
            place = self.steps.index(step)
        return self._values[place, :, column]

    def read(self, after: int = 0) -> History:
        """A copy on the host of the steps later than `after`, oldest first."""
        kept = min(self.count, len(self.steps))
        order = [place % len(self.steps) for place in range(self.count - kept, self.count)]
        order = [place for place in order if self.steps[place] > after]
        return History([self.steps[place] for place in order], self.values[order].cpu())


class WatchedSite:
    """One attention call of the model.

    Attributes:
        name: the module's path, with #2 for its second call in a step.
        module: the path alone.
        route: how it was seen: "sdpa", "flex", "softmax" or "regard".
        heads: number of query heads; 0 before the first measurement.
        ring: its last steps; None before the first measurement.
        facts: sizes and options of the last call that was measured.
        asked: for each side of the last call whether its gradient was asked for: "asked", "detached" if it
            needs none, "no_grad" if autograd was off, "unread" if it came and could not be measured;
            empty where that is not known.
    """

    def __init__(self, name: str, module: str, route: str, index: int) -> None:
        self.name, self.module, self.route, self.index = name, module, route, index
        self.heads = 0
        self.ring: Ring | None = None
        self.facts: Facts | None = None
        self.asked: dict[str, str] = {}

    def __repr__(self) -> str:
        """Name, route and heads."""
        return f"WatchedSite({self.name!r}, {self.route}, {self.heads} heads)"


class Ticket(NamedTuple):
    """The site and step that the gradients of a call belong to."""

    site: WatchedSite
    step: int


class Chart:
    """The sites of a model and what was measured at them.

    Args:
        vitals: what to measure; None only finds the sites.
        level: the level of every `every`-th step, starting with the first; the steps between get the
            cheap level.
        every: see level.
        window: number of steps kept.
        rows: number of queries that the sampled level reads.
    """

    def __init__(
        self,
        vitals: Vitals | None = None,
        level: Level = Level.CHEAP,
        every: int = 1,
        window: int = 1,
        rows: int = 1,
    ) -> None:
        self.vitals, self.level, self.every, self.window = vitals, level, every, window
        self.rows = rows
        self.step = 0
        self.sites: dict[str, WatchedSite] = {}
        self.order: list[WatchedSite] = []
        self.notes: dict[str, list[str]] = {}
        # Called before each step: by then the step before is measured completely, gradients included.
        self.listeners: list[Callable[[], None]] = []
        self._calls: dict[str, int] = {}
        self._waiting: dict[torch.device, Waiting] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy: without listeners and waiting calls, which belong to this object."""
        self.finish()
        return {**vars(self), "listeners": [], "_waiting": {}}

    def begin(self) -> None:
        """Start a new step."""
        self.finish()
        for tell in tuple(self.listeners):
            tell()
        self.step += 1
        self._calls.clear()

    @property
    def current_level(self) -> Level:
        """The level of the current step."""
        due = (self.step - 1) % self.every == 0
        return self.level if due else Level.CHEAP

    @property
    def _turn(self) -> int:
        """Index of the sampled step, from 0: it rotates which entries of a large batch are read."""
        return (self.step - 1) // self.every

    def note(self, sentence: str, where: str) -> None:
        """Keep a sentence about the numbers of a place, once for each place."""
        places = self.notes.setdefault(sentence, [])
        if where not in places:
            places.append(where)

    def record(self, module: str, route: str, seen: Seen) -> Ticket | None:
        """Measure one call; returns the ticket for `record_gradient`, None if nothing was measured."""
        site = self.site_of(module, route)
        if site is None or self.vitals is None:
            return None
        if reason := unmeasurable(seen):
            self.note(f"not measured: {reason}", site.name)
            return None
        level = self.current_level
        try:
            with torch.no_grad():
                # At the cheap level one kernel reads the call and leaves sums; a second one turns the
                # sums of many calls into rows: far fewer launches than a row for each call.
                if self.vitals.can_wait and level is Level.CHEAP and kernels_fit(seen):
                    query = anchor(seen)
                    out = self._place(site, query.shape[1], query.device)
                    self._waiting_on(query.device).add(seen, out)
                else:
                    row = self.vitals.measure(seen, level, self._rows(seen, level), self._turn)
                    self._put(site, row)
                site.facts = facts_of(seen)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            # An error in a measurement must not stop the model.
            self.note(f"not measured: {type(error).__name__}: {error}", site.name)
            return None
        return Ticket(site, self.step)

    def ticket_again(self, module: str) -> Ticket | None:
        """The ticket of a call of this step that backward computes again, as checkpoints do."""
        calls = self._calls.get(module, 0)
        if calls > 1:
            self.note(
                "no gradients: a compiled checkpoint calls attention several times, and backward does "
                "not say which call it recomputes",
                module,
            )
        return Ticket(self.sites[module], self.step) if calls == 1 else None

    def record_gradient(self, ticket: Ticket, side: str, gradient: Tensor) -> None:
        """Measure the gradient (B, K, T, D) of one side; a gradient that holds NaN is recorded as inf.

        NaN in a ring means "not measured", so a broken gradient needs another value.
        """
        site, step = ticket
        if self.vitals is None or site.ring is None or unmeasurable(Seen(query=gradient)):
            return
        out = site.ring.amend(step, self.vitals.gradient_columns[side])
        if out is None:
            return
        try:
            with torch.no_grad():
                if self.vitals.can_wait and squares_fit(gradient, site.heads):
                    self._waiting_on(gradient.device).add_gradient(gradient, out)
                else:
                    # A row that still waits would be written later and overwrite this column.
                    self.finish()
                    out.copy_(
                        self.vitals.gradient(gradient, site.heads).nan_to_num(torch.inf, torch.inf)
                    )
        except (RuntimeError, ValueError) as error:
            site.asked[side] = UNREAD
            self.note(f"gradient not measured: {type(error).__name__}: {error}", site.name)

    def finish(self) -> None:
        """Write all waiting rows; call it before anything is read."""
        for waiting in self._waiting.values():
            waiting.finish()

    def _waiting_on(self, device: torch.device) -> Waiting:
        if device not in self._waiting:
            self._waiting[device] = Waiting(device)
        return self._waiting[device]

    def _put(self, site: WatchedSite, row: Tensor) -> None:
        self._place(site, row.shape[0], row.device).copy_(row)

    def _place(self, site: WatchedSite, heads: int, device: torch.device) -> Tensor:
        """The view (H, V) of the site's ring to write this step to."""
        assert self.vitals is not None
        if site.ring is None:
            size = (self.window, heads, len(self.vitals.names))
            site.heads, site.ring = heads, Ring(size, device, self.finish)
        if heads != site.heads:
            raise ValueError(f"the call has {heads} heads, earlier calls had {site.heads}")
        return site.ring.put(self.step, device)

    def site_of(self, module: str, route: str) -> WatchedSite | None:
        """The site of the module's next call, which is counted; None beyond `MOST_CALLS`."""
        call = self._calls[module] = self._calls.get(module, 0) + 1
        if call > MOST_CALLS:
            self.note(f"only the first {MOST_CALLS} attention calls in a step are measured", module)
            return None
        name = module if call == 1 else f"{module}#{call}"
        site = self.sites.get(name)
        if site is None:
            site = self.sites[name] = WatchedSite(name, module, route, len(self.order))
            self.order.append(site)
        return site

    def _rows(self, seen: Seen, level: Level) -> Tensor | None:
        if level is not Level.SAMPLED:
            return None
        side = anchor(seen)
        return pick_rows(side.shape[-2], self.rows, self.step, side.device)


def anchor(seen: Seen) -> Tensor:
    """The tensor that has the queries in its second to last dim: (B, H, Q, ...)."""
    if seen.pairwise is not None:
        return seen.pairwise.a
    side = seen.query if seen.logits is None else seen.logits
    assert side is not None
    return side


def unmeasurable(seen: Seen) -> str | None:
    """Why these tensors cannot be measured, or None."""
    x = anchor(seen)
    if x.is_nested:
        return "nested tensors"
    if type(x) not in (Tensor, torch.nn.Parameter):
        return f"tensors of type {type(x).__name__}"
    if x.device.type == "meta":
        return "meta tensors hold no numbers"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "inside a torch.func transform"
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return "inside the capture of a CUDA graph: replaying it would not record a step"
    return None
