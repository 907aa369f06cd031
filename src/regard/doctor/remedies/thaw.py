"""Thaw: lets frozen weights learn."""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.doctor.remedies.base import Applied, NotApplicable, Remedy, RemedyCase
from regard.doctor.remedies.reaching import learns
from regard.doctor.remedies.undoing import undone_by_error


class Thaw(Remedy):
    """Thaw: sets `requires_grad` on frozen parameters."""

    name = "thaw"
    does = (
        "Sets requires_grad on the frozen parameters of the module that attends, so that queries "
        "and keys learn. An optimizer created before does not have them: create it again."
    )
    source = "torch's documentation of autograd"
    moves = frozenset({"query_grad", "key_grad"})

    def cannot(self, case: RemedyCase) -> str | None:
        """Needs frozen parameters."""
        if not frozen_in(case.module):
            return f"no parameter of {case.place.module or 'the model'} is frozen"
        return None

    def apply(self, case: RemedyCase, **_: Any) -> Applied:
        """Thaw the whole module, if queries or keys then get a gradient."""
        frozen = frozen_in(case.module)
        for x in frozen.values():
            x.requires_grad_(True)

        def undo() -> None:
            for x in frozen.values():
                x.requires_grad_(False)

        with undone_by_error(undo):
            if not learns(case):
                raise NotApplicable(
                    f"frozen parameters are not what keeps the gradient from {case.site}"
                )
        names = ", ".join(frozen)
        return Applied(f"thawed {names}", "exactly: no number changes until it is trained", undo)


def frozen_in(module: nn.Module) -> dict[str, nn.Parameter]:
    """The float parameters of a module without `requires_grad`, by name."""
    return {
        name: x
        for name, x in module.named_parameters()
        if not x.requires_grad and x.is_floating_point()
    }
