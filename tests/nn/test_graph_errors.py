"""Bad input to GraphAttention: one error that says what was given and what would work."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.nn.graph import GraphAttention
from regard.stabilize import Tempered

X = torch.ones(4, 3)
EDGES = torch.tensor([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("edge_index", "error", "message"),
    [
        (torch.tensor([[0, 4], [2, 3]]), ValueError, r"edge_index\[0\] holds 4, .* 4 source nodes"),
        (torch.tensor([[0, 1], [2, 9]]), ValueError, r"edge_index\[1\] holds 9, .* 4 target nodes"),
        (torch.tensor([[0, -1], [2, 3]]), ValueError, r"edge_index\[0\] holds -1"),
        (EDGES.int(), TypeError, r"int64, got torch.int32; use edge_index.long\(\)"),
        (EDGES.float(), TypeError, "int64, got torch.float32"),
        (torch.zeros(5, 2, dtype=torch.long), ValueError, r"\(5, 2\); use edge_index.t\(\)"),
        (torch.zeros(2, dtype=torch.long), ValueError, r"must be \(2, edges\)"),
        (torch.eye(4).to_sparse(), TypeError, "dense tensor"),
        ([[0, 1], [2, 3]], TypeError, "edge_index must be a tensor"),
        (EDGES.to("meta"), ValueError, "edge_index is on meta but x is on cpu"),
    ],
)
def test_edge_index(edge_index, error, message):
    with pytest.raises(error, match=message):
        GraphAttention(3, 2)(X, edge_index)


def test_the_adjacency_hint_is_right():
    """A sparse adjacency has a row for each target, as PyTorch Geometric's transposed ones have."""
    adjacency = torch.zeros(4, 4)
    adjacency[EDGES[1], EDGES[0]] = 1
    assert torch.equal(adjacency.to_sparse().coalesce().indices().flip(0), EDGES)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.ones(4, 5), ValueError, r"x must be \(nodes, 3\), got shape \(4, 5\)"),
        (torch.ones(2, 4, 3), ValueError, "join a batch of graphs into one graph"),
        (torch.ones(4, 3, dtype=torch.long), TypeError, r"floating point, .* use x.float\(\)"),
        (X.double(), TypeError, "x is torch.float64 but the layer is torch.float32"),
        (X.to("meta"), ValueError, "x is on meta but the layer is on cpu"),
        ((X, X, X), TypeError, r"a pair \(x_source, x_target\)"),
        ((X, None), TypeError, r"x_target must be a tensor \(nodes, 3\), got None"),
        ((X, torch.ones(4, 2)), ValueError, r"x_target must be \(nodes, 3\)"),
        (None, TypeError, r"a pair \(x_source, x_target\), got None"),
    ],
)
def test_nodes(x, error, message):
    with pytest.raises(error, match=message):
        GraphAttention(3, 2)(x, EDGES)


def test_two_sets_of_nodes_need_a_pair():
    layer = GraphAttention((3, 5), 2)
    with pytest.raises(TypeError, match="source dim 3 and target dim 5"):
        layer(X, EDGES)
    with pytest.raises(ValueError, match=r"edge_index\[1\] holds 3, but there are 2 target nodes"):
        layer((X, torch.ones(2, 5)), EDGES)
    with pytest.raises(ValueError, match="there are 0 target nodes"):
        layer((X, torch.ones(0, 5)), EDGES)


def test_one_tensor_serves_two_sets_of_one_width():
    layer = GraphAttention((3, 3), 2)
    assert torch.equal(layer(X, EDGES), layer((X, X), EDGES))


def test_edge_features():
    with pytest.raises(ValueError, match=r"edge_attr is missing.*shape \(2, 4\)"):
        GraphAttention(3, 2, edge_dim=4)(X, EDGES)
    with pytest.raises(ValueError, match="built without edge_dim"):
        GraphAttention(3, 2)(X, EDGES, torch.ones(2, 4))
    layer = GraphAttention(3, 2, edge_dim=4)
    with pytest.raises(ValueError, match=r"edge_attr must be \(edges, 4\), got shape \(2, 5\)"):
        layer(X, EDGES, torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"edge_attr is for 3 edges.*edge_index has 2 edges"):
        layer(X, EDGES, torch.ones(3, 4))
    with pytest.raises(TypeError, match="edge_attr must be floating point"):
        layer(X, EDGES, torch.ones(2, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"in_dim": 0}, ValueError, "in_dim must be an integer of 1 or more"),
        ({"in_dim": (3, 4, 5)}, ValueError, r"a pair \(source dim, target dim\)"),
        ({"in_dim": "3"}, ValueError, "in_dim"),
        ({"out_dim": 0}, ValueError, "out_dim must be an integer of 1 or more"),
        ({"heads": 0}, ValueError, "heads"),
        ({"edge_dim": 0}, ValueError, "edge_dim"),
        ({"dropout": 1.5}, ValueError, "dropout must be a probability"),
        ({"score": "gatv3"}, ValueError, "unknown score 'gatv3'; did you mean 'gatv2'"),
        ({"score": regard.GATv2}, TypeError, "the class GATv2 itself"),
        ({"score": 3}, TypeError, "score must be a Score object, a name or None, got 3"),
        (
            {"score": regard.GATv2(2, 4)},
            ValueError,
            r"makes 4 heads; build GATv2\(hidden=2\)",
        ),
        ({"score": regard.Additive(8), "width": 4}, ValueError, "width=4, but Additive takes"),
        ({"score": regard.GATv2(8)}, ValueError, "share_value=True.*width 8 and out_dim 2"),
        (
            {"score": regard.Projected(regard.Additive(2), 3, 3)},
            ValueError,
            "give the score inside, score.score",
        ),
        (
            {"score": regard.Bilinear(2, 3)},
            ValueError,
            r"1 query heads of width 2.*key dim 3.*build Bilinear\(query_dim=2, key_dim=2\)",
        ),
        (
            {"score": regard.Additive(2), "heads": 2},
            ValueError,
            r"score does not fit 2 query heads.*build Additive\(hidden=2, heads=2\)",
        ),
        ({"score": regard.scores.GAT(2, edge=True)}, ValueError, "give edge_dim="),
        (
            {"score": Tempered(regard.scores.GAT(2, edge=True)), "edge_dim": 3},
            ValueError,
            "without a wrapper",
        ),
        ({"score": "dot", "negative_slope": 0.1}, ValueError, "negative_slope=0.1 is for"),
        ({"negative_slope": torch.inf}, ValueError, "negative_slope must be a finite number"),
        ({"fill": "median"}, ValueError, "fill must be 'mean', 'add'"),
        ({"fill": None}, TypeError, "fill must be one of"),
        ({"fill": torch.ones(2), "edge_dim": 3}, ValueError, r"shape \(3,\)"),
        ({"gate": True}, ValueError, "give residual=True"),
        ({"edge_in_value": True}, ValueError, "give edge_dim="),
        (
            {"score": "dot", "width": 4, "edge_dim": 3, "edge_in_value": True},
            ValueError,
            "edge_in_value=True.*width 4 and out_dim 2",
        ),
        ({"in_dim": (3, 4), "share_weights": True}, ValueError, "source dim 3 and target dim 4"),
    ],
)
def test_options(options, error, message):
    with pytest.raises(error, match=message):
        GraphAttention(**{"in_dim": 3, "out_dim": 2, **options})


def test_a_state_dict_of_another_score_says_which():
    saved = GraphAttention(3, 2, score=regard.Additive(2), share_value=True).state_dict()
    layer = GraphAttention(3, 2)
    with pytest.raises(RuntimeError, match=r"score 'additive', but this module has score 'gatv2'"):
        layer.load_state_dict(saved)
