"""The mode under which a treated module runs: it counts attention calls and changes those meant.

Calls are counted within one forward of the module, its children included.

Shape legend: `...` leading dims, H query heads, K key heads, Q queries, L keys, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.attention import attention
from regard.doctor.capture.flex import passes_by
from regard.doctor.capture.gradient_hooks import SIDES
from regard.doctor.capture.mode import checkpointed, multi_head_attention, sdpa_arguments
from regard.doctor.capture.shapes import as_heads
from regard.doctor.capture.softmax import PRODUCTS, softmax_input
from regard.doctor.remedies.change import ROUTES, Change, by_head
from regard.doctor.remedies.masking import masked_call, masked_logits, masked_problem
from regard.doctor.vitals.logits import HIDDEN_LOGIT
from regard.forms import Inner, Pairwise
from regard.mask import Mask
from regard.problem import Problem


class Locates(Protocol):
    """Wants to know of calls by the route that they had before they were changed."""

    def begin_as(self, route: str) -> None:
        """What comes now is one call of this route."""

    def end_as(self) -> None:
        """It was."""


# While a model is run to locate its calls: who does.
LOCATORS: list[Locates] = []


class Changing(TorchFunctionMode):
    """Counts the calls of one forward pass of a module, and changes those that are meant."""

    def __init__(self, changes: list[Change]) -> None:
        super().__init__()
        self.changes = changes
        self.counts = dict.fromkeys((*ROUTES, "product"), 0)
        self.reconnects = any(change.reconnects for change in changes)
        self.acted = 0
        self.own = 0  # depth of calls of regard's own, whose engine calls torch's functions

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """By name."""
        kwargs = {} if kwargs is None else kwargs
        handler = HANDLERS.get(getattr(func, "__name__", ""))
        if handler is None or self.own:
            return func(*args, **kwargs)
        return handler(self, func, args, kwargs)

    def at(self, kind: str) -> list[Change]:
        """The changes of the call that is being made now, which is counted."""
        index = self.counts[kind]
        self.counts[kind] = index + 1
        if kind == "product":
            written = [x for x in self.changes if x.place.route == "softmax"]
            return [x for x in written if x.place.product == index]
        meant = [x for x in self.changes if x.place.route == kind and x.place.index == index]
        self.acted += len(meant)
        return meant

    @contextmanager
    def set_aside(self, route: str) -> Iterator[None]:
        """Let everything by: the call that is running is known, and replaced by others."""
        self.own += 1
        for locator in LOCATORS:
            locator.begin_as(route)
        try:
            yield
        finally:
            self.own -= 1
            for locator in LOCATORS:
                locator.end_as()

    # regard's own attention tells its watchers.

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """A call is about to run: it runs with every change at its place."""
        if self.own == 0:
            for change in self.at("regard"):
                problem = changed_problem(problem, change)
        self.own += 1
        return problem, True

    def end_own(self, before: bool | None) -> None:
        """It has run, or failed."""
        self.own -= 1


def sdpa(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Tensor:
    """Scaled dot product attention of torch; with a soft cap, which it lacks, ours."""
    changes = mode.at("sdpa")
    if not changes:
        return func(*args, **kwargs)
    given = sdpa_arguments(args, kwargs)
    query, key, value = (given.pop(side) for side in SIDES)
    query, key = changed_sides(changes, query, key)
    value = changed_value(changes, value)
    for change in changes:
        if change.mask is not None:
            given = masked_call(change.mask, query, key, given)
    cap = softcap_of(changes)
    if cap is None:
        return func(query, key, value, **given)
    with mode.set_aside("sdpa"):
        return capped(query, key, value, cap, **given)


def capped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    softcap: float,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """SDPA with a soft cap, by `regard.attention`; `enable_gqa` goes without saying there."""
    mask = Mask.causal("top_left") if is_causal else None
    bias = None
    if attn_mask is not None:
        lead = torch.broadcast_shapes(query.shape[:-2], attn_mask.shape[:-2])
        fits = attn_mask.ndim in (2, query.ndim)
        attn_mask = attn_mask if fits else attn_mask.expand(*lead, *attn_mask.shape[-2:])
        if attn_mask.dtype == torch.bool:
            mask = Mask.dense(attn_mask)
        else:
            bias = attn_mask
    usual = query.shape[-1] ** -0.5
    if scale is not None and scale != usual:
        query = query * (scale / usual)
    options: dict[str, Any] = {
        "mask": mask,
        "bias": bias,
        "softcap": softcap,
        "dropout": dropout_p,
    }
    return attention(query, key, value, **options)


def flex(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """The operator behind torch's `flex_attention`, which is given its tensors first."""
    changes = [] if passes_by() else mode.at("flex")
    if not changes:
        return func(*args, **kwargs)
    query, key, value, *rest = args
    query, key = changed_sides(changes, query, key)
    return func(query, key, changed_value(changes, value), *rest, **kwargs)


def softmax(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Tensor:
    """A softmax written out: its input is the logits, with bias and mask.

    All that can be attention are counted.
    """
    given = softmax_input(args, kwargs)
    changes = [] if given is None else mode.at("softmax")
    if given is None or not changes:
        return func(*args, **kwargs)
    logits, _ = given
    for change in changes:
        logits = changed_logits(change, logits)
    if args:
        return func(logits, *args[1:], **kwargs)
    return func(**{**kwargs, "input": logits})


def changed_logits(change: Change, logits: Tensor) -> Tensor:
    """Rate, soft cap and mask on logits; what hides a key goes on hiding it."""
    if change.mask is not None:
        return masked_logits(change.mask, logits)
    rate = change.rate() if change.place.product is None else None
    if rate is None and change.softcap is None:
        return logits
    heads = as_heads(logits, change.place.heads)
    if rate is not None:
        heads = heads * by_head(rate, heads)
    if change.softcap is not None:
        heads = change.softcap * torch.tanh(heads / change.softcap)
    return torch.where(logits < HIDDEN_LOGIT, logits, heads.reshape(logits.shape))


def product(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """A product of two tensors: of queries (..., Q, D) and keys (..., D, L), where it is meant.

    In torch's multi-head attention the next one is of weights and values (..., L, V).
    """
    changes = mode.at("product")
    if not changes:
        return func(*args, **kwargs)
    names = [name for name, x in kwargs.items() if isinstance(x, Tensor)]
    factors = [*args, *(kwargs[name] for name in names)]
    of_torch = changes[0].place.route == "torch"
    if of_torch and mode.counts["product"] > 1:
        factors[-1] = changed_value(changes, factors[-1])
    else:
        query, key = factors[-2], factors[-1].transpose(-1, -2)
        # torch scales its queries before the product: a change gets them as it does elsewhere.
        before = query.shape[-1] ** 0.5 if of_torch else 1.0
        query, key = changed_sides(changes, query, key, before)
        factors[-2:] = query, key.transpose(-1, -2)
    named = dict(zip(names, factors[len(args) :], strict=True))
    return func(*factors[: len(args)], **{**kwargs, **named})


def inside(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """The whole multi-head attention of torch: go in where it is meant."""
    changes = mode.at("torch")
    if not changes:
        return func(*args, **kwargs)
    with mode.set_aside("torch"), Inside(changes):
        return multi_head_attention(*args, **kwargs)


class Inside(Changing):
    """Inside `multi_head_attention_forward`: its only SDPA, or its two products and its softmax."""

    def at(self, kind: str) -> list[Change]:
        """All changes are meant: once, and at both products."""
        index = self.counts[kind]
        self.counts[kind] = index + 1
        return self.changes if index < (2 if kind == "product" else 1) else []


def detach(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """What cuts a tensor off from the loss, unless that is passed over."""
    return args[0] if mode.reconnects else func(*args, **kwargs)


def set_grad_enabled(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """What `no_grad` calls: switching on is let by, as that is how the state before comes back."""
    off = not (args or tuple(kwargs.values()))[0]
    return None if mode.reconnects and off else func(*args, **kwargs)


def unflatten(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """The compiler cannot trace the method under a mode, but the function it can."""
    return torch.unflatten(*args, **kwargs)


HANDLERS: dict[str, Callable[[Changing, Callable, tuple, dict], Any]] = {
    **dict.fromkeys(PRODUCTS, product),
    "scaled_dot_product_attention": sdpa,
    "flex_attention": flex,
    "softmax": softmax,
    "unflatten": unflatten,
    "detach": detach,
    "_set_grad_enabled": set_grad_enabled,
    "multi_head_attention_forward": inside,
    "checkpoint": checkpointed,
    "tag_activation_checkpoint": checkpointed,
}


def changed_sides(
    changes: list[Change], query: Tensor, key: Tensor, before: float = 1.0
) -> tuple[Tensor, Tensor]:
    """All changes to query and key, each in its own shape again.

    `before` is what queries are to be multiplied with for a change, and divided by afterwards.
    """
    heads = key_heads = changes[0].place.heads
    if query.ndim == key.ndim == 3 and query.shape[0]:  # heads are part of the first dim
        key_heads = max(key.shape[0] * heads // query.shape[0], 1)
    q, k = as_heads(query, heads), as_heads(key, key_heads)
    for change in changes:
        if before == 1.0 or change.rate() is not None:
            q, k = change.change_sides(q, k)
            continue
        larger = q * before
        changed, k = change.change_sides(larger, k)
        q = q if changed is larger else changed / before
    return q.reshape(query.shape), k.reshape(key.shape)


def changed_value(changes: list[Change], value: Tensor) -> Tensor:
    """All changes to the values, in their own shape again."""
    v = as_heads(value, changes[0].place.key_heads)
    for change in changes:
        v = change.change_value(v)
    return v.reshape(value.shape)


def softcap_of(changes: list[Change]) -> float | None:
    """The bound on the logits: the last one given."""
    caps = [x.softcap for x in changes if x.softcap is not None]
    return caps[-1] if caps else None


def changed_problem(problem: Problem, change: Change) -> Problem:
    """A call of regard's own with its lowered form, temperature and soft cap changed."""
    form, rate = problem.form, change.rate()
    fields: dict[str, Any] = {}
    if isinstance(form, Pairwise) and change.pairwise:
        fields["form"] = form.over(*change.change_sides(form.a, form.b), form.v)
    elif isinstance(form, Pairwise):
        if rate is not None:
            v = form.v * rate.to(form.v.dtype).view(-1, 1, 1)
            fields["form"] = form.over(form.a, form.b, v)
    elif form.alpha is None and form.beta is None:
        query, key = change.change_sides(form.phi, form.psi)
        fields["form"] = Inner(query, key, None, None, form.scale)
    elif rate is not None:
        given = problem.temperature
        base = given if isinstance(given, Tensor) else form.phi.new_tensor(given)
        fields["temperature"] = base / rate.to(form.phi.dtype).view(-1, 1)
    fields["value"] = change.change_value(problem.value)
    if change.softcap is not None:
        fields["softcap"] = change.softcap
    problem = problem.with_changed(fields)
    return problem if change.mask is None else masked_problem(change.mask, problem)
