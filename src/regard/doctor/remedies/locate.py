"""Find an attention call in a model: run it once and count, as `Changing` will.

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
from regard.doctor.vitals.logits import HIDDEN_LOGIT
from regard.forms import Inner
from regard.observed import WATCHERS

Counts = dict[str, int]
KINDS = {
    "scaled_dot_product_attention": "sdpa",
    "flex_attention": "flex",
    **dict.fromkeys(PRODUCTS, "product"),
}


@dataclass(frozen=True)
class LocatedCall:
    """One attention call, where it is and what it was made of.

    Attributes:
        place: where.
        seen: the call itself; for attention written out its query and key are here too, where the
            product of the two was seen, and its logits; `scale` belongs to them.
        again: how many calls of the place there are in a step, where the module runs several times.
        own_terms: whether a score of regard's has terms of query or key alone.
    """

    place: ChangePlace
    seen: Seen
    again: int = 1
    own_terms: bool = False


def locate(model: nn.Module, batch: Any, site: str | None = None) -> dict[str, LocatedCall]:
    """The attention calls of a model by the doctor's names, from one run on a batch.

    Args:
        model: is as before afterwards.
        batch: a tensor, or a tuple or dict of all arguments.
        site: keep the tensors of this call alone; None for all.
    """
    # With gradients: what is computed of parameters is told from constants by them.
    try:
        with torch.enable_grad():
            return located(model, batch, site)
    except NotImplementedError:  # FlexAttention has no backward on a CPU, and refuses to run
        with torch.no_grad():
            return located(model, batch, site)


def located(model: nn.Module, batch: Any, site: str | None) -> dict[str, LocatedCall]:
    """The same, with gradients or without."""
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
    """Doctors that are watching get no step of this."""
    with ExitStack() as undo:
        for watcher in WATCHERS:
            if isinstance(watcher, Capture):
                undo.enter_context(watcher.writing_in(Chart()))
        yield


class Counting(Mode):
    """The doctor's mode, with all calls counted that `Changing` counts."""

    capture: Locator  # type: ignore[assignment] # made with one

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Count, then look."""
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
    """A capture that notes where each call is, and measures nothing."""

    def __init__(self, model: nn.Module, site: str | None) -> None:
        super().__init__(model, Chart())
        self.site = site
        self.counts: Counts = dict.fromkeys((*ROUTES, "product"), 0)
        self.running: list[str] = []  # routes of calls that are made of others: the first counts
        self.before: list[Counts] = []  # counts at the begin of each running module
        self.follower = Noting(self)
        self.own_terms = False
        self.found: dict[str, tuple[ChangePlace, Seen, bool]] = {}

    def enter(self, place: WatchedModule, training: bool) -> None:
        """A module begins."""
        super().enter(place, training)
        self.before = [*self.before[: len(self.stack) - 1], dict(self.counts)]

    def count(self, kind: str) -> None:
        """One more of these, unless it is part of one."""
        if not self.running:
            self.counts[kind] += 1

    def begin_as(self, route: str) -> None:
        """What comes now is one call of this route."""
        self.count(route)
        self.running.append(route)

    def end_as(self) -> None:
        """It was."""
        self.running.pop()

    def here(self) -> Counts:
        """Of each kind, the index of the last call within the module that runs now."""
        before = self.before[len(self.stack) - 1]
        return {kind: n - before[kind] - 1 for kind, n in self.counts.items()}

    def begin_own(self, problem: Any) -> tuple[Any, bool | None]:
        """A call of regard's own."""
        if self.looking():
            self.count("regard")
            form = problem.form
            inner = isinstance(form, Inner)
            self.own_terms = inner and (form.alpha is not None or form.beta is not None)
        return super().begin_own(problem)

    def show(
        self, route: str, seen: Seen, sides: dict[str, Tensor], scale: float | None = None
    ) -> None:
        """Note the call."""
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
            # Asked for weights torch scales its queries before; here as SDPA has them.
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
        """What was found."""
        places = [place for place, *_ in self.found.values()]
        return {
            name: LocatedCall(place, seen, places.count(place), own_terms)
            for name, (place, seen, own_terms) in self.found.items()
        }


class Noting(Follower):
    """A follower that notes which softmax and which product a call was made of.

    Attributes:
        last: of the last call: index of its softmax, and index and factors of its product or None.
    """

    def __init__(self, locator: Locator) -> None:
        super().__init__()
        self.locator = locator
        self.softmaxes: list[tuple[Tensor, int, int]] = []
        self.made: list[tuple[Tensor, Tensor, int]] = []
        self.last: tuple[int, int | None, tuple[Tensor, Tensor] | None] = (0, None, None)

    def softmax(self, args: Sequence, kwargs: dict, out: Tensor, depth: int) -> None:
        """Note its index, and how many products lead to it."""
        given = softmax_input(args, kwargs)
        if given is None:
            return
        leading = {id(x.query) for x in self.products if same(x.result, given[0])}
        before = len(self.weights), self.weights[-1] if self.weights else None
        super().softmax(args, kwargs, out, depth)
        if self.weights and (len(self.weights), self.weights[-1]) != before:
            index = self.locator.here()["softmax"]
            self.softmaxes.append((self.weights[-1].logits, index, len(leading)))

    def product(
        self, name: str, args: Sequence, kwargs: dict, out: Tensor, depth: int
    ) -> Found | None:
        """Note its index."""
        found = super().product(name, args, kwargs, out, depth)
        if found is None and self.products and same(self.products[-1].result, out):
            entry: Product = self.products[-1]
            self.made.append((entry.query, entry.key, self.locator.here()["product"]))
        return found

    def _found(self, entry: TrackedSoftmax, value: Tensor | None, factor: Tensor) -> Found:
        noted = [x for x in self.softmaxes if x[0] is entry.logits]
        index, leading = noted[-1][1:] if noted else (0, 0)
        product, sides = None, None
        if entry.sides is not None and leading == 1 and not entry.flipped:
            query, key = entry.sides
            indices = [i for q, k, i in self.made if q is query and k is key]
            # Columns that were joined to the logits, as sinks are, have no key.
            if indices and key.shape[-1] == entry.logits.shape[-1]:
                product, sides = indices[-1], entry.sides
        self.last = (index, product, sides)
        return super()._found(entry, value, factor)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.softmaxes, self.made = [], []


def without_copies(seen: Seen) -> Seen:
    """The call with each key head once, where a model repeats them for the heads that share them.

    Models do so in some calls and not in others: with a mask, without a cache. Where queries are
    the same too, the heads are copies and no group.
    """
    query, key = seen.query, seen.key
    if query is None or key is None or key.shape[1] != query.shape[1]:
        return seen
    heads = key.shape[1]
    if heads > 1 and torch.equal(query[:, 0], query[:, 1]):
        return seen
    for group in range(heads, 1, -1):
        if heads % group == 0:
            once = key[:, ::group]
            if torch.equal(once.repeat_interleave(group, 1), key):
                return seen._replace(key=once)
    return seen


def with_sides(seen: Seen, query: Tensor, key: Tensor, heads: int) -> Seen:
    """The call with the query (..., Q, D) and key (..., D, L) that its logits were made of.

    The scale is the least-squares factor between their product and the visible logits' variation,
    which is theirs but for a bias that was added.
    """
    q = as_heads(query.detach(), heads)
    k = as_heads(key.detach().transpose(-1, -2), heads)
    logits = seen.logits
    assert logits is not None
    if q.shape[:2] != logits.shape[:2] or k.shape[-2] != logits.shape[-1]:
        return seen
    raw = (q @ k.transpose(-1, -2)).double()
    visible = (logits > HIDDEN_LOGIT) & logits.isfinite()
    weight = visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)
    made = torch.where(visible, logits, 0).double()
    raw = raw - (raw * weight).sum(-1, keepdim=True)
    made = made - (made * weight).sum(-1, keepdim=True)
    scale = (raw * made * weight).sum() / (raw.square() * weight).sum().clamp(min=1e-300)
    return seen._replace(query=q, key=k, scale=float(scale))


def sides_of(call: LocatedCall) -> tuple[Tensor, Tensor]:
    """Query and key of a call, fp32 at least."""
    form = call.seen.pairwise
    query, key = (call.seen.query, call.seen.key) if form is None else (form.a, form.b)
    assert query is not None and key is not None
    dtype = torch.promote_types(query.dtype, torch.float32)
    return query.to(dtype), key.to(dtype)
