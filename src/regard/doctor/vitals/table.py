"""The table of all vitals: names, units and meanings, in the order of the columns everywhere."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Level(enum.Enum):
    """How much a measurement may cost; each level also measures what the one before it does."""

    CHEAP = "cheap"
    SAMPLED = "sampled"
    EXACT = "exact"


class SeenForm(enum.Enum):
    """What was captured of a call: query and key, a pairwise form, or the input of its softmax."""

    INNER = "inner"
    PAIRWISE = "pairwise"
    LOGITS = "logits"


class Merge(enum.Enum):
    """How the values of several steps are merged into one; steps with NaN do not count."""

    MEAN = "mean"
    MAX = "max"
    SUM = "sum"


class Vital(NamedTuple):
    """One column of what `measure` returns.

    Attributes:
        name: its name in findings, reports and files.
        unit: the unit of its numbers.
        level: the cheapest level that measures it.
        kinds: what has to be captured of a call to measure it.
        merge: how the values of several steps are merged.
        meaning: what it says, in one line.
        low_is_worse: True if small numbers are worse, False if large ones are.
        backward: whether it is measured on gradients, by `rms` of `gradient_rms.py`.
    """

    name: str
    unit: str
    level: Level
    kinds: frozenset[SeenForm]
    merge: Merge
    meaning: str
    low_is_worse: bool = False
    backward: bool = False


_INNER = frozenset({SeenForm.INNER})
_PAIRWISE = frozenset({SeenForm.PAIRWISE})
_SIDES = _INNER | _PAIRWISE
_HIDDEN = _PAIRWISE | {SeenForm.LOGITS}  # of logits only where the tanh was seen
_ALL = frozenset(SeenForm)
_CHEAP, _SAMPLED = Level.CHEAP, Level.SAMPLED
_MEAN, _MAX, _SUM = Merge.MEAN, Merge.MAX, Merge.SUM

# Add columns only at the end of their level. Files of older runs are read by name, but the kernels
# of `cheap_kernels.py` write the first 13 columns by index.
VITALS: tuple[Vital, ...] = (
    Vital(
        "logit_mean",
        "logit",
        _CHEAP,
        _ALL,
        _MEAN,
        "mean logit of all pairs before soft cap, bias and mask; of visible sampled pairs where "
        "query and key are not known",
    ),
    Vital(
        "logit_var",
        "logit²",
        _CHEAP,
        _ALL,
        _MEAN,
        "variance of a query's logits over its keys, averaged over queries; pairs as in logit_mean",
    ),
    Vital(
        "logit_bound",
        "logit",
        _CHEAP,
        _SIDES,
        _MAX,
        "upper bound on |logit| before the bias, from norms; usually not reached",
    ),
    Vital("query_norm", "norm", _CHEAP, _SIDES, _MEAN, "root mean square of the queries' norms"),
    Vital("key_norm", "norm", _CHEAP, _SIDES, _MEAN, "root mean square of the keys' norms"),
    Vital(
        "query_spread",
        "ratio",
        _CHEAP,
        _SIDES,
        _MAX,
        "the largest query norm over the root mean square of the others",
    ),
    Vital(
        "key_spread",
        "ratio",
        _CHEAP,
        _SIDES,
        _MAX,
        "the largest key norm over the root mean square of the others",
    ),
    Vital(
        "map_rank",
        "directions",
        _CHEAP,
        _INNER,
        _MEAN,
        "how many directions carry the logits' variance: (sum of energies)² / sum of energies²",
        low_is_worse=True,
    ),
    Vital(
        "map_top",
        "share",
        _CHEAP,
        _INNER,
        _MEAN,
        "share of the logits' variance that the strongest direction carries",
    ),
    Vital("nan_queries", "count", _CHEAP, _SIDES, _SUM, "queries that hold NaN"),
    Vital(
        "inf_queries", "count", _CHEAP, _SIDES, _SUM, "queries with Inf, or a norm beyond the dtype"
    ),
    Vital("nan_keys", "count", _CHEAP, _SIDES, _SUM, "keys that hold NaN"),
    Vital("inf_keys", "count", _CHEAP, _SIDES, _SUM, "keys with Inf, or a norm beyond the dtype"),
    Vital(
        "query_grad",
        "rms",
        _CHEAP,
        _SIDES,
        _MEAN,
        "root mean square of the gradient that reaches the queries",
        low_is_worse=True,
        backward=True,
    ),
    Vital(
        "key_grad",
        "rms",
        _CHEAP,
        _SIDES,
        _MEAN,
        "root mean square of the gradient that reaches the keys",
        low_is_worse=True,
        backward=True,
    ),
    Vital(
        "value_grad",
        "rms",
        _CHEAP,
        _ALL,
        _MEAN,
        "root mean square of the gradient that reaches the values",
        low_is_worse=True,
        backward=True,
    ),
    Vital("logit_max", "logit", _SAMPLED, _ALL, _MAX, "the largest visible logit, bias included"),
    Vital(
        "entropy",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "entropy of the weights over the log of the number of visible keys (and a learned sink): "
        "1 uniform, 0 one-hot",
        low_is_worse=True,
    ),
    Vital("max_weight", "share", _SAMPLED, _ALL, _MEAN, "a query's largest weight"),
    Vital(
        "jacobian",
        "norm",
        _SAMPLED,
        _ALL,
        _MEAN,
        "Frobenius norm of the softmax's Jacobian: near 0 no gradient reaches the logits",
        low_is_worse=True,
    ),
    Vital("masked_rows", "share", _SAMPLED, _ALL, _MEAN, "share of queries that see no key"),
    Vital(
        "visible_share",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "share of keys that a query sees",
        low_is_worse=True,
    ),
    Vital("nan_logits", "count", _SAMPLED, _ALL, _SUM, "sampled queries with a NaN logit"),
    Vital(
        "inf_logits",
        "count",
        _SAMPLED,
        _ALL,
        _SUM,
        "sampled queries whose largest logit is infinite",
    ),
    Vital(
        "c50",
        "factor",
        _SAMPLED,
        _INNER,
        _MEAN,
        "factor on one key's norm at which it takes over half the weight of half the queries; at "
        "most "
        "1000",
        low_is_worse=True,
    ),
    Vital("first_share", "share", _SAMPLED, _ALL, _MEAN, "weight on the first key, where visible"),
    Vital(
        "own_share",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "weight on the query's own place, where visible",
    ),
    Vital("previous_share", "share", _SAMPLED, _ALL, _MEAN, "weight one place back, where visible"),
    Vital("next_share", "share", _SAMPLED, _ALL, _MEAN, "weight one place ahead, where visible"),
    Vital(
        "distance_share",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "share of the logits' variance within a query that the distance alone explains",
        low_is_worse=True,
    ),
    Vital("sink_weight", "share", _SAMPLED, _ALL, _MEAN, "the largest mean weight on one key"),
    Vital(
        "sink_value",
        "ratio",
        _SAMPLED,
        _ALL,
        _MEAN,
        "norm of that key's value over the root mean square of the others: small means a no-op",
    ),
    Vital(
        "sink_output",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "what that key adds to the output, as a share of what it and all others add: small means a "
        "no-op",
    ),
    Vital(
        "output_alike",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "share of the output's energy that all queries have in common: 1 means all get the same",
    ),
    Vital(
        "output_rank",
        "directions",
        _SAMPLED,
        _ALL,
        _MEAN,
        "how many directions the outputs of the sampled queries vary in",
        low_is_worse=True,
    ),
    Vital(
        "head_similarity",
        "correlation",
        _SAMPLED,
        _ALL,
        _MEAN,
        "correlation of the weights with those of the most similar head: 1 means a copy",
    ),
    Vital(
        "tanh_saturated",
        "share",
        _SAMPLED,
        _HIDDEN,
        _MEAN,
        "share of sampled hidden units whose tanh has less than a tenth of its full slope",
    ),
    Vital(
        "idle_weight",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "weight on a learned sink, an outcome without a value",
    ),
    Vital(
        "tanh_slope",
        "slope",
        _SAMPLED,
        _HIDDEN,
        _MEAN,
        "mean slope of the sampled tanh",
        low_is_worse=True,
    ),
    Vital(
        "place_share",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "share of the logits' variance within a query that is the same in every sequence of the "
        "batch: 1 means places alone decide",
    ),
    Vital(
        "value_place",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "share of the values' variance that is the same in every sequence of the batch",
    ),
    Vital(
        "value_alike",
        "share",
        _SAMPLED,
        _ALL,
        _MEAN,
        "share of the values' energy that all keys have in common: 1 means all values are the same",
    ),
    Vital(
        "applied_scale",
        "factor",
        _SAMPLED,
        _INNER | {SeenForm.LOGITS},
        _MEAN,
        "the factor that was applied to <query, key>, times sqrt(d): 1 as usual, sqrt(d) without a scale, "
        "1 / sqrt(d) if it was applied twice; of written out attention by regression",
    ),
)

INDEX: Mapping[str, int] = {vital.name: place for place, vital in enumerate(VITALS)}
# Vitals that count NaN and Inf in queries, keys and logits: the only ones that are counts.
BROKEN = tuple(vital.name for vital in VITALS if vital.unit == "count")


def columns(found: Mapping[str, Tensor], heads: int, device: torch.device) -> Tensor:
    """(H, count) in fp32 from vitals by name, each (H,); NaN in all other columns."""
    missing = torch.full((heads,), torch.nan, device=device)
    by_place = [found.get(vital.name, missing) for vital in VITALS]
    return torch.stack([x.to(torch.float32) for x in by_place], -1)
