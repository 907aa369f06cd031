"""`locate`: find the attention calls of a model by running it once and counting as `Changing` will.

Shape legend: B batch, H query heads, K key heads, Q queries, L keys, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.doctor.capture.capture import Capture
from regard.doctor.capture.flex import passes_by
from regard.doctor.capture.mode import Mode
from regard.doctor.capture.names import WatchedModule
from regard.doctor.capture.shapes import as_heads
from regard.doctor.capture.softmax import (
    PRODUCTS,
    Follower,
    Found,
    Product,
    TrackedSoftmax,
    same,
    softmax_input,
)
from regard.doctor.chart import Chart
from regard.doctor.remedies.change import ROUTES, ChangePlace
from regard.doctor.remedies.changing import LOCATORS
from regard.doctor.running import call, undisturbed
from regard.doctor.seen import Seen
from regard.doctor.vitals.scale import regression
from regard.forms import Inner
from regard.observed import WATCHERS

Counts = dict[str, int]
# Functions of torch that are counted under their name alone; softmax depends on its arguments.
KINDS = {
    "scaled_dot_product_attention": "sdpa",
    "flex_attention": "flex",
    **dict.fromkeys(PRODUCTS, "product"),
}


@dataclass(frozen=True)
class LocatedCall:
    """One attention call: its place and its tensors.

    Attributes:
        place: where it is.
        seen: its tensors. Attention written out has its logits here, and query, key and `scale` too
            if their product was seen.
        again: number of calls at this place in a step, where the module runs several times.
        own_terms: whether a score of regard has terms of query or key alone.
    """

    place: ChangePlace
    seen: Seen
    again: int = 1
    own_terms: bool = False


def locate(model: nn.Module, batch: Any, site: str | None = None) -> dict[str, LocatedCall]:
    """The attention calls of a model by the doctor's names, from one run on a batch.

    Args:
        model: the model, which is left unchanged.
        batch: a tensor, or a tuple or dict of all arguments.
        site: keep only the tensors of this call; None keeps all.
    """
    # With gradients, because `requires_grad` tells what comes from parameters from constants.
    try:
        with torch.enable_grad():
            return located(model, batch, site)
    except NotImplementedError:  # FlexAttention has no backward on a CPU, and refuses to run
        with torch.no_grad():
            return located(model, batch, site)


def located(model: nn.Module, batch: Any, site: str | None) -> dict[str, LocatedCall]:
    """`locate` with gradients on or off as they are."""
    locator = Locator(model, site)
    mode = Counting(locator)
    locator.hook()
    try:
        with undisturbed(model), unseen(), mode:
            WATCHERS.insert(0, locator)
            LOCATORS.append(locator)
            try:
                call(model, batch)
            finally:
                WATCHERS.remove(locator)
                LOCATORS.remove(locator)
    finally:
        locator.unhook()
    return locator.calls()


@contextmanager
def unseen() -> Iterator[None]:
    """A context in which watching doctors write to a chart that is thrown away."""
    with ExitStack() as undo:
        for watcher in WATCHERS:
            if isinstance(watcher, Capture):
                undo.enter_context(watcher.writing_in(Chart()))
        yield


class Counting(Mode):
    """The doctor's mode, which also counts every call that `Changing` counts."""

    capture: Locator  # type: ignore[assignment] # `located` constructs it with one

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Count the call, then let the doctor's mode see it."""
        name, capture = getattr(func, "__name__", ""), self.capture
        if name == "multi_head_attention_forward" and capture.looking():
            capture.begin_as("torch")
            try:
                return super().__torch_function__(func, types, args, kwargs)
            finally:
                capture.end_as()
        if capture.looking():
            given = kwargs or {}
            kind = KINDS.get(name)
            if name == "softmax":
                kind = None if softmax_input(args, given) is None else "softmax"
            elif kind == "flex" and passes_by():
                kind = None
            if kind is not None:
                capture.count(kind)
        return super().__torch_function__(func, types, args, kwargs)


class Locator(Capture):
    """A capture that records the place of each call and measures nothing."""

    def __init__(self, model: nn.Module, site: str | None) -> None:
        super().__init__(model, Chart())
        self.site = site
        self.counts: Counts = dict.fromkeys((*ROUTES, "product"), 0)
        # Routes of running calls that consist of other calls; only the outermost is counted.
        self.running: list[str] = []
        self.before: list[Counts] = []  # counts when each running module began
        self.follower = Noting(self)
        self.own_terms = False
        self.found: dict[str, tuple[ChangePlace, Seen, bool]] = {}

    def enter(self, place: WatchedModule, training: bool) -> None:
        """Note the counts at which a module begins."""
        super().enter(place, training)
        self.before = [*self.before[: len(self.stack) - 1], dict(self.counts)]

    def count(self, kind: str) -> None:
        """Count a call of this kind, unless it is part of another call."""
        if not self.running:
            self.counts[kind] += 1

    def begin_as(self, route: str) -> None:
        """Count one call of this route; the calls until `end_as` are parts of it."""
        self.count(route)
        self.running.append(route)

    def end_as(self) -> None:
        """The call of `begin_as` has ended."""
        self.running.pop()

    def here(self) -> Counts:
        """For each kind, the index of the last call within the innermost running module."""
        before = self.before[len(self.stack) - 1]
        return {kind: n - before[kind] - 1 for kind, n in self.counts.items()}

    def begin_own(self, problem: Any) -> tuple[Any, bool | None]:
        """Count a call of `regard.attention`, and note whether its score has terms of one side."""
        if self.looking():
            self.count("regard")
            form = problem.form
            inner = isinstance(form, Inner)
            self.own_terms = inner and (form.alpha is not None or form.beta is not None)
        return super().begin_own(problem)

    def show(
        self, route: str, seen: Seen, sides: dict[str, Tensor], scale: float | None = None
    ) -> None:
        """Record the place and the tensors of a call."""
        running = self.stack[-1]
        site = self.chart.site_of(running.name, route)
        if site is None:
            return
        here, product = self.here(), None
        index = here.get(route, 0)
        if route == "softmax":
            assert isinstance(self.follower, Noting)
            softmax, product, made = self.follower.last
            index = softmax
            if made is not None:
                seen = with_sides(seen, *made, running.heads)
        whole = self.running[0] if self.running else route
        if whole == "sdpa":
            route, index = "sdpa", here["sdpa"]
        elif whole == "torch":
            # With need_weights torch scales queries before the product; undo that, as SDPA has them.
            if route == "softmax" and seen.query is not None:
                root = seen.query.shape[-1] ** 0.5
                seen = seen._replace(query=seen.query * root, scale=seen.scale / root)
            route, index, product = "torch", here["torch"], 0
        seen = without_copies(seen)
        query = seen.pairwise.a if seen.pairwise is not None else seen.query
        key = seen.pairwise.b if seen.pairwise is not None else seen.key
        anchor = seen.logits if query is None else query
        assert anchor is not None
        heads = anchor.shape[1]
        path = "" if running is self.places[0] else running.name
        kept = seen if self.site in (None, site.name) else Seen()
        place = ChangePlace(
            path, route, index, product, heads, heads if key is None else key.shape[1]
        )
        self.found[site.name] = (place, kept, route == "regard" and self.own_terms)

    def calls(self) -> dict[str, LocatedCall]:
        """The calls that were recorded, by the doctor's names."""
        places = [place for place, *_ in self.found.values()]
        return {
            name: LocatedCall(place, seen, places.count(place), own_terms)
            for name, (place, seen, own_terms) in self.found.items()
        }


class Noting(Follower):
    """A follower that records which softmax and which product a call consists of.

    Attributes:
        last: for the last call, the index of its softmax, the index of its product, and the two
            factors; the last two are None if the product is unknown.
    """

    def __init__(self, locator: Locator) -> None:
        super().__init__()
        self.locator = locator
        self.softmaxes: list[tuple[Tensor, int, int]] = []
        self.made: list[tuple[Tensor, Tensor, int]] = []
        self.last: tuple[int, int | None, tuple[Tensor, Tensor] | None] = (0, None, None)

    def softmax(self, args: Sequence, kwargs: dict, out: Tensor, depth: int) -> None:
        """Record the index of a softmax, and how many products its input comes from."""
        given = softmax_input(args, kwargs)
        if given is None:
            return
        leading = {id(x.query) for x in self.products if same(x.result, given[0])}
        # The follower decides what it tracks; an entry at the end that was not there before is new.
        before = len(self.weights), self.weights[-1] if self.weights else None
        super().softmax(args, kwargs, out, depth)
        if self.weights and (len(self.weights), self.weights[-1]) != before:
            index = self.locator.here()["softmax"]
            self.softmaxes.append((self.weights[-1].logits, index, len(leading)))

    def product(
        self, name: str, args: Sequence, kwargs: dict, out: Tensor, depth: int
    ) -> Found | None:
        """Record the index of a product that the follower tracks."""
        found = super().product(name, args, kwargs, out, depth)
        if found is None and self.products and same(self.products[-1].result, out):
            entry: Product = self.products[-1]
            if entry.query is not None and entry.key is not None:
                self.made.append((entry.query, entry.key, self.locator.here()["product"]))
        return found

    def _found(self, entry: TrackedSoftmax, value: Tensor | None, factor: Tensor) -> Found:
        noted = [x for x in self.softmaxes if x[0] is entry.logits]
        index, leading = noted[-1][1:] if noted else (0, 0)
        product, sides = None, None
        # Query and key are known only if one product leads to the softmax, with queries on its left:
        # logits summed from two products (content and positions) have no single query and key.
        if entry.sides is not None and leading == 1 and not entry.flipped:
            query, key = entry.sides
            indices = [i for q, k, i in self.made if q is query and k is key]
            # Extra columns of the logits, such as sinks, have no key: the numbers of keys differ then.
            if indices and key.shape[-1] == entry.logits.shape[-1]:
                product, sides = indices[-1], entry.sides
        self.last = (index, product, sides)
        return super()._found(entry, value, factor)

    def clear(self) -> None:
        """Forget all products and softmaxes."""
        super().clear()
        self.softmaxes, self.made = [], []


def without_copies(seen: Seen) -> Seen:
    """The call with each key head once, if the model repeats key heads for query heads that share them.

    Some models repeat them only in some calls, for example with a mask or without a cache. If the
    queries are equal too, the heads are copies of one another and not a group.
    """
    query, key = seen.query, seen.key
    if query is None or key is None or key.shape[1] != query.shape[1]:
        return seen
    heads = key.shape[1]
    if heads > 1 and torch.equal(query[:, 0], query[:, 1]):
        return seen
    # The largest group first: keys that repeat eight times also repeat twice.
    for group in range(heads, 1, -1):
        if heads % group == 0:
            once = key[:, ::group]
            if torch.equal(once.repeat_interleave(group, 1), key):
                return seen._replace(key=once)
    return seen


def with_sides(seen: Seen, query: Tensor, key: Tensor, heads: int) -> Seen:
    """The call with the query (..., Q, D) and key (..., D, L) that its logits come from.

    The scale is the least-squares factor from their product to the visible logits, both centred over
    the keys of a query. A bias added to the logits makes it approximate.
    """
    q = as_heads(query.detach(), heads)
    k = as_heads(key.detach().transpose(-1, -2), heads)
    logits = seen.logits
    assert logits is not None
    if q.shape[:2] != logits.shape[:2] or k.shape[-2] != logits.shape[-1]:
        return seen
    top, bottom = regression(q.double(), k.double(), logits)
    scale = top.sum() / bottom.sum().clamp(min=1e-300)
    return seen._replace(query=q, key=k, scale=float(scale))


def sides_of(call: LocatedCall) -> tuple[Tensor, Tensor]:
    """Query and key of a call in fp32 or wider; a and b of a pairwise score."""
    form = call.seen.pairwise
    query, key = (call.seen.query, call.seen.key) if form is None else (form.a, form.b)
    assert query is not None and key is not None
    dtype = torch.promote_types(query.dtype, torch.float32)
    return query.to(dtype), key.to(dtype)
