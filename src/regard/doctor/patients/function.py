"""Opens a patient from a user's function: `package.module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from regard.describe import describe
from regard.doctor.patients.patient import (
    USERS,
    Patient,
    Unusable,
    check_batch,
    no_batch,
    with_kind,
)

RETURNS = "a model, (model, batch), or (model, batch, loss)"


def open_function(name: str) -> tuple[Patient, bool]:
    """The patient that a function returns, and whether it has batches."""
    made = build(name)
    parts = tuple(made) if isinstance(made, tuple | list) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise Unusable(f"{name} must return {RETURNS}, got {describe(made)}")
    model, batch, loss = (*parts, None, None)[:3]
    if loss is not None and not callable(loss):
        raise Unusable(
            f"the loss that {name} returns must be a function (output, batch), got {describe(loss)}"
        )
    if batch is None:
        return Patient(name, model, no_batch, loss), False
    first = batch
    if callable(batch):
        try:
            first = batch(0)
        except USERS as error:
            raise Unusable(
                f"the batch of {name}, a function of the step, fails: {worded(error)}"
            ) from None
    check_batch(first, f"the batch of {name}")

    def give(step: int) -> Any:
        # The first batch is requested only once: the function may take it from a loader.
        return batch(step) if callable(batch) and step else first

    return Patient(name, model, give, loss), True


def build(name: str) -> Any:
    """Import the module, with the current folder on the path, and call the function."""
    module_name, _, function_name = name.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        hint = f"{Path(module_name).stem}:{function_name or 'build'}"
        raise Unusable(f"{name}: name the module as `import` does, from its folder: {hint}")
    if not all(part.isidentifier() for part in (*module_name.split("."), function_name)):
        raise Unusable(f"{name!r} is not of the form package.module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        searched = "in the current folder and on the Python path"
        raise Unusable(f"{name}: there is no module {error.name!r} {searched}") from None
    except USERS as error:
        raise Unusable(f"{name}: importing {module_name} fails: {worded(error)}") from None
    function: Callable[[], Any] | None = getattr(module, function_name, None)
    if not callable(function):
        offered = functions_in(module)
        there = f"; it has {', '.join(offered)}" if offered else ""
        raise Unusable(f"{name}: the module {module_name} has no function {function_name!r}{there}")
    try:
        return function()
    except USERS as error:
        raise Unusable(f"{name}() fails: {worded(error)}") from None


def functions_in(module: Any, most: int = 8) -> Sequence[str]:
    """Names of functions that the module itself defines, at most `most`."""
    own = [
        key
        for key, x in vars(module).items()
        if getattr(x, "__module__", None) == module.__name__ and callable(x) and key[0] != "_"
    ]
    return own[:most]


def worded(error: BaseException) -> str:
    """An error in the user's code on one line, with the file and line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
    return f"{with_kind(error)}{place}"
