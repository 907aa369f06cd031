"""From a number to a case, and from a case to what is wrong with it.

Every tenth number is a call with a wrong argument, four of ten are calls of modules, the rest calls of the op.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from regard.engines.plan import EngineRefused
from regard.testing.fuzz import mistakes, module_mistakes, modules, op
from regard.testing.fuzz.mistakes import Mistake
from regard.testing.fuzz.modules import ModuleCase
from regard.testing.fuzz.opcase import OpCase, draw_case

__all__ = ["CallOutcome", "draw", "judge_case", "module_mistakes"]

AnyCase = OpCase | ModuleCase | Mistake


class CallOutcome(NamedTuple):
    """What came of a case: words to count it by, and what is wrong, a sentence each."""

    tags: tuple[str, ...]
    problems: tuple[str, ...]


def draw(number: int, engine: str = "any") -> AnyCase:
    """The case of one number; with an engine named, a call of the op by it."""
    if engine != "any":
        return draw_case(number, engine)
    kind = number % 10
    if kind == 9:
        return mistakes.draw_mistake(number)
    return draw_case(number) if kind < 5 else modules.draw_module_case(number)


def judge_case(case: AnyCase) -> CallOutcome:
    """Run a case; warnings are errors."""
    tags = tags_of(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if isinstance(case, OpCase) and case.engine == "triton":
            # Triton's interpreter, which runs its kernels without a GPU, warns of NaN and of NumPy's future.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
        try:
            if isinstance(case, Mistake):
                problems = mistakes.run(case)
            elif isinstance(case, ModuleCase):
                problems = modules.run(case)
            else:
                problems = op.run(case)
        except EngineRefused as error:
            engine = case.engine if isinstance(case, OpCase) else ""
            if engine in op.MAY_REFUSE:
                return CallOutcome(_with_dtype(f"refusals {engine}", case.dtype), ())
            problems = [f"EngineRefused: {error}"]
        except Exception as error:
            problems = [f"{type(error).__name__}: {str(error)[:500]}"]
    return CallOutcome(tags, tuple(problems))


def tags_of(case: AnyCase) -> tuple[str, ...]:
    """The words that a case is counted by."""
    if isinstance(case, Mistake):
        return ("calls with a wrong argument", f"dtype {case.dtype}")
    grad = ("calls with gradients",) if case.grad else ()
    poison = "poison" if isinstance(case, OpCase) else "poisoned"
    poisoned = ("calls with poison",) if getattr(case, poison) else ()
    if isinstance(case, ModuleCase):
        return (*_with_dtype(f"module {case.module}", case.dtype), *grad, *poisoned)
    engine = "picked" if case.engine is None else case.engine
    own = _with_dtype(f"engine {engine}", case.dtype)
    return (*own, f"score {case.score}", *grad, *poisoned)


def _with_dtype(tag: str, dtype: str) -> tuple[str, ...]:
    """A tag, its dtype, and both together."""
    return tag, f"dtype {dtype}", f"in {dtype} {tag}"
