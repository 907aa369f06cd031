"""Every way to score a query against a key, one file each.

Here belong the formulas as they are lowered to one of the two forms, and how a name becomes a score.
What computes a form is an engine's (`regard.engines`); wrappers that keep logits in bounds are in
`regard.stabilize`; projections, heads and masks around a score are modules (`regard.nn`).

A new score is one file here and its lines in `exports.py`.
"""

from regard.scores import exports
from regard.scores.exports import *  # noqa: F403 # the one list of scores, which `regard` takes too
from regard.scores.lookup import HOW_TO_BUILD as HOW_TO_BUILD
from regard.scores.lookup import NAMED as NAMED
from regard.scores.lookup import SIZED as SIZED
from regard.scores.lookup import make_score, named_score

__all__: list[str] = []
__all__ += exports.__all__
__all__ += ["make_score", "named_score"]
