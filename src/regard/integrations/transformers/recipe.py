"""Describe a score as plain JSON for a saved model's config, and rebuild it.

Only the scores and stabilisers of this library are rebuilt. No name from a file is imported, so
opening a folder runs no code from it.
"""

from __future__ import annotations

from regard.describe import describe
from regard.scores import Projected, Score
from regard.scores.exports import SCORES
from regard.stabilize import ClippedKeys, Normalized, SoftCapped, Tempered, UnitKeys

# The classes that a file may name; nothing else is built.
KNOWN: tuple[type[Score], ...] = (
    *SCORES,
    Projected,
    Tempered,
    Normalized,
    UnitKeys,
    ClippedKeys,
    SoftCapped,
)
BY_NAME = {score_class.__name__: score_class for score_class in KNOWN}


def describe_score(score: Score) -> dict:
    """The class and arguments of a score as JSON; for a score of a user's own, class and name only."""
    description: dict = {"type": type(score).__name__, "name": score.name}
    if type(score) not in KNOWN:
        return {**description, "foreign": True}
    for name, value in score.arguments().items():
        description[name] = list(value) if isinstance(value, tuple) else value  # as JSON has it
    inside = getattr(score, "score", None)
    if isinstance(inside, Score):
        description["score"] = describe_score(inside)
    return description


def rebuild_score(description: object) -> Score:
    """A new score from its description; anything wrong with it raises ValueError."""
    if not isinstance(description, dict):
        raise ValueError(f"the config describes a score as {describe(description)}: not a table")
    kind, name = description.get("type"), description.get("name")
    if description.get("foreign"):
        raise ValueError(
            f"the score {kind!r} (named {name!r}) is not one of this library's and cannot be "
            "rebuilt from the config: pass score=, the same that use_score was given"
        )
    score_class = BY_NAME.get(kind) if isinstance(kind, str) else None
    if score_class is None:
        raise ValueError(f"the config names an unknown score {kind!r}; known: {', '.join(BY_NAME)}")
    arguments = {key: x for key, x in description.items() if key not in ("type", "name", "score")}
    if "score" in description:
        arguments["score"] = rebuild_score(description["score"])
    try:
        score = score_class(**arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the config describes a score {kind!r} that cannot be built: {error}"
        ) from None
    if score.name != name:
        raise ValueError(f"the config calls a score {kind!r} by the name {name!r}: {score.name!r}")
    return score
