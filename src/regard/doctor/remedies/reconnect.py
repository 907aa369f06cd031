"""Reconnect: lets gradients through where `detach` or `no_grad` in the code cuts them off."""

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
    "reconnect cannot be compiled, because no_grad becomes part of the graph: compile without "
    "fullgraph, which leaves {0} uncompiled, or remove the detach or no_grad from its code and undo "
    "the treatment"
)


class Reconnected(Change):
    """A module during whose forward `detach` and `no_grad` do nothing."""

    reconnects = True

    def before(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments as they are; raises while the compiler traces."""
        if torch.compiler.is_compiling():
            raise RuntimeError(COMPILED.format(self.place.module or "the model"))
        return args, kwargs


class Reconnect(Remedy):
    """Reconnect: disables `detach` and `no_grad` between queries, keys and the loss."""

    name = "reconnect"
    does = (
        "Makes detach() and torch.no_grad() do nothing while the module that attends runs, or if need "
        "be one around it, so that queries and keys get their gradient until the code is fixed. No "
        "number of the output changes. .data and inference_mode() are not affected. Under "
        "torch.compile this module is not compiled."
    )
    source = "torch's documentation of autograd and of torch function modes"
    moves = frozenset({"query_grad", "key_grad"})
    changes = (Reconnected,)

    def cannot(self, case: RemedyCase) -> str | None:
        """None: `apply` tries whether it helps."""
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Reconnect the innermost module around the call with which queries or keys get a gradient."""
        for path in around(case):
            undo, names = put_change(case, "reconnect", Reconnected(), whole(path))
            with undone_by_error(undo):
                helps = learns(case)
            if helps:
                return Applied(
                    f"detach() and no_grad() do nothing while {path or 'the model'} runs",
                    "exactly: only gradients change",
                    undo,
                    names,
                )
            undo()
        raise NotApplicable(
            f"no detach() or no_grad() in the forward of a module around {case.site} cuts its queries "
            "and keys off: look for .data and inference_mode(), which cannot be disabled from outside"
        )


def around(case: RemedyCase) -> list[str]:
    """Paths of the module and of those around it, innermost first, without the model itself.

    A `no_grad` around the whole model may be intended. Containers are left out: they have no code of
    their own, and a change would add a child that they take for one more layer.
    """
    words = case.place.module.split(".")
    paths = [".".join(words[:n]) for n in range(len(words), 0, -1)]
    return [x for x in paths if not isinstance(module_at(case.model, x), CONTAINERS)]
