"""`Recorder`: sees one forward pass: modules, the sides of attention calls, embeddings, dropout.

It tells a `Listener` and changes nothing itself. It sees more than `capture`, which is made for speed and
for attention that is right: every module is hooked, and any softmax is followed to its product.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.doctor.capture.active import Active
from regard.doctor.capture.capture import NEAR
from regard.doctor.capture.mode import DATA, multi_head_attention, sdpa_arguments
from regard.doctor.capture.names import named_modules, unwrapped
from regard.doctor.capture.own import seen_of
from regard.doctor.capture.shapes import sdpa_tensors
from regard.doctor.laws.following import Following, Summed
from regard.doctor.seen import Seen
from regard.observed import WATCHERS
from regard.problem import Problem

DROPOUTS = frozenset(
    ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")
)
ASIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


class Listener(Protocol):
    """What a recorder tells."""

    def entering(self, path: str, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """A module begins; may return other arguments for it."""

    def leaving(self, path: str, output: Any) -> None:
        """A module has ended."""

    def embedded(self, ids: Tensor, output: Tensor) -> Tensor:
        """Rows of a table were looked up; returns what the model goes on with."""

    def site(self, path: str, route: str, code: str) -> str:
        """An attention call; returns its name."""

    def side(self, site: str, what: str, x: Tensor) -> None:
        """A side of a call: "query", "key", "value" or "out"."""

    def call(self, site: str, seen: Seen | None, summed: Summed | None) -> None:
        """All that is known of a call."""

    def dropout(self, path: str, share: float, code: str) -> None:
        """Dropout that was applied."""


class Recorder(TorchFunctionMode):
    """A context in which a model is seen by a listener."""

    def __init__(self, model: nn.Module, listener: Listener) -> None:
        super().__init__()
        self.model, self.listener = model, listener
        self.stack: list[str] = []
        self.following = Following()
        self.own = False  # inside of regard's attention, which is told as a whole
        # A softmax in one of these belongs to the module around it.
        self.small = {
            name
            for name, x in named_modules(model)
            if isinstance(x, nn.Softmax | nn.Dropout | nn.Identity)
        }

    def start(self) -> ExitStack:
        """Put on hooks and mode; closing what is returned takes them off."""
        with ExitStack() as undo:
            for name, module in named_modules(self.model):
                path = name or type(module).__name__
                for hook in self.hooks(module, path):
                    undo.callback(hook.remove)
            undo.callback(Active(self).close)
            WATCHERS.append(self)
            undo.callback(WATCHERS.remove, self)
            return undo.pop_all()

    def hooks(self, module: nn.Module, path: str) -> list[Any]:
        """The two hooks of a module."""

        def enter(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            self.stack.append(path)
            with torch._C.DisableTorchFunction():
                return self.listener.entering(path, args, kwargs)

        def leave(module: nn.Module, args: tuple, output: Any) -> None:
            if path in self.stack:
                del self.stack[len(self.stack) - 1 - self.stack[::-1].index(path) :]
            with torch._C.DisableTorchFunction():
                self.listener.leaving(path, output)

        return [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave),
        ]

    @property
    def path(self) -> str:
        """The innermost module that runs, but for activations and the like without a path of use."""
        return self.owner() if self.stack else type(unwrapped(self.model)).__name__

    def owner(self) -> str:
        """The innermost running module that is no layer like nn.Softmax or nn.Dropout."""
        for path in reversed(self.stack):
            if path not in self.small:
                return path
        return self.stack[0]

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Run the function and tell what it was."""
        kwargs = {} if kwargs is None else kwargs
        name = getattr(func, "__name__", "")
        if name == "__get__" and getattr(func, "__self__", None) is DATA:
            name = "data"
        if self.own or not self.stack:
            return func(*args, **kwargs)
        if name == "multi_head_attention_forward":
            with self:
                return multi_head_attention(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            return self.sdpa(func, args, kwargs)
        if name in DROPOUTS:
            self.see_dropout(args, kwargs)
        out = func(*args, **kwargs)
        if name == "embedding" and isinstance(args[0], Tensor):
            with torch._C.DisableTorchFunction():
                return self.listener.embedded(args[0], out)
        with torch._C.DisableTorchFunction():
            summed = self.following.see(name, args, kwargs, out)
            if summed is not None:
                self.tell(summed, out)
                self.following.prune()
        return out

    def see_dropout(self, args: tuple, kwargs: dict) -> None:
        """Tell of dropout that is on."""
        given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
        share = given.get("p", 0.5)
        if given.get("training", True) and isinstance(share, float | int) and share > 0:
            self.listener.dropout(self.path, float(share), code())

    def sdpa(self, func: Callable, args: tuple, kwargs: dict) -> Tensor:
        """Run and tell a call of torch's SDPA."""
        given = sdpa_arguments(args, kwargs)
        query, key, value = (given[side] for side in ("query", "key", "value"))
        share = float(given.get("dropout_p", 0.0) or 0.0)
        if share > 0:
            self.listener.dropout(self.path, share, code())
        site = self.listener.site(self.path, "sdpa", code())
        with torch._C.DisableTorchFunction():
            self.sides(site, query, key, value)
            mask = given.get("attn_mask")
            q, k, v, mask = sdpa_tensors(
                query.detach(),
                key.detach(),
                value.detach(),
                None if mask is None else mask.detach(),
            )
            hides = mask is not None and mask.dtype == torch.bool
            scale = given.get("scale")
            seen = Seen(
                q, k, v,
                scale=q.shape[-1] ** -0.5 if scale is None else scale,
                bias=None if hides else mask,
                visible=mask if hides else None,
                causal=bool(given.get("is_causal", False)),
            )  # fmt: skip
            self.listener.call(site, seen, None)
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self.listener.side(site, "out", out)
        return out

    def sides(self, site: str, *sides: Tensor) -> None:
        """Tell query, key and value."""
        for what, x in zip(("query", "key", "value"), sides, strict=True):
            self.listener.side(site, what, x)

    def tell(self, summed: Summed, out: Tensor) -> None:
        """Tell attention that is written out."""
        site = self.listener.site(self.path, "softmax", code())
        if summed.tag.sides is not None:
            query, key = summed.tag.sides
            self.listener.side(site, "query", query)
            # Keys are mostly transposed for the product.
            turned = key.ndim > 2 and key.shape[-2] == query.shape[-1] != key.shape[-1]
            # A transposed copy would be no part of the graph that gradients take.
            turned = turned and not torch.is_grad_enabled()
            self.listener.side(site, "key", key.transpose(-1, -2) if turned else key)
        self.listener.side(site, "value", summed.values)
        self.listener.call(site, None, summed)
        self.listener.side(site, "out", out)

    # regard's own attention.

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """Tell a call before its engine runs."""
        before, self.own = self.own, True
        if self.stack and not before:
            with torch._C.DisableTorchFunction():
                seen = seen_of(problem, True)
                site = self.listener.site(self.path, "regard", code())
                # Those of `seen` are detached, and gradients are asked for too.
                self.sides(site, problem.form.query, problem.form.key, problem.value)
                self.listener.call(site, seen, None)
        return problem, before

    def end_own(self, before: bool | None) -> None:
        """The engine has ended, also by an error."""
        self.own = bool(before)


def code() -> str:
    """The file and line that calls attention: the nearest one outside of torch and this library."""
    frame = sys._getframe(2)
    for _ in range(NEAR):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not file.startswith(ASIDE) and not file.startswith("<"):
            return f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
