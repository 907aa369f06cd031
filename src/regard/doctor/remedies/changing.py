"""`Changing`: the mode under which a treated module runs, which changes the calls it is meant for.

It counts attention calls within one forward of the module, those of its children included, and applies
a `Change` when its route and index come up.

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
    """What `locate` registers to learn the route that a call had before it was changed."""

    def begin_as(self, route: str) -> None:
        """The calls until `end_as` make up one call of this route."""

    def end_as(self) -> None:
        """The call that `begin_as` announced has ended."""


# Filled while `locate` runs a model. A treated call may run by another route (SDPA with a soft cap runs
# as regard's), and a second treatment has to find it by its own.
LOCATORS: list[Locates] = []


class Changing(TorchFunctionMode):
    """A mode that counts the calls of one forward of a module and applies the changes meant for them."""

    def __init__(self, changes: list[Change]) -> None:
        super().__init__()
        self.changes = changes
        self.counts = dict.fromkeys((*ROUTES, "product"), 0)
        self.reconnects = any(change.reconnects for change in changes)
        self.acted = 0
        # Depth of running calls that are handled already, regard's own among them: their engines call
        # torch's functions, which must be neither counted nor changed a second time.
        self.own = 0

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Hand a torch function to its handler in `HANDLERS`, by name."""
        kwargs = {} if kwargs is None else kwargs
        handler = HANDLERS.get(getattr(func, "__name__", ""))
        if handler is None or self.own:
            return func(*args, **kwargs)
        return handler(self, func, args, kwargs)

    def at(self, kind: str) -> list[Change]:
        """The changes meant for the call that begins now; counts the call."""
        index = self.counts[kind]
        self.counts[kind] = index + 1
        # A product belongs to the softmax that follows, which counts as the one that acted.
        if kind == "product":
            written = [x for x in self.changes if x.place.route == "softmax"]
            return [x for x in written if x.place.product == index]
        meant = [x for x in self.changes if x.place.route == kind and x.place.index == index]
        self.acted += len(meant)
        return meant

    @contextmanager
    def set_aside(self, route: str) -> Iterator[None]:
        """A context that lets all calls pass: they replace a call of `route`, counted already."""
        self.own += 1
        for locator in LOCATORS:
            locator.begin_as(route)
        try:
            yield
        finally:
            self.own -= 1
            for locator in LOCATORS:
                locator.end_as()

    # `regard.attention` is no torch function: it reports to `WATCHERS`, of which this mode is one.

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """The problem to run instead of this one, with every change that is meant for the call."""
        if self.own == 0:
            for change in self.at("regard"):
                problem = changed_problem(problem, change)
        self.own += 1
        return problem, True

    def end_own(self, before: bool | None) -> None:
        """A call of regard has run, or failed."""
        self.own -= 1


def sdpa(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Tensor:
    """Handler of torch's SDPA; `regard.attention` runs in its place for a soft cap, which SDPA lacks."""
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
    """SDPA with a soft cap, by `regard.attention`, which groups heads without `enable_gqa`."""
    mask = Mask.causal("top_left") if is_causal else None
    bias = None
    if attn_mask is not None:
        # SDPA broadcasts a mask of any number of dims; `attention` takes (Q, L) or all dims.
        lead = torch.broadcast_shapes(query.shape[:-2], attn_mask.shape[:-2])
        fits = attn_mask.ndim in (2, query.ndim)
        attn_mask = attn_mask if fits else attn_mask.expand(*lead, *attn_mask.shape[-2:])
        if attn_mask.dtype == torch.bool:
            mask = Mask.dense(attn_mask)
        else:
            bias = attn_mask
    # `attention` always scales by 1/sqrt(d): another scale goes onto the queries.
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
    """Handler of the operator behind `flex_attention`, whose first arguments are its tensors."""
    changes = [] if passes_by() else mode.at("flex")
    if not changes:
        return func(*args, **kwargs)
    query, key, value, *rest = args
    query, key = changed_sides(changes, query, key)
    return func(query, key, changed_value(changes, value), *rest, **kwargs)


def softmax(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Tensor:
    """Handler of a softmax written out, whose input is the logits with bias and mask.

    Every softmax that could be attention is counted, as `locate` counts them.
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
    """Logits with rate, soft cap or mask applied; hidden keys stay hidden."""
    if change.mask is not None:
        return masked_logits(change.mask, logits)
    # With a known product `change_sides` has put the rate onto the queries already.
    rate = change.rate() if change.place.product is None else None
    if rate is None and change.softcap is None:
        return logits
    heads = as_heads(logits, change.place.heads)
    if rate is not None:
        heads = heads * by_head(rate, heads)
    if change.softcap is not None:
        heads = change.softcap * torch.tanh(heads / change.softcap)
    # A mask is part of these logits: a cap of 50 would lift its -inf or -1e9 to -50.
    return torch.where(logits < HIDDEN_LOGIT, logits, heads.reshape(logits.shape))


def product(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Handler of a product of two tensors: queries (..., Q, D) and keys (..., D, L), where meant.

    In torch's multi-head attention the next product is of weights and values (..., L, V).
    """
    changes = mode.at("product")
    if not changes:
        return func(*args, **kwargs)
    # The two factors come last: `baddbmm` has another tensor before them. Each may be a keyword.
    names = [name for name, x in kwargs.items() if isinstance(x, Tensor)]
    factors = [*args, *(kwargs[name] for name in names)]
    of_torch = changes[0].place.route == "torch"
    if of_torch and mode.counts["product"] > 1:
        factors[-1] = changed_value(changes, factors[-1])
    else:
        query, key = factors[-2], factors[-1].transpose(-1, -2)
        # torch scales its queries before this product. A change expects them unscaled, as elsewhere.
        before = query.shape[-1] ** 0.5 if of_torch else 1.0
        query, key = changed_sides(changes, query, key, before)
        factors[-2:] = query, key.transpose(-1, -2)
    named = dict(zip(names, factors[len(args) :], strict=True))
    return func(*factors[: len(args)], **{**kwargs, **named})


def inside(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Handler of torch's whole multi-head attention: runs it under `Inside`, where meant."""
    changes = mode.at("torch")
    if not changes:
        return func(*args, **kwargs)
    with mode.set_aside("torch"), Inside(changes):
        return multi_head_attention(*args, **kwargs)


class Inside(Changing):
    """The mode inside `multi_head_attention_forward`, which runs one SDPA, or two products and a softmax."""

    def at(self, kind: str) -> list[Change]:
        """All changes, at the first call of a kind and at both products."""
        index = self.counts[kind]
        self.counts[kind] = index + 1
        return self.changes if index < (2 if kind == "product" else 1) else []


def detach(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Handler of `Tensor.detach`, which does nothing while a change reconnects."""
    return args[0] if mode.reconnects else func(*args, **kwargs)


def set_grad_enabled(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Handler of what `no_grad` calls; while a change reconnects, gradients are not switched off.

    Switching them on passes, because leaving `no_grad` restores the state that way.
    """
    off = not (args or tuple(kwargs.values()))[0]
    return None if mode.reconnects and off else func(*args, **kwargs)


def unflatten(mode: Changing, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Handler of `Tensor.unflatten`: under a mode the compiler can trace only the function."""
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
    """Query and key with all changes applied, in their own shapes.

    Queries are multiplied by `before` for a change and divided by it afterwards.
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
        # A change that leaves queries alone keeps them bit by bit: no round trip through `before`.
        q = q if changed is larger else changed / before
    return q.reshape(query.shape), k.reshape(key.shape)


def changed_value(changes: list[Change], value: Tensor) -> Tensor:
    """The values with all changes applied, in their own shape."""
    v = as_heads(value, changes[0].place.key_heads)
    for change in changes:
        v = change.change_value(v)
    return v.reshape(value.shape)


def softcap_of(changes: list[Change]) -> float | None:
    """The soft cap of the last change that has one, or None."""
    caps = [x.softcap for x in changes if x.softcap is not None]
    return caps[-1] if caps else None


def changed_problem(problem: Problem, change: Change) -> Problem:
    """A call of `regard.attention` with a change applied to its lowered form and options."""
    form, rate = problem.form, change.rate()
    fields: dict[str, Any] = {}
    if isinstance(form, Pairwise) and change.pairwise:
        fields["form"] = form.over(*change.change_sides(form.a, form.b), form.v)
    elif isinstance(form, Pairwise):
        # Logits are linear in v, so a factor on them goes there.
        if rate is not None:
            v = form.v * rate.to(form.v.dtype).view(-1, 1, 1)
            fields["form"] = form.over(form.a, form.b, v)
    elif form.alpha is None and form.beta is None:
        query, key = change.change_sides(form.phi, form.psi)
        fields["form"] = Inner(query, key, None, None, form.scale)
    # With terms of query or key alone, scaling phi would not scale the whole logit: the temperature does.
    elif rate is not None:
        given = problem.temperature
        base = given if isinstance(given, Tensor) else form.phi.new_tensor(given)
        fields["temperature"] = base / rate.to(form.phi.dtype).view(-1, 1)
    fields["value"] = change.change_value(problem.value)
    if change.softcap is not None:
        fields["softcap"] = change.softcap
    problem = problem.with_changed(fields)
    return problem if change.mask is None else masked_problem(change.mask, problem)
