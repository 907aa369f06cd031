"""Key-norm hijack: one key is so long that it wins by its length alone."""

from __future__ import annotations

from regard.doctor.findings.evidence import Evidence
from regard.doctor.findings.finding import Advice, Finding, Severity
from regard.doctor.findings.signs import Disease, Grade, above, below, each_site, graded
from regard.doctor.findings.sinks import FEW, MOST, MOST_SOURCE, says_something

# Random keys would pass a threshold of 3: in one direction, the farthest of 4096 lies at 4. In 8
# dims or more the largest norm is below 2.
LONG, LONG_SOURCE = 5.0, "ours: below 2 for random keys of 8 dims or more, up to 4 in one direction"
# At most half of the queries lie on the key's side, unless all queries have a common component.
TAKES, TAKES_SOURCE = 0.25, "ours: a key 10 times as long takes over half of 25% of the queries"
ADDS, ADDS_SOURCE = 0.3, "ours: a third of what all other keys add"
EASY, EASY_SOURCE = 10.0, "ours: factor on one key's norm that captures half of the queries"


def rule(disease: Disease, e: Evidence) -> list[Finding]:
    """Findings where a long key takes much of the weight and its value matters."""
    if e.fewer_than(FEW):
        return []
    long = above(e, "key_spread", LONG, LONG_SOURCE)
    adds = above(e, "sink_output", ADDS, ADDS_SOURCE)
    also = (below(e, "c50", EASY, EASY_SOURCE),)
    return graded(
        disease,
        e,
        Grade(Severity.FAILURE, (long, above(e, "sink_weight", MOST, MOST_SOURCE), adds), also),
        Grade(Severity.WARNING, (long, above(e, "sink_weight", TAKES, TAKES_SOURCE), adds), also),
        # A no-op sink can have a long key too, but its value is short.
        only=says_something(e),
    )


HIJACK = Disease(
    name="key-norm-hijack",
    title="one key wins by its length",
    find=each_site(rule),
    explanation=(
        "One key is many times as long as the others. It takes the weight of the queries on its "
        "side of the space, whatever they ask for, and its value reaches all of them. The usual "
        "causes are a bad embedding, an input that was not normalised, or a planted token."
    ),
    remedies=(
        Advice("key-clip", "its norm at most 3 times the median: it takes 1% of the queries"),
        Advice("cosine", "the length of a key no longer matters"),
        Advice("qk-norm", "keys of the same length"),
    ),
    causes=(
        "large-logits",
        "dead-softmax",
        "collapsed-entropy",
        "malignant-sink",
        "no-op-sink",
        "dead-gradient",
    ),
)
