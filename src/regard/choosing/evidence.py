"""`CitedNumber`: a number in a sentence, and where the committed result of a claim holds it.

Sentences are written by hand, and results are measured again from time to time. Tests compare each number
with its result in benchmarks/claims/, which an installed library does not have.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple


class CitedNumber(NamedTuple):
    """A number as a sentence writes it, and how to find it in the result of a claim.

    Attributes:
        told: the number as it is written, such as "57" or "0.998".
        claim: id of the claim.
        path: steps into the result, separated by ">": a key, an index, `size=64` for the item of a list whose
            `size` is 64, or `*` for every item. A path that ends at several numbers stands for their mean.
        minus: path of a number to subtract, if there is one.
        times: factor from the stored unit to the written one: 100 for points, -1 to turn a lead around.
        plus: what to add after that: 1 - x is `times=-1, plus=1`.
    """

    told: str
    claim: str
    path: str
    minus: str = ""
    times: float = 1.0
    plus: float = 0.0

    def value(self, result: Mapping[str, Any]) -> float:
        """The number that the result of the claim holds, in the unit of the sentence."""
        found = average(reach(result, self.path))
        if self.minus:
            found -= average(reach(result, self.minus))
        return self.times * found + self.plus

    def written(self, result: Mapping[str, Any]) -> str:
        """The number of the result with as many decimals as `told` has."""
        return f"{self.value(result):.{len(self.told.partition('.')[2])}f}"


def reach(found: Any, path: str) -> Any:
    """What lies at the end of a path; see `CitedNumber.path`."""
    for place, step in enumerate(steps := path.split(">")):
        if step == "*":
            return [reach(one, ">".join(steps[place + 1 :])) for one in found]
        if isinstance(found, Mapping):
            found = found[step]
        elif "=" in step:
            field, _, wanted = step.partition("=")
            (found,) = [one for one in found if said(one[field]) == wanted]
        else:
            found = found[int(step)]
    return found


def said(value: Any) -> str:
    """A field of an item as a path writes it; of a text in two languages, the English one."""
    return str(value["en"] if isinstance(value, Mapping) else value)


def average(found: Any) -> float:
    """A number as it is, and the mean of a list of numbers."""
    return statistics.fmean(found) if isinstance(found, list) else float(found)


def fact(told: str, claim: str, label: str, times: float = 1.0, plus: float = 0.0) -> CitedNumber:
    """A number from one of the facts of a verdict, by its English label."""
    return CitedNumber(told, claim, f"facts>label={label}>value", times=times, plus=plus)
