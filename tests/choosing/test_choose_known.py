"""`regard.choose` on tasks with a known best answer, and on one without a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.choosing.training.verdict import Outcome, Verdict

from .known import KNOWN, chosen


def right(name: str, verdict: Verdict) -> bool:
    """Whether the verdict is what is known to be true."""
    winner = verdict.row(verdict.winner).candidate
    return {
        "non-linear match": winner.score == "additive",
        "hijack norms": winner.score == "cosine" or winner.stabilizer == "clipped_keys",
        "plain data": verdict.winner == "scaled_dot" and verdict.outcome is Outcome.NULL,
        "two criteria": winner.heads == 2 and verdict.outcome is Outcome.ALTERNATIVE,
        "no difference": verdict.outcome is Outcome.SAME,
    }[name]


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_best_answer_is_chosen(name: str, tmp_path: Path) -> None:
    verdict = chosen(name, tmp_path)
    assert right(name, verdict), str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("base", range(1, 11))
@pytest.mark.parametrize("name", KNOWN)
def test_the_known_best_answer_is_chosen_in_ten_worlds(
    name: str, base: int, tmp_path: Path
) -> None:
    verdict = chosen(name, tmp_path, base, seeds=5, rates=(3e-3, 1e-2, 3e-2), steps=400)
    assert right(name, verdict), str(verdict)
