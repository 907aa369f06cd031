"""Makes a failing case smaller while it still fails."""

from __future__ import annotations

from regard.testing.fuzz.cases import AnyCase, judge_case


def shrink(case: AnyCase, tries: int = 150) -> AnyCase:
    """A case with fewer options and smaller sizes that is wrong too, in the same way where that can be told."""
    kind = _kind(judge_case(case).problems)
    shrunk = True
    while shrunk and tries > 0:
        shrunk = False
        for smaller in case.simpler():
            tries -= 1
            if tries < 0:
                break
            if _kind(judge_case(smaller).problems) == kind:
                case, shrunk = smaller, True
                break
    return case


def _kind(problems: tuple[str, ...]) -> str:
    """The result that is wrong, or the error that was raised: what a smaller case must have in common."""
    return problems[0].split(":")[0] if problems else ""
