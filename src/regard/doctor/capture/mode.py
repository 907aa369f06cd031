"""The torch function mode that sees attention in an unmodified model.

It recognises functions by name: functions, methods and operators of one name take the same
arguments. A compiler that traces the mode knows these names, but not always the function objects.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.doctor.capture.capture import Capture
from regard.doctor.capture.flex import flex
from regard.doctor.capture.gradient_hooks import SIDES, tapped
from regard.doctor.capture.shapes import as_heads, sdpa_tensors
from regard.doctor.capture.softmax import NAMES, PRODUCTS, Found
from regard.doctor.seen import Seen

# Attention written out begins with one of these. All other names matter only while a tensor is
# followed.
FIRST = frozenset({"softmax", "tanh", *PRODUCTS})
DATA = vars(torch._C.TensorBase)["data"]
SDPA_ARGUMENTS = (*SIDES, "attn_mask", "dropout_p", "is_causal")

# A copy of torch's function for which `has_torch_function` is always False: the original would hand
# the call back to this mode. The mode is active inside the copy and sees the calls that it makes.
ASKS = "has_torch_function"
multi_head_attention = types.FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**vars(functional), ASKS: lambda _: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)


class Mode(TorchFunctionMode):
    """Hands a few functions to their handlers and runs all others unchanged.

    `__torch_function__` is this plain because torch.compile has to trace it.
    """

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture, self.follower = capture, capture.follower
        # Another library may have replaced functions of torch since this module was imported.
        now = {**vars(functional), ASKS: multi_head_attention.__globals__[ASKS]}
        multi_head_attention.__globals__.update(now)

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run the handler for the function's name, or else the function itself."""
        kwargs = {} if kwargs is None else kwargs
        name = getattr(func, "__name__", "")
        handler = HANDLERS.get(name)
        # Most calls of a model end here: while no tensor is followed, only `FIRST` can matter.
        if handler is None or (handler is follow and name not in FIRST and self.follower.idle()):
            return func(*args, **kwargs)
        return handler(self, func, args, kwargs)


def sdpa(mode: Mode, func: Callable, args: tuple, kwargs: dict) -> Tensor:
    """Measure and run a call of torch's scaled dot product attention."""
    capture = mode.capture
    if not capture.looking():
        return func(*args, **kwargs)
    given = sdpa_arguments(args, kwargs)
    query, key, value = (given[side] for side in SIDES)
    if min(query.ndim, key.ndim, value.ndim) < 2:  # torch raises the error
        return func(*args, **kwargs)
    scale, mask = given.get("scale"), given.get("attn_mask")
    mask = None if mask is None else mask.detach()
    q, k, v, mask = sdpa_tensors(query.detach(), key.detach(), value.detach(), mask)
    hides = mask is not None and mask.dtype == torch.bool
    seen = Seen(
        q,
        k,
        v,
        bias=None if hides else mask,
        visible=mask if hides else None,
        causal=bool(given.get("is_causal", False)),
    )
    if not torch.compiler.is_compiling():
        # In a graph with dynamic sizes this would be a symbol; `unpacked` computes it at run time.
        usual = q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
        seen = seen._replace(scale=usual if scale is None else scale)
    ticket = capture.show("sdpa", seen, {"query": query, "key": key, "value": value}, scale)
    if ticket is None:
        return func(*args, **kwargs)
    rest = {name: x for name, x in kwargs.items() if name not in SIDES}
    return func(*tapped(query, key, value, ticket), *args[3:], **rest)


def sdpa_arguments(args: tuple, kwargs: dict) -> dict[str, Any]:
    """The arguments of a call of SDPA, by name."""
    return {**dict(zip(SDPA_ARGUMENTS[: len(args)], args, strict=True)), **kwargs}


def follow(mode: Mode, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Run a function that attention written out may consist of, and follow its result."""
    capture = mode.capture
    out = func(*args, **kwargs)
    follower, name = capture.follower, func.__name__
    if not capture.looking():
        return out
    if name == "__get__":  # an attribute is read; of these only `.mT` and `.data` matter
        read = getattr(func, "__self__", None)
        if read is not Tensor.mT and read is not DATA:
            return out
        name = "mT" if read is Tensor.mT else "data"
    depth = len(capture.stack)
    if name == "softmax":
        follower.softmax(args, kwargs, out, depth)
    elif name in PRODUCTS:
        found = follower.product(name, args, kwargs, out, depth)
        if found is not None:
            show_found(capture, found)
    else:
        found = follower.through(name, args, kwargs, out, depth)
        if found is not None:
            show_found(capture, found)
    return out


def show_found(capture: Capture, found: Found) -> None:
    """Measure a softmax that turned out to be attention."""
    heads_of = capture.stack[-1].heads
    logits = as_heads(found.logits, heads_of)
    batch, heads = logits.shape[:2]
    value = found.value
    if value is not None and value.ndim == 3:
        # A first dim of batch * heads is split. Any other value of 3 dims is shared by the heads.
        one = value.shape[0] == batch * heads
        value = value.unflatten(0, (batch, heads)) if one else value.unsqueeze(1)
    sink = found.sink
    if sink is not None:
        sink = sink.reshape(logits.shape[:-1])
    sides = {"value": found.factor}
    if found.sides is not None:
        sides["query"], sides["key"] = found.sides
    seen = Seen(logits=logits, value=value, sink=sink, hidden=found.hidden)
    if found.sides is not None and not torch.compiler.is_compiling():
        query, key = (as_heads(x.detach(), heads_of) for x in found.sides)
        key = key.transpose(-1, -2)
        fits = query.shape[:3] == logits.shape[:3] and key.shape[:3] == (
            *logits.shape[:2],
            logits.shape[-1],
        )
        seen = seen._replace(made_of=(query, key) if fits else None)
    capture.show("softmax", seen, sides, 1.0)


def inside(mode: Mode, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Run torch's multi-head attention with the mode active inside it."""
    if not mode.capture.looking():
        return func(*args, **kwargs)
    with mode:
        return multi_head_attention(*args, **kwargs)


def checkpointed(mode: TorchFunctionMode, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Activate the mode inside a compiler's checkpoint, which would hide what runs there."""
    run = args[0]

    def inside(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    return func(inside, *args[1:], **kwargs)


def unflatten(mode: Mode, func: Callable, args: tuple, kwargs: dict) -> Any:
    """Follow `unflatten` as a function: the compiler cannot trace the method under a mode."""
    return follow(mode, torch.unflatten, args, kwargs)


HANDLERS: dict[str, Callable[[Mode, Callable, tuple, dict], Any]] = {
    **dict.fromkeys(NAMES, follow),
    "unflatten": unflatten,
    "__get__": follow,
    "scaled_dot_product_attention": sdpa,
    "multi_head_attention_forward": inside,
    "checkpoint": checkpointed,
    "tag_activation_checkpoint": checkpointed,
    "flex_attention": flex,
}
