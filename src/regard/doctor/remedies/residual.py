"""Residual: adds a residual connection around attention."""

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
    """A module whose input is added to its output, or to the first tensor of its output."""

    def after(self, output: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The output plus the first argument of the same shape."""
        several = isinstance(output, (tuple, list)) and len(output) > 0
        first, *rest = output if several else (output,)
        given = next((x for x in (*args, *kwargs.values()) if alike(x, first)), None)
        if given is None:
            raise ValueError(
                f"the residual connection around {self.place.module} needs an argument of the shape "
                "of its output, and this call has none: undo the treatment"
            )
        first = first + given
        if not several:
            return first
        make = getattr(output, "_make", type(output))  # a named tuple takes its fields one by one
        return make([first, *rest])


def alike(x: object, output: object) -> bool:
    """Whether both are float tensors of one shape."""
    if not (isinstance(x, Tensor) and isinstance(output, Tensor)):
        return False
    return x.shape == output.shape and x.is_floating_point() and output.is_floating_point()


class AddResidual(Remedy):
    """Residual: lets tokens bypass attention."""

    name = "residual"
    does = (
        "Adds the input of every attention module of this kind, from the first to this one, to its "
        "output. Attention averages tokens, and without a residual connection they become more alike "
        "with every layer. An existing connection gets more weight. In the code: add a residual "
        "connection, and a feed-forward network after attention."
    )
    source = "Dong et al. 2021 (arXiv 2103.03404)"
    moves = frozenset({"value_alike", "output_alike"})
    changes = (WayAround,)

    def cannot(self, case: RemedyCase) -> str | None:
        """None: `apply` tries whether the shapes fit."""
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Put connections around this module and those before it, which already made the tokens alike."""
        has = {x.place.module for _, x in changes_in(case.model) if isinstance(x, WayAround)}
        paths = [path for path in leading_to(case) if path not in has]
        if not paths:
            raise NotApplicable(
                f"every attention module up to {case.site} has a residual connection from an earlier "
                "treatment"
            )
        undo = put_each(case, "residual", WayAround, map(whole, paths))
        try:
            with undone_by_error(undo), torch.no_grad(), unseen(), undisturbed(case.model):
                call(case.model, case.batch)
        except (ValueError, TypeError, RuntimeError) as error:
            raise NotApplicable(f"the model fails with it: {error}") from None
        count = f"{len(paths)} attention module{'s' * (len(paths) > 1)}"
        return Applied(
            f"a residual connection around {count}: {', '.join(paths)}",
            "changed on purpose: the input is added to the output",
            undo,
        )


def leading_to(case: RemedyCase) -> list[str]:
    """Paths of the attention modules of the same class up to the sick one, which is the last."""
    paths: dict[str, None] = {}
    for name, found in locate(case.model, case.batch, case.site).items():
        path = found.place.module
        if isinstance(module_at(case.model, path), type(case.module)):
            paths[path] = None
        if name == case.site:
            break
    return list(paths)
