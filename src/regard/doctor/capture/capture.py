"""State that every route shares: the stack of running modules, and the chart that records calls.

Under `torch.compile` all of this is traced. State whose change would force a graph to be compiled
again (steps, levels, history) is behind the operators of `operators.py`. The state here, the stack
of modules and what a follower holds, is the same after a forward pass as before it.
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
KEYS: set[int] = set()  # of the hooks of all watches
# How many frames up to look for the code of a compiled graph: a checkpoint adds frames of its own.
NEAR = 40
FUSED_OFF = (
    "torch's fused inference path is off while the doctor watches, so outputs can differ in their "
    "last bits"
)
FLEX_ROWS = (
    "FlexAttention in a compiled graph: the exact level reads sampled queries only; "
    "d.examine(batch) reads all of them"
)
FLEX_C50 = (
    "FlexAttention with a score_mod in a compiled graph: c50 is not measured; "
    "d.examine(batch) measures it"
)


class Capture:
    """Tracks which module of `model` is running, and records the attention calls in it.

    Args:
        model: the watched model.
        chart: measures calls and keeps the numbers.
    """

    def __init__(self, model: nn.Module, chart: Chart) -> None:
        self.chart = chart
        self.number = next(NUMBERS)
        self.stack: list[WatchedModule] = []
        self.follower = Follower()
        self.reader = GradientHooks()
        self.active: Active | None = None
        self.own = False  # inside regard's own attention: what its engine calls is not captured
        self.fresh = False  # a compiled forward pass has begun, and no call of it was captured yet
        self.token = torch.zeros((), device="cpu")
        self.thread = threading.get_ident()
        self.places: list[WatchedModule] = []
        self.modules: set[nn.Module] = set()
        self.key = 0  # under which the hooks are stored
        self._undo: list[Callable[[], object]] = []
        self.model = model
        RECEIVERS[self.number] = self

    def hook(self) -> None:
        """Put the hooks on the model."""
        self.thread = threading.get_ident()
        # torch counts its hooks from 0, so negative keys are free. A later watch gets the same key
        # again and can run the graphs that were compiled for this one.
        self.key = next(key for key in itertools.count(-1, -1) if key not in KEYS)
        KEYS.add(self.key)
        self.places, self._undo = hook_modules(self.model, self, self.number, self.key)
        self.modules = set(self.model.modules())

    def unhook(self) -> None:
        """Take the hooks off; nothing is captured afterwards, even within a forward pass."""
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
        """Record in another chart, for extra runs that must not count as steps in the own one."""
        own, self.chart = self.chart, chart
        try:
            yield
        finally:
            self.chart = own

    # Called by the hooks.

    def enter(self, place: WatchedModule, training: bool) -> None:
        """Push a module that begins; the outermost one begins a step."""
        if torch.compiler.is_compiling():
            if not self.stack:
                self.fresh = True
        elif self._elsewhere():
            return
        else:
            if self.stack and place is self.stack[0] and not self._within_itself():
                # Ctrl-C ended the pass before: torch calls `leave` after an `Exception` only.
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
        """Pop a module that ends, and modules inside it that were interrupted."""
        if not torch.compiler.is_compiling() and self._elsewhere():
            return
        self.follower.leave(len(self.stack))
        if self.stack and self.stack[-1] is place:
            self.stack.pop()
        elif place in self.stack:
            del self.stack[self.stack.index(place) :]

    def _elsewhere(self) -> bool:
        """Whether this is another thread, or a pass that backward repeats (checkpointing)."""
        return torch._C._current_graph_task_id() != -1 or threading.get_ident() != self.thread

    def _within_itself(self) -> bool:
        """Whether a module of the model that is still running calls the one that begins."""
        frame, running = sys._getframe(2), 0
        while frame is not None and running < 2:
            called = frame.f_code is nn.Module._call_impl.__code__
            running += called and frame.f_locals["self"] in self.modules
            frame = frame.f_back
        return running > 1

    def looking(self) -> bool:
        """Whether a call made now is captured: inside the model, and outside regard's attention."""
        return len(self.stack) > 0 and not self.own

    def _in_graph(self) -> bool:
        """Whether code generated by a compiler makes this call, which was then recorded already.

        That happens with the backend "eager". A model that is itself a `torch.fx` graph does not
        count.
        """
        frame = sys._getframe(2)
        for _ in range(NEAR):
            if frame is None:
                return False
            if frame.f_code.co_filename.startswith("<eval_with_key>"):
                return frame.f_locals.get("self") not in self.modules
            frame = frame.f_back
        return False

    # Recording.

    def show(
        self, route: str, seen: Seen, sides: dict[str, Tensor], scale: float | None = None
    ) -> Tensor | None:
        """Record a call; inside a graph, return the ticket for its gradients.

        `sides` are the tensors whose gradients are read in eager mode.
        """
        place = self.stack[-1]
        if torch.compiler.is_compiling():
            first, self.fresh = self.fresh, False
            return send(self.token, place.handle, route, seen, scale, first)
        # Not for FlexAttention: torch compiles it even where the user did not ask for that.
        if route != "flex" and self._in_graph():
            return None
        ticket = self.chart.record(place.name, route, seen)
        if ticket is not None:
            # Only attention written out may have its heads in the batch dim.
            heads = place.heads if route == "softmax" else 1
            self.reader.read(self.chart, ticket, sides, heads)
        return None

    @property
    def step(self) -> int:
        """Index of the current step, from 1."""
        return self.chart.step

    def receive(self, place: int, route: str, seen: Seen, first: bool) -> tuple[int, int]:
        """Record a call from a compiled graph; (site, step), or (-1, -1) if it was not recorded."""
        if not self._undo:  # detached
            return -1, -1
        name = self.places[place].name
        if torch._C._current_graph_task_id() != -1:  # backward repeats a checkpoint
            ticket = self.chart.ticket_again(name)
        else:
            if first:
                self.chart.begin()
            ticket = self.chart.record(name, route, seen)
            self._note_flex(seen, name)
        return (-1, -1) if ticket is None else (ticket.site.index, ticket.step)

    def _note_flex(self, seen: Seen, name: str) -> None:
        """Note what cannot be measured because the user's functions stay inside the graph."""
        if seen.flex is None or seen.flex.rows is None:
            return
        if self.chart.level is Level.EXACT and seen.flex.rows.shape[0] < size_of(seen).queries:
            self.chart.note(FLEX_ROWS, name)
        if seen.flex.changes:
            self.chart.note(FLEX_C50, name)

    def receive_gradient(self, site: int, step: int, side: str, gradient: Tensor) -> None:
        """Record a gradient from a compiled graph."""
        if site < len(self.chart.order):
            ticket = Ticket(self.chart.order[site], step)
            self.chart.record_gradient(ticket, side, as_heads(gradient))

    # regard's own attention.

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """Record a call before its engine runs.

        Returns the problem, with gradients tapped inside a graph, and the argument for `end_own`.
        """
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
        """Called when the engine has ended, also by an error."""
        if before is not None:
            self.own = before


def with_sides(form: Inner | Pairwise, query: Tensor, key: Tensor) -> Inner | Pairwise:
    """The form with other tensors for query and key."""
    if isinstance(form, Inner):
        return Inner(query, key, form.alpha, form.beta, form.scale)
    return form.over(query, key, form.v)
