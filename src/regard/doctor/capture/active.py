"""Keeps a torch function mode active until it is closed, except during optimizer steps.

`with mode:` does not work here: watches end in any order, and torch pops only the mode on top. The
mode is off during optimizer steps because none of their hundreds of calls is attention, and each of
them would pass through it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)


class Active:
    """Keeps a mode on torch's stack of modes."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self.mode, self.resting = mode, False
        self._hooks = (
            register_optimizer_step_pre_hook(self._rest),
            register_optimizer_step_post_hook(self.resume),
        )
        _push_mode(mode)

    def _rest(self, *step: Any) -> None:
        # torch can only pop the mode on top. If another library's mode is on top, ours stays on.
        stack = _get_current_function_mode_stack()
        if not torch.compiler.is_compiling() and stack and stack[-1] is self.mode:
            _pop_mode()
            self.resting = True

    def resume(self, *step: Any) -> None:
        """Put the mode back if it is off.

        Also called when a forward pass begins: torch runs no post hook after a step that raised.
        """
        if self.resting and not torch.compiler.is_compiling():
            _push_mode(self.mode)
            self.resting = False

    def close(self) -> None:
        """Take the mode off the stack, wherever it is; modes above it stay, in their order."""
        for hook in self._hooks:
            hook.remove()
        self.resting = False
        if not any(mode is self.mode for mode in _get_current_function_mode_stack()):
            return
        # torch cannot remove a mode from the middle: pop down to it, then push the others back.
        above = []
        while (top := _pop_mode()) is not self.mode:
            above.append(top)
        for other in reversed(above):
            _push_mode(other)
