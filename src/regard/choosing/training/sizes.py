"""The sizes of the candidates' scores: as given, or as found in a model that projects by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import ScaledDot, Score
from regard.arguments import check_sizes
from regard.choosing.training.candidates import ScoreSizes, TrialCandidate
from regard.choosing.training.data import Data
from regard.choosing.training.splits import SplitRows
from regard.describe import describe
from regard.nn import MultiheadAttention

# The heads that data of the user's own is tried with, and the least width of projections for it.
USUAL_HEADS, WIDE_ENOUGH = (1, 4), 16


class CandidateSizes(NamedTuple):
    """The sizes of all candidates, their numbers of heads, and whether several heads may be left out."""

    sizes: ScoreSizes
    heads: tuple[int, ...]
    optional: bool = False

    def kept(self, asked: list[TrialCandidate]) -> tuple[list[TrialCandidate], frozenset[str]]:
        """The candidates, and the names of those that are left out if time is short.

        Several heads that nobody asked for are tried without stabilisers, to save time.
        """
        if not self.optional:
            return asked, frozenset()
        kept = [one for one in asked if one.heads == self.heads[0] or one.stabilizer == "none"]
        return kept, frozenset(one.name for one in kept if one.heads != self.heads[0])


def candidate_sizes(
    build: Callable[[Score], nn.Module],
    data: Data,
    dims: Any,
    heads: int | Sequence[int] | None,
    width: int | None,
    projected: bool | None,
) -> CandidateSizes:
    """The sizes for the arguments of `regard.choose`.

    Raises:
        ValueError: an argument is wrong, or contradicts the model.
    """
    counts = (heads,) if isinstance(heads, int) else None if heads is None else tuple(heads)
    if counts is not None and not counts:
        raise ValueError(f"heads must not be empty, got {heads!r}")
    inside = attention_in(build) if projected is None else None
    if inside is not None:
        return found_in(inside, counts)
    pair = (dims, dims) if isinstance(dims, int) else dims
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(
            f"dims must be a number, or two numbers for query and key, got {describe(dims)}"
        )
    check_sizes(query_dim=pair[0], key_dim=pair[1], width=width)
    wide = width or min(pair)
    projected = pair[0] != pair[1] if projected is None else projected
    sizes = ScoreSizes(pair[0], pair[1], wide, projected)
    if counts is not None:
        return CandidateSizes(sizes, counts)
    several = prepared(build, data) and wide >= WIDE_ENOUGH and wide % max(USUAL_HEADS) == 0
    return CandidateSizes(sizes, USUAL_HEADS if several else (1,), several)


def prepared(build: Callable[..., Any], data: Data) -> bool:
    """Whether data that we read and split goes into a model of ours, as with `--data` and frames.

    A model of the user's own may take one number of heads only, or inputs that must not be changed.
    """
    made = build.func if isinstance(build, partial) else build
    ours = getattr(made, "__module__", "").startswith("regard.choosing.")
    return ours and isinstance(data, SplitRows)


def attention_in(build: Callable[[Score], nn.Module]) -> MultiheadAttention | None:
    """The first `MultiheadAttention` in a model, as `replace_attention` puts it there; None without one.

    It projects by itself, to the width that its score asks for.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            model = build(ScaledDot())
    except Exception:  # the same error fails the candidates, with its reason
        return None
    if not isinstance(model, nn.Module):
        return None
    return next((one for one in model.modules() if isinstance(one, MultiheadAttention)), None)


def found_in(module: MultiheadAttention, heads: tuple[int, ...] | None) -> CandidateSizes:
    """The sizes of a `MultiheadAttention`, whatever dims were given."""
    count, dim = module.num_heads, module.head_dim
    if heads is not None and heads not in ((count,), (1,)):
        raise ValueError(
            f"heads={heads if len(heads) > 1 else heads[0]}, but the MultiheadAttention in your model has "
            f"{count} heads: leave heads= out"
        )
    return CandidateSizes(ScoreSizes(dim, dim, count * dim, False, follows=True), (count,))
