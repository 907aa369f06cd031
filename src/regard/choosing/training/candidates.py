"""The candidates: score x stabiliser x hidden width x heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

import regard
from regard import Score
from regard.arguments import check_sizes
from regard.describe import describe
from regard.stabilize import ClippedKeys, Normalized, SoftCapped, Tempered, UnitKeys
from regard.text import Text

NULL = "scaled_dot"
LABELS = {
    "scaled_dot": Text("scaled dot", "缩放点积"),
    "dot": Text("dot", "点积"),
    "cosine": Text("cosine", "余弦"),
    "gaussian": Text("gaussian", "高斯"),
    "bilinear": Text("bilinear", "双线性"),
    "low_rank": Text("low rank", "低秩"),
    "additive": Text("additive", "加性"),
    "gatv2": Text("GATv2", "GATv2"),
    "none": Text("", ""),
    "layer_norm": Text("LayerNorm", "LayerNorm"),
    "clipped_keys": Text("clipped keys", "截短的键"),
    "unit_keys": Text("unit keys", "单位长度的键"),
    "soft_cap": Text("soft cap", "软上限"),
    "temperature": Text("learned temperature", "可学习的温度"),
}
# The stabilisers that change each score. Cosine, for example, ignores norms, so bounding them would
# train the same model again.
NORMS = ("layer_norm", "clipped_keys", "unit_keys")
STABILIZERS: dict[str, tuple[str, ...]] = {
    "scaled_dot": ("none", *NORMS, "soft_cap", "temperature"),
    "dot": ("none", *NORMS, "soft_cap", "temperature"),
    "cosine": ("none", "soft_cap"),
    "gaussian": ("none", "layer_norm"),
    "bilinear": ("none", "layer_norm", "temperature"),
    "low_rank": ("none", "layer_norm", "temperature"),
    "additive": ("none", "layer_norm", "temperature"),
    "gatv2": ("none", "layer_norm", "temperature"),
}
PAIRWISE = {"additive": "Additive", "gatv2": "GATv2"}
SCORES = ("scaled_dot", "cosine", "gaussian", "bilinear", "additive")
USUAL = ("none", "layer_norm", "clipped_keys")
SOFT_CAP = 30.0


@dataclass(frozen=True)
class TrialCandidate:
    """A score with a stabiliser and sizes, to be trained and compared.

    Attributes:
        name: unique among the candidates, such as "additive+layer_norm h=64".
        label: the name in tables and sentences.
        make: builds a fresh score.
        code: Python code that builds it, for the user to paste.
        score: name of the score, or "own" for a user's.
        stabilizer: what keeps its logits in bounds.
        hidden: hidden units over all heads, for pairwise scores.
        heads: query heads.
        null: name of the candidate that it is compared with: scaled dot with the same heads and
            projections of the same width. Empty for the first candidate, the null of all; a scaled dot
            with other sizes is compared with that one.
    """

    name: str
    label: Text
    make: Callable[[], Score]
    code: str
    score: str = "own"
    stabilizer: str = "none"
    hidden: int | None = None
    heads: int = 1
    null: str = ""

    @property
    def is_null(self) -> bool:
        """Whether it is a scaled dot that others may be compared with."""
        return self.score == NULL and self.stabilizer == "none"


@dataclass(frozen=True)
class ScoreSizes:
    """The sizes that all scores are built for.

    Attributes:
        query_dim: dim of a query as the score gets it.
        key_dim: dim of a key.
        width: width of projections over all heads, so that heads change no number of parameters.
        projected: scores get learned projections; if False, the model projects.
        follows: the model makes its projections as wide as the score asks, as `MultiheadAttention` does;
            a score with a width of its own is then given as it is.
    """

    query_dim: int
    key_dim: int
    width: int
    projected: bool
    follows: bool = False


def candidates(
    sizes: ScoreSizes,
    scores: Sequence[str] | Mapping[str, Callable[[], Score]] | None = None,
    stabilizers: Sequence[str] = USUAL,
    hidden: Sequence[int] | None = None,
    heads: Sequence[int] = (1,),
) -> list[TrialCandidate]:
    """All candidates, the null first: scaled dot is included whatever is requested.

    For every number of heads and every width of projections among the candidates there is a scaled dot
    with the same, so that a lead over it is a statement about the score alone.

    Raises:
        ValueError: a name is unknown, or a size is not a positive integer.
    """
    check_sizes(**{f"heads[{i}]": count for i, count in enumerate(heads)})
    if isinstance(scores, Mapping):
        own = [owned(name, make, heads[0]) for name, make in scores.items()]
        counts = tuple(dict.fromkeys([*heads, *(one.heads for one in own)]))
        return with_nulls(sizes, own, counts)
    asked = SCORES if scores is None else tuple(scores)
    known(asked, STABILIZERS, "score")
    known(stabilizers, [name for name in LABELS if name not in STABILIZERS], "stabilizer")
    hidden = (sizes.width, 4 * sizes.width) if hidden is None else hidden
    check_sizes(**{f"hidden[{i}]": count for i, count in enumerate(hidden)})
    several, found = len(heads) > 1, []
    for score, stabilizer, count in product(dict.fromkeys((NULL, *asked)), stabilizers, heads):
        # Where the model projects, these scores know no heads: each count would train the same model.
        headless = not sizes.projected and score in ("scaled_dot", "dot") and count != heads[0]
        if stabilizer not in STABILIZERS[score] or headless:
            continue
        widths = hidden if score in PAIRWISE else [None]
        found += [built(sizes, score, stabilizer, width, count, several) for width in widths]
    return with_nulls(sizes, found, heads)


def with_nulls(
    sizes: ScoreSizes, found: list[TrialCandidate], heads: Sequence[int]
) -> list[TrialCandidate]:
    """The candidates, each naming its null, behind all the nulls that they need."""
    first = built(sizes, NULL, "none", None, heads[0], len(heads) > 1)
    nulls, rest = {first.name: first}, {}
    for count in heads if sizes.projected else ():
        one = built(sizes, NULL, "none", None, count, len(heads) > 1)
        nulls.setdefault(one.name, replace(one, null=first.name))
    for one in found:
        if one.name in nulls:
            continue
        like = first
        if sizes.projected:
            like = built(sizes, NULL, "none", one.hidden, one.heads, len(heads) > 1)
        nulls.setdefault(like.name, replace(like, null=first.name))
        rest.setdefault(one.name, replace(one, null=like.name))
    return [*nulls.values(), *rest.values()]


def known(asked: Sequence[str], names: Mapping | Sequence, what: str) -> None:
    """Raise ValueError for an unknown name."""
    for name in asked:
        if name not in names:
            raise ValueError(f"unknown {what} {name!r}: known are {', '.join(names)}")


def owned(name: str, make: Callable[[], Score], heads: int) -> TrialCandidate:
    """A candidate from the user's own function; `heads` if it does not say how many it has."""
    if not callable(make) or isinstance(make, Score):
        raise TypeError(
            f"scores[{name!r}] must be a function that builds a fresh score, got {describe(make)}"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            heads = make().heads or heads
    except Exception:  # noqa: S110 - it fails in its own training, where the reason is kept
        pass
    code = f"# your own: scores[{name!r}]()"
    return TrialCandidate(name, Text(name, name), make, code, heads=heads)


def built(
    sizes: ScoreSizes, score: str, stabilizer: str, hidden: int | None, heads: int, several: bool
) -> TrialCandidate:
    """A candidate built from its code, so that the code shown is what was trained.

    `hidden` is a hidden width for a pairwise score; for any other it is the width of its projections,
    and None is the usual one.
    """
    if score not in PAIRWISE:
        hidden = None if hidden == sizes.width else hidden
        sizes = sizes if hidden is None else replace(sizes, width=hidden)
    inner = plain_code(sizes, score, hidden, heads)
    code = stabilized_code(inner, stabilizer, score_dims(sizes, score, hidden, heads), heads)
    name = score if stabilizer == "none" else f"{score}+{stabilizer}"
    en, zh = kind_of(score, stabilizer)
    if hidden is not None and score in PAIRWISE:
        name = f"{name} h={hidden}"
        en, zh = f"{en}, {hidden} hidden", f"{zh}，{hidden} 个隐藏单元"
    elif hidden is not None:
        name = f"{name} w={hidden}"
        en, zh = f"{en}, width {hidden}", f"{zh}，宽度 {hidden}"
    if several:
        name = f"{name} heads={heads}"
        en, zh = f"{en}, {heads} head{'' if heads == 1 else 's'}", f"{zh}，{heads} 个头"
    return TrialCandidate(
        name, Text(en, zh), ScoreCode(code), code, score, stabilizer, hidden, heads
    )


def kind_of(score: str, stabilizer: str) -> Text:
    """The name of a score with its stabiliser, without sizes."""
    plain, around = LABELS[score], LABELS[stabilizer]
    if stabilizer == "none":
        return plain
    return Text(f"{plain.en} + {around.en}", f"{plain.zh} + {around.zh}")


@dataclass(frozen=True)
class ScoreCode:
    """Builds a score from its code. The code comes from this module; only numbers are inserted."""

    code: str

    def __call__(self) -> Score:
        """Build a fresh score."""
        return eval(self.code, {"__builtins__": {}}, NAMES)  # noqa: S307 - code from this module


NAMES = {
    "regard": regard,
    **{x.__name__: x for x in (ClippedKeys, Normalized, SoftCapped, Tempered, UnitKeys)},
}


def plain_code(sizes: ScoreSizes, score: str, hidden: int | None, heads: int) -> str:
    """The code of a score without a stabiliser; widths are shared out among the heads."""
    dims = f"{sizes.query_dim}, {sizes.key_dim}"
    width = max(sizes.width // heads, 1)
    if score in PAIRWISE:
        units = max((hidden or sizes.width) // heads, 1)
        # Without a bias inside tanh the score is odd in (q, k) and cannot express even relations
        # (claim B5).
        bias = ", bias=True" if score == "additive" else ""
        core = f"regard.{PAIRWISE[score]}({units}, {heads}{bias})"
        bare = not sizes.projected and units == sizes.query_dim == sizes.key_dim
        return core if bare or sizes.follows else f"regard.Projected({core}, {dims})"
    if score == "bilinear":
        return f"regard.Bilinear({dims}, {heads})"
    if score == "low_rank":
        return f"regard.LowRank({dims}, {max(width // 4, 1)}, {heads})"
    core = {
        "scaled_dot": "regard.ScaledDot()",
        "dot": "regard.Dot()",
        "cosine": f"regard.Cosine({heads})",
        "gaussian": f"regard.Gaussian(heads={heads})",
    }[score]
    if not sizes.projected:
        return core
    return f"regard.Projected({core}, {dims}, width={width}, heads={heads})"


def score_dims(sizes: ScoreSizes, score: str, hidden: int | None, heads: int) -> tuple[int, int]:
    """Dims of the query and key that a stabiliser around the score gets."""
    if sizes.follows and score in PAIRWISE:
        units = max((hidden or sizes.width) // heads, 1)
        return units, units
    return sizes.query_dim, sizes.key_dim


def stabilized_code(inner: str, stabilizer: str, dims: tuple[int, int], heads: int) -> str:
    """The code of a score inside its stabiliser, which acts on the queries and keys given to it."""
    # Keys with independent entries of variance 1 have norms near sqrt(dim); allow 1.5 times that.
    longest = round(1.5 * math.sqrt(dims[1]), 2)
    return {
        "none": inner,
        "layer_norm": f'Normalized({inner}, ({dims[0]}, {dims[1]}), "layer")',
        "clipped_keys": f"ClippedKeys({inner}, {longest})",
        "unit_keys": f"UnitKeys({inner})",
        "soft_cap": f"SoftCapped({inner}, {SOFT_CAP})",
        "temperature": f"Tempered({inner}, heads={heads})",
    }[stabilizer]
