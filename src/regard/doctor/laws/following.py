"""Follows the weights of a softmax to the product with the values, whichever axis it summed over.

`capture/softmax.py` recognises attention that is right. A law has to see attention that is wrong: a
softmax over queries or heads, weights that are masked after it, pooling by a product and a sum, or a
softmax made of `exp` and a division. A tensor that is made of weights keeps their tag as long as it
holds as many numbers.

Shape legend: Q queries, L keys.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

PRODUCTS = frozenset(("matmul", "__matmul__", "bmm", "baddbmm", "einsum"))
TIMES = frozenset(("mul", "__mul__", "__rmul__", "multiply"))
DIVIDES = frozenset(("div", "true_divide", "divide", "__truediv__"))
SUBTRACTS = frozenset(("sub", "__sub__", "subtract", "rsub"))
MIXERS = frozenset(("linear", "conv1d", "conv2d"))
SLICES = frozenset(("__getitem__", "narrow", "select", "index_select"))
# Functions that make other numbers than logits or weights.
ENDS = frozenset(("argmax", "topk", "sort", "multinomial", "log", "__get__", "gather"))


class Tag(NamedTuple):
    """What a tensor is made of.

    Attributes:
        kind: "logits", "exp", "weights", or "weighted" for values times weights that were not summed.
        sides: query and key of the logits, if a product made them.
        softmax: the weights as the softmax left them.
        logits: what the softmax was given, and its dim; None for a softmax by `exp`.
        weights, values: of a "weighted" tensor.
        exempt: whether weights may sum to something else on purpose: a sink was dropped, or two
            softmaxes were subtracted or mixed.
    """

    kind: str
    sides: tuple[Tensor, Tensor] | None = None
    softmax: Tensor | None = None
    weights: Tensor | None = None
    values: Tensor | None = None
    exempt: bool = False
    logits: tuple[Tensor, int] | None = None


class Summed(NamedTuple):
    """Weights that were summed against values: an attention call.

    Attributes:
        weights: as they were used.
        axis: the axis that the product sums over: the keys.
        tag: what they are made of.
        values: the other factor.
        again: the same product of other weights and values; None for a pooling.
    """

    weights: Tensor
    axis: int
    tag: Tag
    values: Tensor
    again: Callable[[Tensor, Tensor], Tensor] | None = None


class Following:
    """The tags of all living tensors of a forward pass."""

    def __init__(self) -> None:
        self.tags: dict[int, tuple[Any, Tag]] = {}

    def tag_of(self, x: Any) -> Tag | None:
        """The tag of a tensor, if it has one."""
        held = self.tags.get(id(x)) if isinstance(x, Tensor) else None
        return held[1] if held is not None and held[0]() is x else None

    def put(self, x: Tensor, tag: Tag) -> None:
        """Tag a tensor."""
        self.tags[id(x)] = weakref.ref(x), tag

    def prune(self) -> None:
        """Forget tensors that are gone: tags of weights hold a copy of the softmax."""
        self.tags = {key: held for key, held in self.tags.items() if held[0]() is not None}

    def see(self, name: str, args: Sequence, kwargs: dict, out: Any) -> Summed | None:
        """Follow one function; the attention that it completes, or None."""
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return None
        if name == "softmax":
            given = args[0] if args else kwargs.get("input")
            before = self.tag_of(given)
            sides = before.sides if before is not None and before.kind == "logits" else None
            # A softmax of one dim has no batch: not what a model attends with.
            if out.ndim > 1:
                dim = args[1] if len(args) > 1 else kwargs.get("dim")
                known = isinstance(given, Tensor) and isinstance(dim, int)
                logits = (given.detach(), dim) if known else None
                self.put(out, Tag("weights", sides, softmax=out.detach(), logits=logits))
            return None
        if name in PRODUCTS:
            return self.product(name, args, kwargs, out)
        tagged = [(x, tag) for x in flattened(args) if (tag := self.tag_of(x)) is not None]
        if name == "exp":
            self.put(out, Tag("exp", tagged[0][1].sides if tagged else None))
        elif name == "sum" and tagged:
            return self.total(args, kwargs, out, tagged[0][1])
        elif tagged and name not in ENDS:
            self.carry(name, args, out, tagged)
        return None

    def carry(self, name: str, args: Sequence, out: Tensor, tagged: list) -> None:
        """Tag what a function makes of a tagged tensor."""
        x, tag = tagged[0]
        if name in DIVIDES and tag.kind == "exp":
            # Dividing by a sum of the same numbers is a softmax; the same tensor is the dividend.
            if x is args[0] and out.shape == x.shape:
                self.put(out, Tag("weights", tag.sides, softmax=out.detach()))
            return
        if tag.kind == "weights" and out.numel() > x.numel() and name in TIMES:
            others = [y for y in args if isinstance(y, Tensor) and y is not x]
            values = others[0] if others else None
            self.put(out, tag._replace(kind="weighted", weights=x.detach(), values=values))
        elif tag.kind == "weighted":
            # In another shape it is not known which axis the weights have.
            if out.shape == x.shape:
                self.put(out, tag)
        elif out.numel() == x.numel():
            both = len(tagged) > 1 and tagged[1][1].kind == "weights" and name not in TIMES
            again = name in DIVIDES and tag.kind == "weights" and x is args[0]
            rescaled = tag._replace(softmax=out.detach()) if again else tag
            exempt = tag.exempt or both or name in SUBTRACTS or name in MIXERS
            self.put(out, rescaled._replace(exempt=exempt))
        elif name in SLICES and tag.kind == "weights" and out.ndim >= x.ndim - 1:
            self.put(out, tag._replace(exempt=True, softmax=None))

    def product(self, name: str, args: Sequence, kwargs: dict, out: Tensor) -> Summed | None:
        """The attention that a product completes; any other product may be of queries and keys."""
        equation = args[0] if name == "einsum" and isinstance(args[0], str) else None
        factors = [x for x in flattened((*args, *kwargs.values())) if isinstance(x, Tensor)][-2:]
        if len(factors) != 2:
            return None
        for place, x in enumerate(factors):
            tag = self.tag_of(x)
            if tag is None or tag.kind != "weights":
                continue
            other = factors[1 - place]
            # A table without samples mixes heads, or is a codebook: it holds no values.
            held = other.ndim > 2 or other.ndim >= x.ndim > 1
            axis = summed_axis(equation, place, x) if held else None
            with_weights = self.tag_of(other)
            mixes = with_weights is not None and with_weights.kind == "weights"
            if axis is not None and not mixes:
                return Summed(x.detach(), axis, tag, other, again_as(equation, place))
            if out.numel() == x.numel():  # heads are mixed after the softmax
                self.put(out, tag._replace(exempt=True, softmax=None))
            return None
        if out.ndim > 1 and factors[0].ndim > 2:
            self.put(out, Tag("logits", (factors[0], factors[1])))
        return None

    def total(self, args: Sequence, kwargs: dict, out: Tensor, tag: Tag) -> Summed | None:
        """Pooling: values times weights, summed over one dim."""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
        if tag.kind != "weighted" or tag.weights is None or not isinstance(dim, int):
            return None
        x, weights = args[0], tag.weights
        dim = dim - x.ndim if dim >= 0 else dim
        if -dim > weights.ndim or weights.shape[dim] == 1:
            return None
        return Summed(weights, weights.ndim + dim, tag, x if tag.values is None else tag.values)


def flattened(args: Sequence) -> list[Any]:
    """Arguments, with those in lists."""
    found: list[Any] = []
    for x in args:
        found.extend(x if isinstance(x, list | tuple) else [x])
    return found


def summed_axis(equation: str | None, place: int, weights: Tensor) -> int | None:
    """The axis of the weights that a product sums over; None if there is not exactly one."""
    if equation is None:
        return weights.ndim - (1 if place == 0 else 2)
    if "->" not in equation:
        return None
    inputs, output = equation.replace(" ", "").replace("...", "").split("->")
    letters = inputs.split(",")
    if len(letters) != 2:
        return None
    gone = [x for x in letters[place] if x in letters[1 - place] and x not in output]
    return (
        letters[place].index(gone[0]) + weights.ndim - len(letters[place])
        if len(gone) == 1
        else None
    )


def again_as(equation: str | None, place: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The product of weights and values, with the weights as the factor of this place."""

    def product(weights: Tensor, values: Tensor) -> Tensor:
        factors = (weights, values) if place == 0 else (values, weights)
        return torch.matmul(*factors) if equation is None else torch.einsum(equation, *factors)

    return product


def keys_last(found: Summed) -> Tensor:
    """The weights as (..., Q, L)."""
    return found.weights.movedim(found.axis, -1)


def finite_sums(found: Summed) -> Tensor:
    """The sums of the weights over the keys, one for each query; NaN is left out."""
    sums = keys_last(found).double().sum(-1)
    return sums[torch.isfinite(sums)]
