"""Operators by which a compiled graph reports calls and gradients to the doctor.

To the compiler each is one opaque node. Level, step and history are Python state behind it, so
nothing is compiled again when they change. CUDA graphs replay kernels and run no Python, so the
operators are tagged as unsafe for them, and the compiler leaves them out.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from regard.doctor.seen import Seen, SeenFlex
from regard.doctor.vitals.rows import pick_rows
from regard.forms import Pairwise

TENSORS = ("query", "key", "value", "bias", "visible", "logits", "shift", "sink")
# An operator takes a list of floats, so NaN stands for None.
NONE = float("nan")
# Whether the score function of FlexAttention changes the products.
CHANGES, KEEPS = "changes", "keeps"

LIBRARY = torch.library.Library("regard", "FRAGMENT")
# Older releases of torch do not have the tag.
TAGS = tuple(tag for name in ("cudagraph_unsafe",) if (tag := getattr(torch.Tag, name, None)))
# `token` is declared as written to, though it is only read: that keeps the calls in order, and
# stops the compiler from removing calls whose result is unused.
LIBRARY.define(
    "doctor_see(Tensor(a!) token, Tensor place, Tensor?[] tensors, float[] numbers, str[] words, "
    "bool causal, bool first) -> Tensor",
    tags=TAGS,
)
# Reads the step, and of `query` only the length. A compiler may move it to before the step begins;
# it then returns the rows of the previous step, which serve as well.
LIBRARY.define("doctor_rows(Tensor place, Tensor query, SymInt count) -> Tensor", tags=TAGS)
LIBRARY.define("doctor_gradient(Tensor gradient, Tensor ticket, str side) -> Tensor", tags=TAGS)


class Receiver(Protocol):
    """The part of a watch that receives calls and gradients."""

    @property
    def step(self) -> int:
        """Index of the current step, from 1."""
        ...

    def receive(self, place: int, route: str, seen: Seen, first: bool) -> tuple[int, int]:
        """Record a call; (site, step), or (-1, -1) if it was not recorded."""
        ...

    def receive_gradient(self, site: int, step: int, side: str, gradient: Tensor) -> None:
        """Record a gradient."""
        ...


# By number, because a graph can hold only tensors. Weak, so that a watch can be freed.
RECEIVERS: WeakValueDictionary[int, Receiver] = WeakValueDictionary()


def send(
    token: Tensor, place: Tensor, route: str, seen: Seen, scale: float | None, first: bool
) -> Tensor:
    """Report a call inside a graph; returns the ticket for `doctor_gradient`.

    `scale` None means 1/sqrt(dims), computed at run time: with dynamic sizes it would be a symbol.
    """
    numbers = [NONE if scale is None else scale, NONE if seen.softcap is None else seen.softcap]
    words = [route]
    tensors = [getattr(seen, name) for name in TENSORS]
    if (form := seen.pairwise) is not None:
        tensors += [form.a, form.b, form.v]
        numbers.append(form.parameter)
        words += [form.activation, form.series]
    if (flex := seen.flex) is not None:
        tensors += [flex.rows, flex.logits]
        words += [CHANGES if flex.changes else KEEPS]
    return torch.ops.regard.doctor_see(token, place, tensors, numbers, words, seen.causal, first)


def see(
    token: Tensor,
    place: Tensor,
    tensors: list[Tensor | None],
    numbers: list[float],
    words: list[str],
    causal: bool,
    first: bool,
) -> Tensor:
    """Run `doctor_see`: unpack the call and pass it to its watch."""
    capture, index = place.tolist()
    receiver = RECEIVERS.get(capture)
    site, step = -1, -1
    if receiver is not None:
        seen = unpacked(tensors, numbers, words, causal)
        site, step = receiver.receive(index, words[0], seen, first)
    return torch.tensor([capture, site, step], device="cpu")


def unpacked(
    tensors: list[Tensor | None], numbers: list[float], words: list[str], causal: bool
) -> Seen:
    """The `Seen` that `send` packed."""
    query, key, value, bias, visible, logits, shift, sink, *more = tensors
    scale, softcap, *rest = (None if x != x else x for x in numbers)
    if scale is None:
        scale = 1.0 if query is None else query.shape[-1] ** -0.5
    form = flex = None
    if words[-1] in (CHANGES, KEEPS):
        flex = SeenFlex(words[-1] == CHANGES, rows=more[0], logits=more[1])
    elif more:
        a, b, v = more
        assert a is not None and b is not None and v is not None
        form = Pairwise(a, b, v, words[1], rest[0] or 0.0, words[2])
    return Seen(
        query, key, value, scale, bias, visible, causal, logits, form, shift, softcap, sink, flex
    )


def rows(place: Tensor, query: Tensor, count: int) -> Tensor:
    """Run `doctor_rows`: the places of the queries to read, other ones at each step."""
    receiver, queries = RECEIVERS.get(place.tolist()[0]), query.shape[-2]
    step = 0 if receiver is None else receiver.step
    return pick_rows(queries, count, step, query.device)


def gradient(gradient: Tensor, ticket: Tensor, side: str) -> Tensor:
    """Run `doctor_gradient`: record a gradient and return a copy, as an operator has to."""
    capture, site, step = ticket.tolist()
    receiver = RECEIVERS.get(capture)
    if receiver is not None and site >= 0:
        receiver.receive_gradient(site, step, side, gradient)
    return gradient.clone()


LIBRARY.impl("doctor_see", see, "CompositeExplicitAutograd")
LIBRARY.impl("doctor_rows", rows, "CompositeExplicitAutograd")
LIBRARY.impl("doctor_gradient", gradient, "CompositeExplicitAutograd")
torch.library.register_fake(
    "regard::doctor_see",
    lambda *_: torch.empty(3, dtype=torch.int64, device="cpu"),
    lib=LIBRARY,
)
torch.library.register_fake(
    "regard::doctor_rows",
    lambda _, query, count: query.new_empty(min(count, query.shape[-2]), dtype=torch.int64),
    lib=LIBRARY,
)
torch.library.register_fake(
    "regard::doctor_gradient", lambda gradient, *_: torch.empty_like(gradient), lib=LIBRARY
)
