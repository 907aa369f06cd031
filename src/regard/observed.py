"""Whether anything observes or changes a call, so that it must go the whole way.

A short way skips checks, the plan or the dispatcher, which small calls wait for longer than for their kernels. It
may be taken only where nothing could tell. Every short way asks here, so that a new one cannot blind
the doctor or a tracer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad

from regard.arguments import autocast_enabled

if TYPE_CHECKING:
    from regard.problem import Problem

# Types of tensors that nothing overrides.
PLAIN_TYPES = (Tensor, torch.nn.Parameter)


class Watcher(Protocol):
    """Is told of every call before its engine runs, and after."""

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """The call is about to run: gives the problem to run in its place, and what `end_own` is told."""
        ...

    def end_own(self, before: bool | None) -> None:
        """It has run, or failed; `before` is the second that `begin_own` gave."""
        ...


# `regard.doctor` adds itself here while it watches a model.
WATCHERS: list[Watcher] = []
# Give every call other keys, of the same shape, before its score lowers them: the doctor's attack
# plants a long key there.
KEY_CHANGES: list[Callable[[Tensor], Tensor]] = []


def is_observed(tensors: Sequence[Tensor], *, keeps_operations: bool = False) -> bool:
    """Whether anything may observe or change a call of these tensors.

    That is the doctor (`WATCHERS`, `KEY_CHANGES`), a compiler, a tracer, a transform of `torch.func`, hooks
    on saved tensors (checkpointing), autocast, and a tensor that the dispatcher has to read. Modes,
    profilers and forward-mode AD count too, unless the short way `keeps_operations`: it then consists of
    PyTorch's own operations, which they see.
    """
    if WATCHERS or KEY_CHANGES or has_saved_tensor_hooks():
        return True
    if not keeps_operations:
        return needs_dispatcher(tensors) or autocast_enabled(tensors[0])
    if is_transformed() or autocast_enabled(tensors[0]):
        return True
    return not all(map(is_plain, tensors))


def needs_dispatcher(tensors: Sequence[Tensor | None]) -> bool:
    """Whether an operator has to be called through PyTorch's dispatcher.

    It has to where a compiler, a transform, a mode, a profiler or a subclass of Tensor waits there.
    Otherwise an engine calls its kernels directly: the way through the dispatcher and back to Python takes
    as long as four of them. The doctor is told of a call before its engine runs, so it does not count.
    """
    if is_transformed():
        return True
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return True
    if torch.autograd._profiler_enabled() or in_forward_mode():
        return True
    return not all(x is None or is_plain(x) for x in tensors)


def is_transformed() -> bool:
    """Whether a compiler, a transform of `torch.func` or a tracer is at work."""
    # First, since a compiler need not trace what follows.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._is_tracing()


def in_forward_mode() -> bool:
    """Whether the caller differentiates in forward mode; compilers refuse that by themselves."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def has_saved_tensor_hooks() -> bool:
    """Whether hooks get what is saved for a backward. They may count it, and a short way saves less.

    A checkpoint that ran the whole way would find another number when it runs again. Releases of torch that
    cannot say are taken to have hooks.
    """
    if torch.compiler.is_compiling():
        return False
    ask = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return ask is None or ask(True) is not None


def is_plain(x: Tensor) -> bool:
    """Whether the memory of a tensor holds what it says.

    Not where it is negated on reading (the imaginary part of a conjugate), nor where there is none,
    nor where it stands for a batch of gradients (`is_grads_batched`): the dispatcher sees to these.
    """
    if type(x) not in PLAIN_TYPES or x.is_neg() or x._is_zerotensor():
        return False
    return not is_legacy_batchedtensor(x)
