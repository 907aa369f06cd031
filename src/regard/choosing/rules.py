"""The chooser's rules: what the field teaches, each with the claims that bear it out or do not."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Rule(NamedTuple):
    """A rule of thumb.

    Attributes:
        condition: of the data, the task or the machine.
        score: what is said to be right then, a name of a score.
        remedy: what stands around the score, a name of a stabiliser or words; "" for nothing.
        borne: whether the claims bear it out.
        because: what they found, in one sentence.
        claims: ids; docs/claims.md has them all.
    """

    condition: str
    score: str
    remedy: str
    borne: Literal["yes", "in part", "no"]
    because: str
    claims: tuple[str, ...]


RULES = (
    Rule(
        "nothing else is known: equal widths or projections in front, data enough", "scaled_dot", "",
        "yes", "it is the cheapest, and an alternative has to beat it by more than noise",
        ("E1", "C2", "C10"),
    ),
    Rule(
        "no matrix relates query and key", "additive", "a bias inside tanh",
        "yes", "additive by 21 points on 64 examples and by 60 on 32768; without the bias it is odd "
        "in (q, k) and explains nothing of even relations", ("B3", "B4", "B5", "E5"),
    ),
    Rule(
        "query and key differ in width", "bilinear", "or projections, or additive",
        "yes", "dot refuses; the others reach 80% of what is possible down to keys an eighth as wide, "
        "and none is ahead for that alone", ("E3",),
    ),
    Rule(
        "a small device, or a cache of shrunk keys", "low_rank", "",
        "in part", "it matches the full matrix while its rank reaches that of the relation, and loses "
        "41 points where it does not", ("E2",),
    ),
    Rule(
        "data is scarce", "additive", "",
        "no", "on 64 examples related by a matrix dot is 57 points ahead; what helps is fewer "
        "parameters", ("E5", "E6"),
    ),
    Rule(
        "unequal modalities", "additive", "separate projections",
        "in part", "ahead of dot only where the volumes of one side swing and no LayerNorm stands in "
        "front; with LayerNorm nowhere", ("G3",),
    ),
    Rule(
        "hostile norms: a few keys are far longer than the rest", "cosine", "or clipped keys, LayerNorm",
        "yes", "a key 4 times as long takes a quarter of the queries of scaled dot; a soft cap keeps "
        "the order of the logits and does not help", ("G1", "G2", "C9"),
    ),
    Rule(
        "hostile norms", "additive", "",
        "in part", "it is ahead of dot at a moderate spread that it was trained on; LayerNorm before "
        "dot helps far more", ("G2",),
    ),
    Rule(
        "the scale of the inputs is unknown or changes", "scaled_dot", "LayerNorm in front",
        "in part", "flat from an input scale of 0.03 on; it harms where lengths tell", ("C6",),
    ),
    Rule(
        "the length of a vector means something, as in retrieval", "dot", "",
        "yes", "the score grows in proportion to the norms; but its variance grows with the width, and "
        "unscaled softmax saturates", ("B1", "C1", "C3"),
    ),
    Rule(
        "near means alike: positions, coordinates, measured values", "gaussian", "",
        "yes", "on the unit sphere scaled dot is this very smoothing; a learned bandwidth for each "
        "query lowers the error by 31%", ("D1", "D2"),
    ),
    Rule(
        "a query asks for several things at once", "scaled_dot", "several heads",
        "yes", "one head can answer one of two questions; 4 heads of the same size in all gain 47 "
        "points", ("F1", "F2"),
    ),
    Rule(
        "small sets and graphs, an activation that does not saturate", "gatv2", "",
        "in part", "tanh does stop hearing queries that grow; a learned temperature or LayerNorm "
        "repairs that too", ("C5",),
    ),
)  # fmt: skip

# When each score is the right one, in one line.
IN_SHORT = {
    "scaled_dot": "The default. Equal widths or projections in front, data enough to learn them; "
    "the fastest kernels are made for it.",
    "dot": "When the length of a vector means something, as in retrieval. Logits grow with the "
    "width: prefer scaled dot otherwise.",
    "cosine": "When norms differ wildly and a few long keys would take all the weight: only the "
    "direction counts.",
    "gaussian": "When near means alike: smoothing over positions, coordinates, measured values.",
    "bilinear": "Unlike widths with data enough for a full d_q x d_k matrix in each head.",
    "low_rank": "Unlike widths on a small device: a cache holds only `rank` numbers for each key.",
    "additive": "A match that no inner product expresses, given data enough; scores stay bounded. "
    "Costs `hidden` tanh for each pair.",
    "gatv2": "As additive, with an activation that does not saturate: graphs, small sets.",
    "textbook_additive": "At small sizes alone: it is additive with the [Q, L, hidden] tensor "
    "written to memory.",
}


def in_short(score: str) -> str:
    """The line of a score, with the claims of all its rules."""
    ids = dict.fromkeys(name for rule in RULES if rule.score == score for name in rule.claims)
    return f"{IN_SHORT[score]} (Claims {', '.join(ids)}.)" if ids else IN_SHORT[score]
