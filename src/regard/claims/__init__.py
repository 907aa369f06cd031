"""Claims: statements about attention, each with an experiment that can confirm or contradict it.

`regard claims` lists them and `regard claims run` runs them. `claim.py` defines a claim, `experiments/`
has one file for each, `tools/` what they share, `running/` runs and stores them, `report/` presents results.
From Python:

    from regard.claims import Run, find
    claim, = find(["C1"])
    numbers = claim.measure(Run())
    print(claim.judge(numbers).verdict)
"""

from regard.claims.claim import Claim, ClaimVerdict, Fact, Judgement, Numbers, Run
from regard.claims.registry import UnknownClaim, all_claims, find
from regard.text import Text

__all__ = [
    "Claim",
    "ClaimVerdict",
    "Fact",
    "Judgement",
    "Numbers",
    "Run",
    "Text",
    "UnknownClaim",
    "all_claims",
    "find",
]
