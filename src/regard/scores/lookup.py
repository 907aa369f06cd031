"""Scores by name: the score that a string stands for in a call, and in a module.

Each score says how it is built from its name (`Score.without_parameters`, `Score.for_width`,
`Score.how_to_build`). So this file names no score but the default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from torch import Tensor

from regard.describe import describe
from regard.mask import Mask
from regard.scores.base import Score
from regard.scores.exports import SCORES

# A call has no place to keep parameters, so a string can only name a score without them.
NAMED: dict[str, Score] = {
    score.name: made for score in SCORES if (made := score.without_parameters()) is not None
}
# A module can keep parameters, so every name works there. Each function takes width, heads and key heads.
SIZED: dict[str, Callable[[int, int, int], Score]] = {
    score.name: score.for_width for score in SCORES
}
HOW_TO_BUILD = {score.name: score.how_to_build() for score in SCORES if score.name not in NAMED}


def make_score(
    score: Score | str | None, width: int, heads: int, key_heads: int | None = None
) -> Score:
    """The score itself, or a fresh one of that name for projections of this width.

    This is for modules, which can keep parameters, so that every score has a name here. None is scaled
    dot.
    """
    if isinstance(score, Score):
        return score
    name = "scaled_dot" if score is None else score
    if not isinstance(name, str):
        raise TypeError(f"score must be a Score object, a name or None, got {describe(score)}")
    check_name(name)
    return SIZED[name](width, heads, heads if key_heads is None else key_heads)


def check_name(score: object) -> None:
    """Refuse a string that names no score, with the nearest name; other values pass."""
    if isinstance(score, str) and score not in SIZED:
        near = difflib.get_close_matches(score, SIZED, n=1)
        hint = f"did you mean {near[0]!r}? The" if near else "the"
        raise ValueError(f"unknown score {score!r}; {hint} names are {', '.join(SIZED)}")


def named_score(score: Score | str | None) -> Score:
    """The score object that `score` stands for; None is scaled dot."""
    if score is None:
        return NAMED["scaled_dot"]
    if isinstance(score, Score):
        return score
    if not isinstance(score, str):
        hint = "; a mask is given as mask=" if isinstance(score, (Tensor, Mask)) else ""
        raise TypeError(
            f"score must be a Score object, a name or None, got {describe(score)}{hint}"
        )
    if score in NAMED:
        return NAMED[score]
    if score in HOW_TO_BUILD:
        raise ValueError(
            f"score={score!r} has parameters, so a name is not enough: build the object and pass "
            f"it, score={HOW_TO_BUILD[score]}"
        )
    near = difflib.get_close_matches(score, [*NAMED, *HOW_TO_BUILD], n=1)
    hint = f"did you mean {near[0]!r}? The" if near else "the"
    raise ValueError(
        f"unknown score {score!r}; {hint} names of scores without parameters are {', '.join(NAMED)}"
    )
