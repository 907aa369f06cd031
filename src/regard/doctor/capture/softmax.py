"""Recognises attention that a model writes out itself: which softmax is attention, and of what.

The rule: a softmax over the last or second to last dim of a tensor with 3 or 4 dims is attention if
its result, the weights (..., Q, L), is multiplied with another tensor that also has the dim L, and
the product sums over L and keeps Q: `weights @ value`, `value' @ weights'`, bmm, or einsum.

In between, the weights may go through dropout, casts, masks, factors, views that keep Q and L, a
transposition of the two, and a slice that drops keys. Dropped keys are outcomes without a value: a
sink.

The value must have as many dims as the weights, which rules out probabilities times a table
(vocabulary, codebook). The softmax of a router or classifier does not match either: it scales,
selects, or is returned. Softmax and product must be in one module, or in a module and its caller.

Additive attention, whose logits a tanh and a vector make (`additive.py`), may also have one query alone
and no dim for it, as in a recurrent decoder: weights (B, L), times values, summed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.doctor.capture.additive import Squashed, contracted, from_flat, pooled_values

# Names of torch's functions and methods after which logits are still logits, and weights weights.
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "tanh", "clamp", "clip", "where", "dropout")
REFLECTED = ("true_divide", "__radd__", "__rsub__", "__rmul__")
MASKS = ("masked_fill", "nan_to_num", "clamp_min")
CASTS = ("to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone")
VIEWS = (
    "detach",
    "data",
    "view",
    "view_as",
    "reshape",
    "reshape_as",
    "flatten",
    "unflatten",
    "expand",
)
IN_PLACE = tuple(f"{name}_" for name in (*ARITHMETIC, *MASKS))
JOINS = ("cat", "concat")
ELEMENTWISE = frozenset(
    (*ARITHMETIC, *REFLECTED, *MASKS, *IN_PLACE, *CASTS, *VIEWS, *JOINS, "squeeze", "unsqueeze")
)
SWAPS = frozenset(("transpose", "swapaxes", "swapdims", "permute"))
PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "einsum"))
CONTRACTS = frozenset({"linear", "sum"})
NAMES = ELEMENTWISE | SWAPS | PRODUCTS | CONTRACTS | {"softmax", "__getitem__", "mT"}
# How many tensors are followed at a time. Differential attention subtracts one softmax from
# another, DeBERTa adds three products, and copies may branch off from each.
MOST_PRODUCTS, MOST_COPIES, MOST_TANHS = 4, 8, 4


class Product(NamedTuple):
    """A product that may turn out to be logits, with its two factors, or the tanh of an additive score."""

    result: Any
    query: Tensor | None
    key: Tensor | None
    depth: int
    hidden: Tensor | None = None


class TrackedSoftmax(NamedTuple):
    """A softmax that may turn out to be attention.

    Attributes:
        result: the weights, after every function that was applied to them.
        logits: (..., Q, L), the input of the softmax.
        flipped: whether the weights are now (..., L, Q).
        start, stop: the range of keys that a slice has left.
        sides: query and key, where the product that made the logits was seen.
        depth: how many modules were running.
        hidden: the tanh of an additive score, None for others.
        flat: whether the weights have no dim for queries, of which there is one.
    """

    result: Any
    logits: Tensor
    flipped: bool
    start: int
    stop: int
    sides: tuple[Tensor, Tensor] | None
    depth: int
    hidden: Tensor | None = None
    flat: bool = False


class Found(NamedTuple):
    """A softmax that is attention.

    Attributes:
        logits: (..., Q, L).
        sink: (..., Q), the logit of the keys that were dropped, or None.
        value: (..., L, Dv), or None where its dims cannot be identified.
        factor: the tensor that the weights were multiplied with, unchanged.
        sides: query and key, where the product that made the logits was seen.
        hidden: the tanh of an additive score, None for others.
    """

    logits: Tensor
    sink: Tensor | None
    value: Tensor | None
    factor: Tensor
    sides: tuple[Tensor, Tensor] | None
    hidden: Tensor | None = None


class Follower:
    """Follows products to a softmax, and weights from there to the values."""

    def __init__(self) -> None:
        self.products: list[Product] = []
        self.weights: list[TrackedSoftmax] = []
        self.tanhs: list[Squashed] = []

    def idle(self) -> bool:
        """Whether no tensor is being followed."""
        return not (self.products or self.weights or self.tanhs)

    def leave(self, depth: int) -> None:
        """Forget what the children of the module that ends, at this depth, have made."""
        if not self.idle():
            self.products = [x for x in self.products if x.depth <= depth]
            self.weights = [x for x in self.weights if x.depth <= depth]
            self.tanhs = [x for x in self.tanhs if x.depth <= depth]
            if depth == 1:
                self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.products, self.weights, self.tanhs = [], [], []

    def softmax(self, args: Sequence, kwargs: dict, out: Tensor, depth: int) -> None:
        """Follow the weights of a softmax that can be attention."""
        given = softmax_input(args, kwargs, (2, 3, 4))
        if given is None:
            return
        logits, dim = given
        made = next((x for x in self.products if same(x.result, logits)), None)
        hidden = None if made is None else made.hidden
        flat = logits.ndim == 2
        if flat and hidden is None:
            return
        sides = None
        if made is not None and made.query is not None and made.key is not None:
            sides = made.query, made.key
        flipped = dim == -2
        logits = logits.detach().transpose(-1, -2) if flipped else logits.detach()
        logits = logits.unsqueeze(-2) if flat else logits
        entry = TrackedSoftmax(
            hold(out), logits, flipped, 0, logits.shape[-1], sides, depth, hidden, flat
        )
        # Of the earlier ones keep only the last: each keeps its logits in memory.
        last = self.weights[-1].logits if self.weights else None
        self.weights = [*(x for x in self.weights if x.logits is last), entry]

    def product(
        self, name: str, args: Sequence, kwargs: dict, out: Tensor, depth: int
    ) -> Found | None:
        """The attention that a product of weights and values completes, or None.

        Any other product is followed: it may be of queries and keys.
        """
        listed = name == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple))
        given = args[1] if listed else (*args, *kwargs.values())
        # The last two tensors are the factors: `baddbmm` has the one to add before them.
        factors = [x for x in given if isinstance(x, Tensor)][-2:]
        if len(factors) != 2:
            return None
        if name == "einsum":
            return self._by_equation(args[0], factors)
        left, right = factors
        self.contract(factors, out, depth)
        for entry in self.weights:
            if same(entry.result, left) and not entry.flipped and fits(left, right):
                return self._found(entry, right, right)
            if same(entry.result, right) and entry.flipped and fits(right, left):
                return self._found(entry, left.transpose(-1, -2), left)
        # Query and key are needed for hooks on their gradients alone, which only eager mode has. Those
        # that were detached are followed too: that they get no gradient is a finding.
        wanted = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if wanted and left.ndim == right.ndim and left.ndim in (3, 4):
            entry = Product(hold(out), left, right, depth)
            self.products = [*self.products[1 - MOST_PRODUCTS :], entry]
        return None

    def tanh(self, out: Tensor, depth: int) -> None:
        """Follow a tanh that may be that of an additive score; a compiler keeps it inside its graph."""
        if out.ndim in (3, 4) and not torch.compiler.is_compiling():
            entry = Squashed(hold(out), out.detach(), depth)
            self.tanhs = [*self.tanhs[1 - MOST_TANHS :], entry]

    def contract(self, given: Sequence, out: Tensor, depth: int) -> None:
        """Follow what a vector makes of a tanh: it may be logits."""
        for entry in self.tanhs:
            if among(entry.result, given) and contracted(entry.units, out):
                made = Product(hold(out), None, None, depth, entry.units)
                self.products = [*self.products[1 - MOST_PRODUCTS :], made]
                return

    def through(
        self, name: str, args: Sequence, kwargs: dict, out: Any, depth: int
    ) -> Found | None:
        """Follow tensors through a function that is neither a softmax nor a product.

        Returns the attention that it completes: one additive query's weights times the values.
        """
        if not isinstance(out, Tensor):
            return None
        given = args[0] if name in JOINS and args else args
        if name in CONTRACTS:
            self.contract(args, out, depth)
            return None
        for tanh in tuple(self.tanhs):
            if name in ELEMENTWISE and among(tanh.result, given) and out.shape == tanh.units.shape:
                # Beside the tanh itself: a copy for a log is not what the model goes on with.
                self.tanhs = [*self.tanhs[1 - MOST_TANHS :], tanh._replace(result=hold(out))]
        for i, entry in enumerate(self.products):
            turns = entry.hidden is not None and name in SWAPS
            if (name in ELEMENTWISE or turns) and among(entry.result, given):
                self.products[i] = entry._replace(result=hold(out))
        if name == "tanh":
            self.tanh(out, depth)
        for entry in self.weights:
            if among(entry.result, given):
                keys = entry.stop - entry.start
                values = pooled_values(name, entry.flipped, keys, given, out)
                if entry.hidden is not None and values is not None:
                    return self._found(entry, values, values)
                then = after(entry, name, args, kwargs, out)
                if then is not None:
                    self.weights = [*self.weights[1 - MOST_COPIES :], then]
                return None
        return None

    def _by_equation(self, equation: Any, operands: Sequence[Tensor]) -> Found | None:
        """The attention that an einsum of weights and values completes, or None."""
        if not isinstance(equation, str) or "..." in equation or "->" not in equation:
            return None
        inputs, output = equation.replace(" ", "").split("->")
        letters = inputs.split(",")
        for entry in self.weights:
            for i in (0, 1):
                own, others = letters[i], letters[1 - i]
                if not same(entry.result, operands[i]):
                    continue
                # A letter that is nowhere else stands for the query that weights (B, L) do not have.
                own = f"{own[:-1]}*{own[-1]}" if entry.flat else own
                output = f"{output}*" if entry.flat else output
                if entry.logits.ndim != len(own):
                    continue
                # The letters of Q and L: L has to be summed over, and Q has to stay.
                rows, keys = (own[-1], own[-2]) if entry.flipped else (own[-2], own[-1])
                if keys in others and keys not in output and rows in output and rows not in others:
                    lead = [x for x in own[:-2] if x in others]
                    rest = [x for x in others if x not in own]
                    order = [others.index(x) for x in (*lead, keys, *rest)]
                    plain = len(lead) == len(own) - 2 and len(rest) == 1
                    value = operands[1 - i].permute(order) if plain else None
                    return self._found(entry, value, operands[1 - i])
        return None

    def _found(self, entry: TrackedSoftmax, value: Tensor | None, factor: Tensor) -> Found:
        self.weights = [x for x in self.weights if x.logits is not entry.logits]
        self.products = []
        logits, sink = entry.logits, None
        # Keys that a slice dropped take weight and have no value: together they are a sink.
        if entry.stop - entry.start < logits.shape[-1]:
            left_out = [logits[..., : entry.start], logits[..., entry.stop :]]
            sink = torch.cat(left_out, -1).logsumexp(-1)
            logits = logits[..., entry.start : entry.stop]
        value = None if value is None else value.detach()
        return Found(logits, sink, value, factor, entry.sides, entry.hidden)


def softmax_input(
    args: Sequence, kwargs: dict, dims: tuple[int, ...] = (3, 4)
) -> tuple[Tensor, int] | None:
    """Input and dim (-1 or -2) of a softmax that can be attention; None for any other.

    Two dims, (B, L), can be one query of an additive score.
    """
    logits = args[0] if args else kwargs.get("input")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(logits, Tensor) or logits.ndim not in dims or dim is None:
        return None
    dim = dim - logits.ndim if dim >= 0 else dim
    return (logits, dim) if dim == -1 or (dim == -2 and logits.ndim > 2) else None


def after(
    entry: TrackedSoftmax, name: str, args: Sequence, kwargs: dict, out: Tensor
) -> TrackedSoftmax | None:
    """The tracked weights after one function; None where they are no longer (..., Q, L)."""
    flipped, start, stop = entry.flipped, entry.start, entry.stop
    rows, keys = entry.logits.shape[-2], stop - start
    if entry.flat:
        shape = from_flat(name, keys, out, name in ELEMENTWISE)
        return shape and entry._replace(result=hold(out), flat=shape[0], flipped=shape[1])
    if name in SWAPS:
        turned = swaps_last(name, args, kwargs)
        if turned is None:
            return None
        flipped = flipped != turned
    elif name == "mT":
        flipped = not flipped
    elif name == "__getitem__":
        window = None if flipped else last_slice(args[1], args[0].ndim, keys)
        if window is None:
            return None
        start, stop = start + window[0], start + window[1]
        keys = stop - start
    elif name not in ELEMENTWISE:
        return None
    last = (keys, rows) if flipped else (rows, keys)
    if tuple(out.shape[-2:]) != last or out.ndim not in (3, 4):
        return None
    return entry._replace(result=hold(out), flipped=flipped, start=start, stop=stop)


def swaps_last(name: str, args: Sequence, kwargs: dict) -> bool | None:
    """Whether a transposition swaps the last two dims; None where it mixes them with others."""
    n = args[0].ndim
    if name == "permute":
        dims = args[1] if len(args) == 2 else args[1:]
        dims = kwargs.get("dims", dims)
    else:
        if len(args) < 3:
            return None
        dims = list(range(n))
        a, b = args[1] % n, args[2] % n
        dims[a], dims[b] = dims[b], dims[a]
    last = [d % n for d in dims][-2:]
    return False if last == [n - 2, n - 1] else True if last == [n - 1, n - 2] else None


def last_slice(index: Any, ndim: int, length: int) -> tuple[int, int] | None:
    """Start and stop of `[..., start:stop]` or `[:, :, :, start:stop]`; None for others."""
    if not isinstance(index, tuple) or not isinstance(index[-1], slice):
        return None
    before, last = index[:-1], index[-1]
    dots = any(x is Ellipsis for x in before)
    if not (dots or len(index) == ndim) or last.step not in (None, 1):
        return None
    for x in before:
        if x is not Ellipsis and not (isinstance(x, slice) and x.start is x.stop is x.step is None):
            return None
    start = 0 if last.start is None else last.start
    stop = length if last.stop is None else last.stop
    start, stop = (x + length if x < 0 else x for x in (start, stop))
    return max(start, 0), min(stop, length)


def fits(weights: Tensor, value: Tensor) -> bool:
    """Whether the other factor can be values, and is not a table that all sequences share."""
    return isinstance(value, Tensor) and value.ndim == weights.ndim


def hold(x: Tensor) -> Any:
    """A reference that does not keep a tensor alive; the tensor itself under a compiler."""
    return x if torch.compiler.is_compiling() else weakref.ref(x)


def same(held: Any, x: Any) -> bool:
    """Whether `held` refers to this tensor."""
    return (held if torch.compiler.is_compiling() else held()) is x


def among(held: Any, given: Sequence) -> bool:
    """Whether `held` refers to one of these arguments."""
    return any(isinstance(x, Tensor) and same(held, x) for x in given)
