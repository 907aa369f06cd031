"""Run a model once on the side: nobody notices, and it is as before afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn


def call(model: nn.Module, batch: Any) -> Any:
    """What the model makes of a batch: a tensor, or a tuple or dict of all arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return model(*batch)
    return model(batch)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and uncompiled; random numbers and modes are as before afterwards."""
    training = [(module, module.training) for module in model.modules()]
    devices = {x.device for x in model.parameters() if x.is_cuda}
    with torch.random.fork_rng(sorted(devices, key=str)), uncompiled():
        try:
            model.eval()
            yield
        finally:
            for module, before in training:
                module.training = before


def uncompiled() -> ExitStack:
    """Run compiled models as they were before."""
    undo = ExitStack()
    if "torch._dynamo" in sys.modules:
        undo.enter_context(torch.compiler.set_stance("force_eager"))
    return undo
