"""Run a model once and leave no trace: modes, buffers and random state are restored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def call(model: nn.Module, batch: Any) -> Any:
    """The output of the model on a batch: a tensor, or a tuple or dict of all arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return model(*batch)
    return model(batch)


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The batch with `change` applied to each argument."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: change(x) for name, x in batch.items()}
    return tuple(change(x) for x in batch)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """A context with the model in evaluation mode and uncompiled, which restores the model on exit.

    Restored are the training mode of each module, buffers and random numbers.
    """
    # Buffers are cloned because a forward pass may write to them in place (running statistics, caches)
    # in evaluation mode too. The tensor itself is kept beside its clone: a module may have replaced it.
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
                # Write only if it changed: a write counts as an in-place change, and a graph that
                # still waits for backward may have saved this buffer.
                if not x.is_meta and not torch.equal(x, before):
                    with torch.no_grad():
                        x.copy_(before)


def uncompiled() -> ExitStack:
    """A context in which compiled models run eagerly."""
    undo = ExitStack()
    # Without the compiler loaded there is no compiled model, and loading it takes seconds.
    if "torch._dynamo" in sys.modules:
        undo.enter_context(torch.compiler.set_stance("force_eager"))
    return undo
