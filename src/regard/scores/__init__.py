"""The scores, one file each: every way to score a query against a key.

Formulas and their lowering to one of the two forms belong here, and the table that turns a name into a
score. Computing a form is the task of the engines (`regard.engines`). Wrappers that keep logits in bounds are
in `regard.stabilize`; modules with projections, heads and masks are in `regard.nn`.

A new score is one file here and its lines in `exports.py`.
"""

from regard.scores import exports
from regard.scores.exports import *  # noqa: F403 # the one list of scores, which `regard` takes too
from regard.scores.lookup import HOW_TO_BUILD as HOW_TO_BUILD
from regard.scores.lookup import NAMED as NAMED
from regard.scores.lookup import SIZED as SIZED
from regard.scores.lookup import check_name, make_score, named_score

__all__: list[str] = []
__all__ += exports.__all__
__all__ += ["check_name", "make_score", "named_score"]
