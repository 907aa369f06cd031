"""Finite: stops NaN and Inf at the module where they arise.

Shape legend: `...` leading dims, H query heads, K key heads, Q queries, L keys, D width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from regard.doctor.capture.names import named_modules
from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, put_change
from regard.doctor.remedies.change import Change, by_head, whole
from regard.doctor.remedies.locate import unseen
from regard.doctor.remedies.reaching import broken_gradients
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.running import call, undisturbed


class CleanGradient(torch.autograd.Function):
    """The identity, in whose gradient NaN and Inf become 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """A view of x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient, with 0 for NaN and Inf."""
        return torch.where(gradients[0].isfinite(), gradients[0], 0)


class FiniteModule(Change):
    """A module in whose output, and in the gradient of whose input, NaN and Inf become 0."""

    def before(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments, with clean gradients."""
        return tree_map(
            lambda x: CleanGradient.apply(x) if takes_gradient(x) else x, (args, kwargs)
        )

    def after(self, output: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The output, with 0 for NaN and Inf."""
        return tree_map(lambda x: torch.where(x.isfinite(), x, 0) if floats(x) else x, output)


class FiniteSides(Change):
    """Queries and keys with 0 for NaN, and for Inf the largest number of the head: (H,), (K,)."""

    query_limit: Tensor
    key_limit: Tensor

    def __init__(self, heads: int, key_heads: int) -> None:
        super().__init__()
        self.register_buffer("query_limit", torch.ones(heads))
        self.register_buffer("key_limit", torch.ones(key_heads))

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key made finite; finite numbers stay as they are."""
        return made_finite(query, self.query_limit), made_finite(key, self.key_limit)

    def arguments(self) -> dict[str, Any]:
        """The numbers of heads."""
        return {"heads": self.query_limit.shape[0], "key_heads": self.key_limit.shape[0]}


class Finite(Remedy):
    """Finite: replaces NaN and Inf where they first arise."""

    name = "finite"
    does = (
        "Finds the first module that turns finite numbers into NaN or Inf, and replaces them by 0 in "
        "its output and in the gradient of its input. If that is the module that attends, NaN in its "
        "queries and keys becomes 0 and Inf the largest finite number of the head. NaN or Inf in the "
        "weights themselves is refused; redraw=True draws those numbers again, as large as the "
        "others. The result names the module: fix it in the code."
    )
    source = "torch's documentation of autograd; ours"
    moves = frozenset(
        {"nan_queries", "inf_queries", "nan_keys", "inf_keys", "nan_logits", "inf_logits"}
    )
    changes = (FiniteModule, FiniteSides)

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs a batch without NaN and Inf."""
        if any(broken(x) for x in tree_leaves(case.batch)):
            return "the batch itself holds NaN or Inf: look at the data"
        return None

    def apply(self, case: RemedyCase, *, redraw: bool = False, seed: int = 0, **_: Any) -> Applied:
        """Redraw broken weights if asked to; otherwise clean the module where numbers break."""
        weights = {n: x for n, x in case.model.named_parameters() if not x.isfinite().all()}
        if weights and not redraw:
            raise NotApplicable(
                f"weights themselves hold NaN or Inf ({', '.join(weights)}): load an earlier "
                'checkpoint, or draw those numbers again by d.treat(finding, "finite", redraw=True)'
            )
        if weights:
            undo = redrawn(list(weights.values()), seed)
            return Applied(
                f"NaN and Inf drawn again in {', '.join(weights)}",
                "not kept: what those weights had learned is lost",
                undo,
            )
        path = first_to_break(case.model, case.batch)
        if path is None:
            raise NotApplicable("no module makes NaN or Inf on this batch")
        if path == case.place.module:
            return at_the_call(case)
        undo, names = put_change(case, "finite", FiniteModule(), whole(path))
        what = f"0 in place of NaN and Inf in the output of {path}, where they arise"
        # Clean outputs may still have broken gradients inside the module: sqrt at 0, 0 times inf.
        with undone_by_error(undo):
            left = broken_gradients(case.model, case.batch)
        if left:
            what += f"; in backward the gradients of {', '.join(left)} stay broken"
        return Applied(what, "exactly where its output is finite", undo, names)


def at_the_call(case: RemedyCase) -> Applied:
    """Make the queries and keys of the call itself finite."""
    query, key = case.call.seen.query, case.call.seen.key
    if query is None or key is None or not (broken(query) or broken(key)):
        raise NotApplicable(
            f"NaN or Inf arise inside {case.place.module or 'the model'}, but not in queries and keys "
            "that a remedy can reach"
        )
    change = FiniteSides(case.place.heads, case.place.key_heads).to(**case.like())
    change.query_limit.copy_(largest(query))
    change.key_limit.copy_(largest(key))
    undo, names = put_change(case, "finite", change)
    return Applied(
        f"queries and keys of {case.site} kept finite: Inf is {float(largest(key).max()):.3g} at most",
        "exactly for heads whose queries and keys are finite",
        undo,
        names,
    )


def floats(x: object) -> TypeGuard[Tensor]:
    """Whether x is a tensor of floats."""
    return isinstance(x, Tensor) and x.is_floating_point()


def takes_gradient(x: object) -> bool:
    """Whether x is a tensor that gets a gradient."""
    return floats(x) and x.requires_grad


def broken(x: object) -> bool:
    """Whether x is a tensor that holds NaN or +Inf; -Inf does not count, as masks hide keys by it."""
    return floats(x) and bool((x.isnan() | x.isposinf()).any())


def made_finite(x: Tensor, limit: Tensor) -> Tensor:
    """Input (..., h, T, D) with 0 for NaN and plus or minus the `limit` (h,) of its head for Inf."""
    bound = by_head(limit, x)
    finite = torch.where(x.isnan(), 0, torch.sign(x) * bound)
    return torch.where(x.isfinite(), x, finite.detach())


def largest(x: Tensor) -> Tensor:
    """The largest finite absolute number (h,) of each head of (B, h, T, D); 1 if there is none."""
    found = torch.where(x.isfinite(), x.abs(), 0).amax((0, -2, -1))
    return torch.where(found > 0, found, 1.0)


def first_to_break(model: nn.Module, batch: Any) -> str | None:
    """The path of the first module that ends with NaN or Inf in its output but not in its input.

    A child ends before its parent, so this is the innermost module.
    """
    found: list[str] = []

    def noting(path: str) -> Callable:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            came = found or any(map(broken, tree_leaves((args, kwargs))))
            if not came and any(map(broken, tree_leaves(output))):
                found.append(path)

        return hook

    hooks = [
        module.register_forward_hook(noting(path), with_kwargs=True)
        for path, module in named_modules(model)
    ]
    try:
        with torch.no_grad(), unseen(), undisturbed(model):
            call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


@torch.no_grad()
def redrawn(weights: list[nn.Parameter], seed: int) -> Callable[[], None]:
    """Draw NaN and Inf in weights again, as large as the rest; returns the function that undoes it."""
    generator = torch.Generator().manual_seed(seed)
    before = [x.detach().clone() for x in weights]
    for x in weights:
        sound = x.isfinite()
        kept = x[sound]
        # A weight without any finite number gets the size of a fresh linear layer, a scalar gets 1.
        fresh = x.shape[-1] ** -0.5 if x.ndim else 1.0
        size = kept.square().mean().sqrt() if kept.numel() else fresh
        drawn = torch.randn(x.shape, generator=generator).to(x) * size
        x.copy_(torch.where(sound, x, drawn))

    @torch.no_grad()
    def undo() -> None:
        for x, values in zip(weights, before, strict=True):
            x.copy_(values)

    return undo
