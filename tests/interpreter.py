"""Triton's interpreter, made quicker for tests: what it does again and again it does once a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patch_once_a_launch() -> None:
    """Let a launch put NumPy in place of Triton's language once, not in each call between its functions.

    The interpreter looks through the language for what it has to replace whenever one function of a kernel
    calls another, 150 times in a launch of ours, and finds it replaced: 40% of the time of our kernels.
    Modules that were seen in a launch stay replaced until it ends, so that a second look changes nothing.
    """
    from triton.runtime import interpreter

    # Both names are Triton's own affair: where they are others, it stays as it is.
    whole: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    scope = getattr(interpreter, "_LangPatchScope", None)
    if whole is None or scope is None or hasattr(whole, "seen"):
        return
    seen: set[tuple[int, int]] = set()
    restore = scope.restore

    def patch(fn: Any) -> Any:
        # A function's first call adds names to its module, the language among them: the module grows.
        module = id(fn.__globals__), len(fn.__globals__)
        if module in seen:
            return scope()
        seen.add(module)
        return whole(fn)

    def restore_and_forget(self: Any) -> None:
        restore(self)
        seen.clear()

    patch.seen = seen
    interpreter._patch_lang, scope.restore = patch, restore_and_forget
