"""`regard.choose` where somebody imports it as a module: still the function, and the textbook's forms.

The code is in `regard.choosing`. `from regard.choose import textbook` is how the timing of claims was
written before `regard.choose` became a function; its text is part of the digest of measured results.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from regard.choosing.api import Verdict, choose
from regard.choosing.cost import textbook

__all__ = ["choose", "textbook"]


class CallableModule(ModuleType):
    """Importing a submodule puts it in the place of the function in `regard`: it has to act as one."""

    def __call__(self, *arguments: Any, **options: Any) -> Verdict:
        """The function."""
        return choose(*arguments, **options)


sys.modules[__name__].__class__ = CallableModule
