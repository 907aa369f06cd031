"""The gradients that reach an attention call and the parameters of a model, on one batch.

The loss used in training is unknown here. If the output of the model holds no loss, a fixed random one is
used: the sum of all numbers of the output, each times a normal random number. The absolute size of a
gradient then means little. Which side gets a gradient, and how large it is relative to another, does not
depend on the choice.

Shape legend: H query heads, V vitals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.doctor.capture.gradient_hooks import SIDES
from regard.doctor.findings.no_gradient import GETS
from regard.doctor.remedies.base import RemedyCase
from regard.doctor.remedies.locate import unseen
from regard.doctor.running import call, undisturbed
from regard.doctor.vitals import INDEX, Level
from regard.doctor.watch import watch

GRADIENTS = tuple(f"{side}_grad" for side in SIDES)


def gradients_at(model: nn.Module, batch: Any, site: str) -> Tensor:
    """Vitals (H, V) of a call including those of its gradients, NaN for sides that get none.

    The model, its gradients and all watching doctors are left unchanged.
    """
    with unseen(), undisturbed(model), watch(model, Level.CHEAP) as doctor:
        parameter_gradients(model, batch)
    return doctor.history(site).values[-1]


def learns(case: RemedyCase) -> bool:
    """Whether a side that got no gradient gets one in the model as it is now."""
    found = gradients_at(case.model, case.batch, case.site)
    missing = [x.vital.removeprefix(GETS) for x in case.finding.signals if not x.above]
    missing = [x for x in missing if x in GRADIENTS] or ["query_grad", "key_grad"]
    return not bool(found[:, [INDEX[x] for x in missing]].isnan().all())


def broken_gradients(model: nn.Module, batch: Any) -> list[str]:
    """Names of the parameters whose gradients hold NaN or Inf."""
    with unseen(), undisturbed(model):
        found = parameter_gradients(model, batch)
    return [name for name, x in found.items() if not x.isfinite().all()]


def parameter_gradients(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """The gradients of the parameters that get one, by name."""
    # `autograd.grad` and not `backward`: the `.grad` of the model may hold a step of the user's.
    with torch.enable_grad():
        loss = loss_of(call(model, batch))
        named = {name: x for name, x in model.named_parameters() if x.requires_grad}
        if loss is None or not named:
            return {}
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: x for name, x in zip(named, found, strict=True) if x is not None}


def loss_of(output: Any) -> Tensor | None:
    """The loss in an output, or a random one; None if no gradient flows from the output."""
    given = output.get("loss") if isinstance(output, Mapping) else None
    if isinstance(given, Tensor) and given.requires_grad:
        return given.sum()
    numbers = torch.Generator().manual_seed(0)
    parts = [
        (x * torch.randn(x.shape, generator=numbers).to(x)).sum() / x.numel()
        for x in tree_leaves(dict(output) if isinstance(output, Mapping) else output)
        if isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad and x.numel()
    ]
    return torch.stack([x.double() for x in parts]).sum() if parts else None
