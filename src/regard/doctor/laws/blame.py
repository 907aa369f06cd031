"""`first_place`: where in the forward pass a forbidden change appears first.

Shape legend: B samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from regard.doctor.laws.bench import LawBench
from regard.doctor.laws.law import SHARE
from regard.doctor.laws.passes import SIDES, Delta, Key

Forbidden = Callable[[Key, Delta], Tensor | None]


class Place(NamedTuple):
    """Where a change appears.

    Attributes:
        name: the attention call, or the module if it comes from no attention.
        attention: whether it is an attention call.
        step: "attention" itself, "before" it (query, key or value), "after" it, or "module".
        moved: the largest forbidden change, over the size of the tensor.
        noise: what was allowed there.
        code: the line that calls attention, "" if not known.
    """

    name: str
    attention: bool
    step: str
    moved: float
    noise: float
    code: str


def first_place(bench: LawBench, deltas: Mapping[Key, Delta], forbidden: Forbidden) -> Place | None:
    """The first place in execution order at which a forbidden cell has moved; None if none has."""
    for key, delta in deltas.items():
        cells = forbidden(key, delta)
        if cells is None:
            continue
        bad = bench.dirty(key, delta) & cells
        # What a thousandth of the same change does where it is allowed is no leak.
        if not bad.any() or float(delta.moved[bad].max()) <= SHARE * float(delta.moved.max()):
            continue
        size = float(delta.size.max()) or 1.0
        moved = float(delta.moved[bad].max()) / size
        return at(bench, key, moved, bench.tolerance.get(key, 0.0))
    return None


def at(bench: LawBench, key: Key, moved: float, noise: float) -> Place:
    """The place of a key: an attention call if the change was made in or around one."""
    path, what, _ = key
    if what in SIDES:
        step = "attention" if what == "out" else "before"
        return Place(path, True, step, moved, noise, bench.calls[path].code)
    stack = bench.base.stacks.get(key, ())
    # An input that has moved was made by the code of the module around.
    around = stack[:-1] if what.startswith("in") else stack
    inside = [site for site, made in bench.calls.items() if around and path in made.stack]
    if what.startswith("out") and inside:
        return Place(inside[0], True, "attention", moved, noise, bench.calls[inside[0]].code)
    for module in reversed(around[-2:]):
        sites = [site for site, made in bench.calls.items() if made.path == module]
        if sites and module != bench.root:
            site = next((s for s in sites if follows(bench, s, key)), sites[-1])
            step = "before" if follows(bench, site, key) else "after"
            return Place(site, True, step, moved, noise, bench.calls[site].code)
    alone = [site for site, made in bench.calls.items() if made.path == bench.root]
    if alone and what.startswith("in"):
        site = next((s for s in alone if follows(bench, s, key)), alone[-1])
        return Place(site, True, "before", moved, noise, bench.calls[site].code)
    name = around[-1] if around else bench.root
    return Place(name, False, "module", moved, noise, "")


def follows(bench: LawBench, site: str, key: Key) -> bool:
    """Whether a call is made after an event of the base pass."""
    order = list(bench.base.tensors)
    sides = [i for i, k in enumerate(order) if k[0] == site and k[1] in SIDES]
    return key in bench.base.tensors and bool(sides) and sides[0] > order.index(key)


STEPS = {
    "attention": "attention itself lets it through: its query, key and value had not moved there",
    "before": "it enters before attention, where query, key and value are made",
    "after": "it enters after attention, where the heads are put together",
    "module": "it enters at no attention call",
}


def described(place: Place) -> str:
    """Where a change enters, as a sentence."""
    line = f" ({place.code})" if place.code else ""
    return f"The first place is {place.name}{line}: {STEPS[place.step]}."
