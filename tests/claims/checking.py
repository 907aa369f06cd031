"""What the tests of single claims share."""

from __future__ import annotations

import json

from regard.claims import Claim, ClaimVerdict, Numbers, Run
from regard.figures.canvas import Canvas
from regard.text import LANGUAGES


def verdict(claim: Claim) -> ClaimVerdict:
    """Of a quick run."""
    return claim.judge(claim.measure(Run())).verdict


def from_disk(numbers: Numbers) -> Numbers:
    """As they come back from a result file."""
    return json.loads(json.dumps(numbers, allow_nan=False))


def check_figure(claim: Claim, numbers: Numbers) -> None:
    """It can be drawn in every language, and every panel says what it shows."""
    for language in LANGUAGES:
        canvas = Canvas(language)
        claim.draw(numbers, canvas)
        for axes in canvas.figure.axes:
            assert axes.get_ylabel() or axes.get_title("left"), claim.id
            assert axes.get_xlabel() or axes.get_title("left"), claim.id
