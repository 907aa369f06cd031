"""The mode rests while an optimizer steps: none of its hundreds of calls is attention."""

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


class Rest:
    """Takes a mode off the stack before any optimizer's step, and puts it back after."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self.mode, self.resting = mode, False
        self._handles = (
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self.end),
        )

    def _begin(self, *step: Any) -> None:
        # A mode of somebody else's on top stays there, and so does ours below it.
        stack = _get_current_function_mode_stack()
        if not torch.compiler.is_compiling() and stack and stack[-1] is self.mode:
            _pop_mode()
            self.resting = True

    def end(self, *step: Any) -> None:
        """Back to work, if it rests: a step that raised has not told its end."""
        if self.resting and not torch.compiler.is_compiling():
            _push_mode(self.mode)
            self.resting = False

    def close(self) -> None:
        """Leave optimizers alone."""
        for handle in self._handles:
            handle.remove()
        self.end()
