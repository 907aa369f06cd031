"""Statements about attention that run and can fail.

`regard claims` lists them, `regard claims run` runs them. From Python:

    from regard.claims import Run, find
    claim, = find(["C1"])
    numbers = claim.measure(Run())
    print(claim.judge(numbers).verdict)
"""

from regard.claims.claim import Claim, Fact, Judgement, Numbers, Run, Verdict
from regard.claims.registry import UnknownClaim, all_claims, find
from regard.text import Text

__all__ = [
    "Claim",
    "Fact",
    "Judgement",
    "Numbers",
    "Run",
    "Text",
    "UnknownClaim",
    "Verdict",
    "all_claims",
    "find",
]
