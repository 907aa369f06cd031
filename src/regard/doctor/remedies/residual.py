"""Residual: a way around attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, put_each
from regard.doctor.remedies.change import Change, whole
from regard.doctor.remedies.intervene import changes_in, module_at
from regard.doctor.remedies.locate import locate, unseen
from regard.doctor.remedies.undoing import undone_by_error
from regard.doctor.running import call, undisturbed


class WayAround(Change):
    """The input of a module is added to its output, or to the first tensor of that."""

    def after(self, output: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The output plus the first argument of its shape."""
        several = isinstance(output, (tuple, list)) and len(output) > 0
        first, *rest = output if several else (output,)
        given = next((x for x in (*args, *kwargs.values()) if alike(x, first)), None)
        if given is None:
            raise ValueError(
                f"a residual connection around {self.place.module} needs an argument of the shape "
                "of its output, and there is none: undo the treatment"
            )
        first = first + given
        if not several:
            return first
        make = getattr(output, "_make", type(output))  # a named tuple takes its fields one by one
        return make([first, *rest])


def alike(x: object, output: object) -> bool:
    """Whether the two can be added."""
    if not (isinstance(x, Tensor) and isinstance(output, Tensor)):
        return False
    return x.shape == output.shape and x.is_floating_point() and output.is_floating_point()


class AddResidual(Remedy):
    """Let tokens pass by attention."""

    name = "residual"
    does = (
        "Adds the input of every attention module of this kind, from the first to this one, to its "
        "output: attention averages tokens, and without a way around it they become one token layer "
        "by layer. Where there is one already, it gets more weight. In the code: a residual "
        "connection, and a network after attention."
    )
    source = "Dong et al. 2021 (arXiv 2103.03404)"
    moves = frozenset({"value_alike", "output_alike"})
    changes = (WayAround,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Shapes are tried."""
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Around the modules that lead to this one too: the tokens that reach it are alike already."""
        has = {x.place.module for _, x in changes_in(case.model) if isinstance(x, WayAround)}
        paths = [path for path in leading_to(case) if path not in has]
        if not paths:
            raise NotApplicable(f"every attention module up to {case.site} has one from us already")
        undo = put_each(case, "residual", WayAround, map(whole, paths))
        try:
            with undone_by_error(undo), torch.no_grad(), unseen(), undisturbed(case.model):
                call(case.model, case.batch)
        except (ValueError, TypeError, RuntimeError) as error:
            raise NotApplicable(f"with it the model fails: {error}") from None
        count = f"{len(paths)} attention module{'s' * (len(paths) > 1)}"
        return Applied(
            f"a residual connection around {count}: {', '.join(paths)}",
            "changed on purpose: what goes in is added to what comes out",
            undo,
        )


def leading_to(case: RemedyCase) -> list[str]:
    """Paths of the modules that attend before the sick one and are of its kind, and its own."""
    paths: dict[str, None] = {}
    for name, found in locate(case.model, case.batch, case.site).items():
        path = found.place.module
        if isinstance(module_at(case.model, path), type(case.module)):
            paths[path] = None
        if name == case.site:
            break
    return list(paths)
