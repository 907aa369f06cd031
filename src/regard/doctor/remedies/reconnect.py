"""Reconnect: let the gradient through what cuts it off in the code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase, put_change
from regard.doctor.remedies.change import Change, whole
from regard.doctor.remedies.intervene import module_at
from regard.doctor.remedies.reaching import learns
from regard.doctor.remedies.undoing import undone_by_error

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
COMPILED = (
    "reconnect cannot be compiled, as no_grad is part of the code: compile without fullgraph, which "
    "leaves {0} as it is, or take the detach or no_grad out of its code and undo the treatment"
)


class Reconnected(Change):
    """`detach` and `no_grad` are passed over while the module runs."""

    reconnects = True

    def before(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """As they are."""
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED.format(self.place.module or "the model"))
        return args, kwargs


class Reconnect(Remedy):
    """Pass over what cuts queries and keys off from the loss."""

    name = "reconnect"
    does = (
        "While the module that attends runs, or if need be one around it, detach() and "
        "torch.no_grad() do nothing, so that queries and keys get their gradient until the code is "
        "put right. Not a number of the output changes. .data and inference_mode() stay as they are. "
        "Under torch.compile this module is not compiled."
    )
    source = "torch's documentation of autograd and of torch function modes"
    moves = frozenset({"query_grad", "key_grad"})
    changes = (Reconnected,)

    def cannot(self, case: RemedyCase) -> str | None:
        """Whether it helps is tried."""
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Around the module, or else one around that, if queries and keys then get a gradient."""
        for path in around(case):
            undo, names = put_change(case, "reconnect", Reconnected(), whole(path))
            with undone_by_error(undo):
                helps = learns(case)
            if helps:
                return Applied(
                    f"detach() and no_grad() do nothing while {path or 'the model'} runs",
                    "exactly: only gradients are others",
                    undo,
                    names,
                )
            undo()
        raise NotApplicable(
            f"no detach() or no_grad() in the forward of a module around {case.site} is what cuts "
            "its queries and keys off: look for .data and inference_mode(), which cannot be passed "
            "over from outside"
        )


def around(case: RemedyCase) -> list[str]:
    """The module and those around it, up to but without the model: that may have its reasons.

    Containers have no code of their own, and would take what they hold for one more layer.
    """
    words = case.place.module.split(".")
    paths = [".".join(words[:n]) for n in range(len(words), 0, -1)]
    return [x for x in paths if not isinstance(module_at(case.model, x), CONTAINERS)]
