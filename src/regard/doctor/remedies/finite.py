"""Finite: let NaN and Inf go no further than where they are made.

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
    """The identity; what is not finite in its gradient becomes 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same numbers in the same memory."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Without what broke."""
        return torch.where(gradients[0].isfinite(), gradients[0], 0)


class FiniteModule(Change):
    """What is not finite in the output of a module, and in the gradient of its input, becomes 0."""

    def before(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Inputs whose gradients are cleaned."""
        return tree_map(
            lambda x: CleanGradient.apply(x) if takes_gradient(x) else x, (args, kwargs)
        )

    def after(self, output: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Without what broke."""
        return tree_map(lambda x: torch.where(x.isfinite(), x, 0) if floats(x) else x, output)


class FiniteSides(Change):
    """NaN in queries and keys becomes 0, Inf the largest number that the head had: (H,), (K,)."""

    query_limit: Tensor
    key_limit: Tensor

    def __init__(self, heads: int, key_heads: int) -> None:
        super().__init__()
        self.register_buffer("query_limit", torch.ones(heads))
        self.register_buffer("key_limit", torch.ones(key_heads))

    def change_sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Finite numbers stay as they are."""
        return made_finite(query, self.query_limit), made_finite(key, self.key_limit)

    def arguments(self) -> dict[str, Any]:
        """How many heads."""
        return {"heads": self.query_limit.shape[0], "key_heads": self.key_limit.shape[0]}


class Finite(Remedy):
    """Stop broken numbers at their place."""

    name = "finite"
    does = (
        "Finds the first module that makes NaN or Inf of finite numbers, and puts 0 in their place "
        "in its output and in the gradient of its input. If that is the module that attends, NaN in "
        "its queries and keys becomes 0 and Inf the largest finite number of the head. Weights that "
        "are broken themselves are refused: redraw=True draws those numbers anew, as large as the "
        "others. Where numbers break is told: put it right in the code."
    )
    source = "torch's documentation of autograd; ours"
    moves = frozenset(
        {"nan_queries", "inf_queries", "nan_keys", "inf_keys", "nan_logits", "inf_logits"}
    )
    changes = (FiniteModule, FiniteSides)

    def cannot(self, case: RemedyCase) -> str | None:
        """The batch must be sound."""
        if any(broken(x) for x in tree_leaves(case.batch)):
            return "the batch itself holds NaN or Inf: look at the data"
        return None

    def apply(self, case: RemedyCase, *, redraw: bool = False, seed: int = 0, **_: Any) -> Applied:
        """Weights, if they are to be drawn; else at the module where numbers break."""
        weights = {n: x for n, x in case.model.named_parameters() if not x.isfinite().all()}
        if weights and not redraw:
            raise NotApplicable(
                f"weights themselves hold NaN or Inf ({', '.join(weights)}): load a checkpoint from "
                'before, or d.treat(finding, "finite", redraw=True) draws those numbers anew'
            )
        if weights:
            undo = redrawn(list(weights.values()), seed)
            return Applied(
                f"numbers that were not finite drawn anew in {', '.join(weights)}",
                "not kept: what those weights had learned is lost",
                undo,
            )
        path = first_to_break(case.model, case.batch)
        if path is None:
            raise NotApplicable("no module makes NaN or Inf on this batch")
        if path == case.place.module:
            return at_the_call(case)
        undo, names = put_change(case, "finite", FiniteModule(), whole(path))
        what = f"0 in place of what is not finite in the output of {path}, which makes it"
        with undone_by_error(undo):
            left = broken_gradients(case.model, case.batch)
        if left:
            what += f"; in backward the gradients of {', '.join(left)} stay broken"
        return Applied(what, "exactly where its output is finite", undo, names)


def at_the_call(case: RemedyCase) -> Applied:
    """Queries and keys of the call itself."""
    query, key = case.call.seen.query, case.call.seen.key
    if query is None or key is None or not (broken(query) or broken(key)):
        raise NotApplicable(
            f"numbers break inside {case.place.module or 'the model'}, but not in its queries and "
            "keys as they can be reached"
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
    """Whether it is a tensor of floats."""
    return isinstance(x, Tensor) and x.is_floating_point()


def takes_gradient(x: object) -> bool:
    """Whether a gradient comes back to it."""
    return floats(x) and x.requires_grad


def broken(x: object) -> bool:
    """Whether it holds NaN or Inf; -Inf alone is how masks hide."""
    return floats(x) and bool((x.isnan() | x.isposinf()).any())


def made_finite(x: Tensor, limit: Tensor) -> Tensor:
    """(..., h, T, D) with NaN as 0 and Inf as plus or minus `limit` of the head."""
    bound = by_head(limit, x)
    finite = torch.where(x.isnan(), 0, torch.sign(x) * bound)
    return torch.where(x.isfinite(), x, finite.detach())


def largest(x: Tensor) -> Tensor:
    """(h,): the largest finite number of (B, h, T, D) for each head, 1 where none is."""
    found = torch.where(x.isfinite(), x.abs(), 0).amax((0, -2, -1))
    return torch.where(found > 0, found, 1.0)


def first_to_break(model: nn.Module, batch: Any) -> str | None:
    """The path of the first module that is done with broken numbers made of finite ones."""
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
    """Draw what is not finite anew, as large as the rest of the weight; gives what undoes it."""
    generator = torch.Generator().manual_seed(seed)
    before = [x.detach().clone() for x in weights]
    for x in weights:
        sound = x.isfinite()
        kept = x[sound]
        # A weight without a finite number: as a fresh linear layer has it; a single number has 1.
        fresh = x.shape[-1] ** -0.5 if x.ndim else 1.0
        size = kept.square().mean().sqrt() if kept.numel() else fresh
        drawn = torch.randn(x.shape, generator=generator).to(x) * size
        x.copy_(torch.where(sound, x, drawn))

    @torch.no_grad()
    def undo() -> None:
        for x, values in zip(weights, before, strict=True):
            x.copy_(values)

    return undo
