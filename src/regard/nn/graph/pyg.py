"""Convert layers of PyTorch Geometric, which is never imported: they are read by their attributes.

GATConv, GATv2Conv and TransformerConv are each one configuration of `GraphAttention`, and each of
their parameters has one place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.describe import describe
from regard.nn.graph.lazy import is_uninitialized

COMMON = {"lin_edge": "edge", "res": "residual", "bias": "bias"}

# The name here of each of their parameters, by score. A GATConv between two sets of nodes has lin_src
# and lin_dst in place of lin.
PLACES = {
    "gat": {
        "lin": "key",
        "lin_src": "key",
        "lin_dst": "query",
        "att_src": "score.key_vector",
        "att_dst": "score.query_vector",
        "att_edge": "score.edge_vector",
        **COMMON,
    },
    "gatv2": {"lin_l": "key", "lin_r": "query", "att": "score.v", **COMMON},
    "scaled_dot": {
        "lin_query": "query",
        "lin_key": "key",
        "lin_value": "value",
        "lin_edge": "edge",
        "lin_skip": "residual",
        "lin_beta": "gate",
    },
}
LAYERS = {"gat": "GATConv", "gatv2": "GATv2Conv", "scaled_dot": "TransformerConv"}
# A parameter that only one of the three layers has, and its score here.
SIGNS = {"att_src": "gat", "att": "gatv2", "lin_query.weight": "scaled_dot"}


def _score_of(names: Mapping[str, Any], given: object) -> str:
    """The name of the score that a layer with these parameters uses."""
    for sign, score in SIGNS.items():
        if sign in names:
            return score
    raise TypeError(
        f"{describe(given)} is not a GATConv, GATv2Conv or TransformerConv of PyTorch Geometric, "
        "nor the state_dict of one"
    )


def arguments(conv: nn.Module) -> dict[str, Any]:
    """The arguments that make a `GraphAttention` compute what `conv` computes."""
    if not isinstance(conv, nn.Module):
        raise TypeError(f"conv must be a layer of PyTorch Geometric, got {describe(conv)}")
    score = _score_of(dict(conv.named_parameters()), conv)
    for name, wanted in (("flow", "source_to_target"), ("aggr", "add")):
        found = getattr(conv, name, wanted)
        if found != wanted and (name, found) != ("aggr", "sum"):
            raise ValueError(
                f"conv has {name}={found!r}, but GraphAttention supports only {name}={wanted!r}"
            )
    theirs: Any = conv
    same = {
        "in_dim": theirs.in_channels,
        "out_dim": theirs.out_channels,
        "heads": theirs.heads,
        "score": score,
        "concat": theirs.concat,
        "edge_dim": theirs.edge_dim,
        "dropout": theirs.dropout,
    }
    if score == "scaled_dot":
        return same | {
            "self_loops": False,
            "edge_in_value": theirs.edge_dim is not None,
            "residual": theirs.root_weight,
            "gate": theirs.beta,
            "bias": theirs.lin_key.bias is not None,
        }
    return same | {
        "self_loops": theirs.add_self_loops,
        "fill": theirs.fill_value,
        "negative_slope": theirs.negative_slope,
        "residual": theirs.res is not None,
        "share_weights": getattr(theirs, "share_weights", isinstance(theirs.in_channels, int)),
        "bias": theirs.bias is not None,
    }


def renamed(state: Mapping[str, Tensor], score: str, ours: Mapping[str, Tensor]) -> dict:
    """A state_dict of PyTorch Geometric under our names, for a layer with the parameters `ours`."""
    theirs = _score_of(state, state)
    if theirs != score:
        raise ValueError(
            f"these are the weights of a {LAYERS[theirs]}, but this layer has score {score!r}; "
            f"build it with score={theirs!r}"
        )
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        module, dot, part = name.rpartition(".") if "." in name else (name, "", "")
        if module not in PLACES[theirs]:
            raise ValueError(f"{name!r} is not a parameter of a {LAYERS[theirs]}")
        # Where a weight waits for its shape, its bias is memory that nothing has written to.
        if is_uninitialized(tensor) or is_uninitialized(state.get(f"{module}.weight", tensor)):
            continue
        place = PLACES[theirs][module] + dot + part
        # In PyTorch Geometric the vectors of a score have a leading dim of 1.
        found[place] = tensor.squeeze(0) if place.startswith("score.") else tensor
    for part in ("weight", "bias"):
        if "query.weight" not in ours:
            twin = found.pop(f"query.{part}", None)
            if twin is not None and not torch.equal(twin, found[f"key.{part}"]):
                raise ValueError(
                    f"the {LAYERS[theirs]} projects sources and targets by different weights, but "
                    "this layer shares them; build it with share_weights=False"
                )
        # TransformerConv has lin_skip even with root_weight=False, where it is not used.
        if theirs == "scaled_dot" and "residual.weight" not in ours:
            found.pop(f"residual.{part}", None)
    return found
