"""Runs a model once without a trace: weights, gradients, buffers and random state stay as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def call(model: nn.Module, batch: Any) -> Any:
    """What the model makes of a batch: a tensor, or a tuple or dict of all arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return model(*batch)
    return model(batch)


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A batch with each argument changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: change(x) for name, x in batch.items()}
    return tuple(change(x) for x in batch)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and uncompiled; modes, buffers and random numbers are put back after it."""
    training = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, x, x.detach().clone())
        for module in model.modules()
        for name, x in module._buffers.items()
        if x is not None
    ]
    devices = {x.device for x in model.parameters() if x.is_cuda}
    with torch.random.fork_rng(sorted(devices, key=str)), uncompiled():
        try:
            model.eval()
            yield
        finally:
            for module, before in training:
                module.training = before
            for module, name, x, before in buffers:
                module._buffers[name] = x
                # Written to only where it changed: a graph that waits for backward may hold it.
                if not x.is_meta and not torch.equal(x, before):
                    with torch.no_grad():
                        x.copy_(before)


def uncompiled() -> ExitStack:
    """Run compiled models as they were before."""
    undo = ExitStack()
    if "torch._dynamo" in sys.modules:
        undo.enter_context(torch.compiler.set_stance("force_eager"))
    return undo
