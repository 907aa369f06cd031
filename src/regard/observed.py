"""`is_observed`: whether anything observes or changes a call, so that it must go the whole way.

A short way skips checks, the plan or the dispatcher, which cost a small call more time than its kernels.
It may be taken only if no tracer, mode, profiler or doctor would see a difference. Every short way asks
here, so that a new one cannot hide calls from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
)
from torch.autograd import forward_ad

from regard.arguments import autocast_enabled

if TYPE_CHECKING:
    from regard.engines.edges.call import EdgeCall
    from regard.problem import Problem
    from regard.scores import Score

# Any other type may override operations by `__torch_function__` or `__torch_dispatch__`.
PLAIN_TYPES = (Tensor, torch.nn.Parameter)
# Transforms of `torch.func` that differentiate; `vmap` and `functionalize` do not.
DERIVATIVES = (TransformType.Grad, TransformType.Jvp)


class Watcher(Protocol):
    """An object that is told of every call before and after its engine runs."""

    def begin_own(self, problem: Problem) -> tuple[Problem, bool | None]:
        """Called before the engine runs; returns the problem to run, and an argument for `end_own`."""
        ...

    def end_own(self, before: bool | None) -> None:
        """Called after the engine ran or raised; `before` is the second value of `begin_own`."""
        ...


# `regard.doctor` adds itself here while it watches a model.
WATCHERS: list[Watcher] = []
# Functions that are told of every call before its engine runs: the problem, and `score=` and `engine=` as
# given. `regard.explain(module, ...)` adds one.
LISTENERS: list[Callable[[Problem, Score | str | None, str | None], None]] = []
# Functions that are told of every call over the edges of a graph: the lowered call and its score.
EDGE_LISTENERS: list[Callable[[EdgeCall, Score], None]] = []
# Functions that replace the keys of every call by others of the same shape, before its score lowers
# them. The doctor's attack plants a long key this way.
KEY_CHANGES: list[Callable[[Tensor], Tensor]] = []


def is_observed(tensors: Sequence[Tensor], *, keeps_operations: bool = False) -> bool:
    """Whether anything may observe or change a call of these tensors.

    Observers are the doctor (`WATCHERS`, `LISTENERS`, `KEY_CHANGES`), a compiler, a tracer, a transform of `torch.func`,
    hooks on saved tensors (checkpointing), autocast, and a tensor that the dispatcher has to read. Modes,
    profilers and forward-mode AD count as well, unless the short way `keeps_operations`: if it consists
    of PyTorch's own operations, they see those.
    """
    if WATCHERS or LISTENERS or KEY_CHANGES or has_saved_tensor_hooks():
        return True
    if not keeps_operations:
        return needs_dispatcher(tensors) or autocast_enabled(tensors[0])
    if is_transformed() or autocast_enabled(tensors[0]):
        return True
    return not all(map(is_plain, tensors))


def needs_dispatcher(tensors: Sequence[Tensor | None]) -> bool:
    """Whether an operator has to be called through PyTorch's dispatcher.

    That is so if a compiler, a transform, a mode, a profiler or a subclass of Tensor acts there.
    Otherwise an engine calls its kernels directly: the way through the dispatcher and back to Python takes
    as long as four kernel launches. The doctor is not asked for: it is told of a call before its engine
    runs.
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
    # `is_compiling` comes first: while compiling it is a constant, and the rest is not traced.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return torch._C._is_tracing()


def in_forward_mode() -> bool:
    """Whether the caller differentiates in forward mode; torch.compile refuses that by itself."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def derivative_levels(*tensors: Tensor) -> int:
    """How many derivatives are taken around this call under `torch.func`; 0 outside its transforms.

    Each `grad`, `vjp` or `jvp` counts, and autograd outside of them, where a tensor within the wrappers
    of the transforms requires a gradient.
    """
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return 0
    levels = sum(x.key() in DERIVATIVES for x in get_interpreter_stack() or ())
    return levels + any(innermost(x).requires_grad for x in tensors)


def innermost(x: Tensor) -> Tensor:
    """The tensor inside all wrappers of `torch.func`."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x


def has_saved_tensor_hooks() -> bool:
    """Whether hooks receive the tensors that are saved for the backward.

    A short way saves fewer tensors. A checkpoint counts them: if its first forward went the whole way and
    the recomputation did not, the counts would differ and it would raise.
    """
    if torch.compiler.is_compiling():
        return False
    # Releases of torch without this function cannot say: assume that there are hooks.
    ask = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return ask is None or ask(True) is not None


def is_plain(x: Tensor) -> bool:
    """Whether a kernel may read the memory of a tensor as it is, without the dispatcher.

    It may not if the tensor is negated on reading (the imaginary part of a conjugate), is a zero without
    memory, stands for a batch of gradients (`is_grads_batched`), or is of a subclass.
    """
    if type(x) not in PLAIN_TYPES or x.is_neg() or x._is_zerotensor():
        return False
    return not is_legacy_batchedtensor(x)
