"""What every route shares: where in the model a call is, and who measures it.

Under `torch.compile` all of this is traced. State that a graph would have to be compiled for again
(steps, levels, history) is behind the operators of `operators.py`; what is here, the stack of
modules and what a follower holds, is at the end of a forward pass what it was before.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.doctor.capture.active import Active
from regard.doctor.capture.gradient_hooks import SIDES, GradientHooks, tapped
from regard.doctor.capture.names import WatchedModule, hook_modules
from regard.doctor.capture.operators import RECEIVERS, send
from regard.doctor.capture.own import seen_of
from regard.doctor.capture.shapes import as_heads
from regard.doctor.capture.softmax import Follower
from regard.doctor.chart import Chart, Ticket
from regard.doctor.seen import Seen
from regard.doctor.vitals.logits import size_of
from regard.doctor.vitals.table import Level
from regard.forms import Inner, Pairwise
from regard.problem import Problem

NUMBERS = itertools.count()
KEYS: set[int] = set()
# How many frames up the code of a compiled graph may be: a checkpoint has some of its own.
NEAR = 40
FUSED_OFF = (
    "torch's fused inference path is off while the doctor watches: outputs can differ from it in "
    "their last bits"
)
FLEX_ROWS = (
    "FlexAttention in a compiled graph: sampled queries stand for all at the exact level; "
    "d.examine(batch) reads all"
)
FLEX_C50 = (
    "FlexAttention with a score_mod in a compiled graph: c50 is not measured; d.examine(batch) does"
)


class Capture:
    """Knows which module of `model` is running, and measures the attention calls in it.

    Args:
        model: whose modules are named.
        chart: who measures.
    """

    def __init__(self, model: nn.Module, chart: Chart) -> None:
        self.chart = chart
        self.number = next(NUMBERS)
        self.stack: list[WatchedModule] = []
        self.follower = Follower()
        self.reader = GradientHooks()
        self.active: Active | None = None
        self.own = False  # inside a call of regard's own, whose engine calls torch's functions
        self.fresh = False  # a compiled forward pass has begun and nothing was seen of it yet
        self.token = torch.zeros((), device="cpu")
        self.thread = threading.get_ident()
        self.places: list[WatchedModule] = []
        self.modules: set[nn.Module] = set()
        self.key = 0  # of its hooks, while they are there
        self._undo: list[Callable[[], object]] = []
        self.model = model
        RECEIVERS[self.number] = self

    def hook(self) -> None:
        """Put the hooks on the model."""
        self.thread = threading.get_ident()
        # Below all numbers of torch's, and the same for a watch that comes after this one.
        self.key = next(key for key in itertools.count(-1, -1) if key not in KEYS)
        KEYS.add(self.key)
        self.places, self._undo = hook_modules(self.model, self, self.number, self.key)
        self.modules = set(self.model.modules())

    def unhook(self) -> None:
        """Take them off; nothing is seen from here on, even in the middle of a forward pass."""
        for undo in self._undo:
            undo()
        KEYS.discard(self.key)
        self._undo, self.modules = [], set()
        self.own = self.fresh = False
        self.stack.clear()
        self.follower.clear()
        self.reader.clear()

    @contextmanager
    def writing_in(self, chart: Chart) -> Iterator[None]:
        """Measure into another chart: for runs on the side, of which the own one gets no step."""
        own, self.chart = self.chart, chart
        try:
            yield
        finally:
            self.chart = own

    # What the hooks tell.

    def enter(self, place: WatchedModule, training: bool) -> None:
        """A module begins; the outermost one begins a step."""
        if torch.compiler.is_compiling():
            if not self.stack:
                self.fresh = True
        elif self._elsewhere():
            return
        else:
            if self.stack and place is self.stack[0] and not self._within_itself():
                # Ctrl-C ended the pass before: torch tells hooks of no error but `Exception`.
                self.stack.clear()
                self.follower.clear()
            if not self.stack:
                if self.active is not None:
                    self.active.resume()
                self.chart.begin()
                self.fresh = False
            if place.fused and not training and not torch.is_grad_enabled():
                self.chart.note(FUSED_OFF, place.name)
        self.stack.append(place)

    def leave(self, place: WatchedModule) -> None:
        """A module ends."""
        if not torch.compiler.is_compiling() and self._elsewhere():
            return
        self.follower.leave(len(self.stack))
        if self.stack and self.stack[-1] is place:
            self.stack.pop()
        elif place in self.stack:
            del self.stack[self.stack.index(place) :]

    def _elsewhere(self) -> bool:
        """In another thread, or in a forward pass that backward runs again (checkpointing)."""
        return torch._C._current_graph_task_id() != -1 or threading.get_ident() != self.thread

    def _within_itself(self) -> bool:
        """Whether the module that begins is called by one of the model that is running still."""
        frame, running = sys._getframe(2), 0
        while frame is not None and running < 2:
            called = frame.f_code is nn.Module._call_impl.__code__
            running += called and frame.f_locals["self"] in self.modules
            frame = frame.f_back
        return running > 1

    def looking(self) -> bool:
        """Whether a call now is one of the model."""
        return len(self.stack) > 0 and not self.own

    def _in_graph(self) -> bool:
        """Whether Python code that a compiler made runs this, and so has told of the call already.

        Backend "eager" does so. A model that is itself a `torch.fx` graph is none of that kind.
        """
        frame = sys._getframe(2)
        for _ in range(NEAR):
            if frame is None:
                return False
            if frame.f_code.co_filename.startswith("<eval_with_key>"):
                return frame.f_locals.get("self") not in self.modules
            frame = frame.f_back
        return False

    # What is done with what was seen.

    def show(
        self, route: str, seen: Seen, sides: dict[str, Tensor], scale: float | None = None
    ) -> Tensor | None:
        """Measure a call; inside a graph returns the ticket for its gradients.

        `sides` are the tensors whose gradients are read in eager mode.
        """
        place = self.stack[-1]
        if torch.compiler.is_compiling():
            first, self.fresh = self.fresh, False
            return send(self.token, place.handle, route, seen, scale, first)
        # torch compiles FlexAttention even where the user did not ask for it.
        if route != "flex" and self._in_graph():
            return None
        ticket = self.chart.record(place.name, route, seen)
        if ticket is not None:
            # Only there may heads be part of the batch dim.
            heads = place.heads if route == "softmax" else 1
            self.reader.read(self.chart, ticket, sides, heads)
        return None

    @property
    def step(self) -> int:
        """Index of the current step, from 1."""
        return self.chart.step

    def receive(self, place: int, route: str, seen: Seen, first: bool) -> tuple[int, int]:
        """A call out of a compiled graph."""
        if not self._undo:  # detached
            return -1, -1
        name = self.places[place].name
        if torch._C._current_graph_task_id() != -1:  # a checkpoint is computed again
            ticket = self.chart.ticket_again(name)
        else:
            if first:
                self.chart.begin()
            ticket = self.chart.record(name, route, seen)
            self._note_flex(seen, name)
        return (-1, -1) if ticket is None else (ticket.site.index, ticket.step)

    def _note_flex(self, seen: Seen, name: str) -> None:
        """What functions that do not leave a graph leave unknown."""
        if seen.flex is None or seen.flex.rows is None:
            return
        if self.chart.level is Level.EXACT and seen.flex.rows.shape[0] < size_of(seen).queries:
            self.chart.note(FLEX_ROWS, name)
        if seen.flex.changes:
            self.chart.note(FLEX_C50, name)

    def receive_gradient(self, site: int, step: int, side: str, gradient: Tensor) -> None:
        """A gradient out of a compiled graph."""
        if site < len(self.chart.order):
            ticket = Ticket(self.chart.order[site], step)
            self.chart.record_gradient(ticket, side, as_heads(gradient))

    # regard's own attention.

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """Told before an engine runs; gives the problem with gradients tapped, and what `end_own` wants."""
        if not torch.compiler.is_compiling() and self._elsewhere():
            return problem, None
        before = self.own
        if self.looking():
            whole = torch.compiler.is_compiling() or self.chart.current_level is not Level.CHEAP
            seen = seen_of(problem, whole)
            if seen is not None:
                sides = (problem.form.query, problem.form.key, problem.value)
                ticket = self.show("regard", seen, dict(zip(SIDES, sides, strict=True)), seen.scale)
                if ticket is not None:
                    query, key, value = tapped(*sides, ticket)
                    form = with_sides(problem.form, query, key)
                    problem = problem.with_changed({"form": form, "value": value})
        self.own = True
        return problem, before

    def end_own(self, before: bool | None) -> None:
        """Told when the engine is done, by an error too."""
        if before is not None:
            self.own = before


def with_sides(form: Inner | Pairwise, query: Tensor, key: Tensor) -> Inner | Pairwise:
    """The form with other tensors for query and key."""
    if isinstance(form, Inner):
        return Inner(query, key, form.alpha, form.beta, form.scale)
    return form.over(query, key, form.v)
