"""GraphAttention beside PyTorch Geometric's own layers: outputs, gradients, weights of edges."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from regard.nn.graph import GraphAttention, pyg

NODES, TARGETS, EDGES, DIM, EDGE_DIM = 8, 5, 24, 5, 3
CASES = {
    "gat": (GATConv, {}),
    "gat one head mean": (GATConv, {"heads": 1, "concat": False}),
    "gat edges": (GATConv, {"edge_dim": EDGE_DIM}),
    "gat edges filled": (GATConv, {"edge_dim": EDGE_DIM, "fill_value": 0.5}),
    "gat edges max": (GATConv, {"edge_dim": EDGE_DIM, "fill_value": "max"}),
    "gat no loops": (GATConv, {"add_self_loops": False, "bias": False}),
    "gat residual": (GATConv, {"residual": True, "negative_slope": 0.05}),
    "gat relu": (GATConv, {"negative_slope": 0.0}),
    "gat absolute": (GATConv, {"negative_slope": -1.0, "edge_dim": EDGE_DIM}),
    "gat bipartite": (GATConv, {"in_channels": (DIM, 4), "add_self_loops": False}),
    "gat bipartite loops": (GATConv, {"in_channels": (DIM, 4), "residual": True}),
    "gatv2": (GATv2Conv, {}),
    "gatv2 mean": (GATv2Conv, {"concat": False, "residual": True}),
    "gatv2 shared": (GATv2Conv, {"share_weights": True, "negative_slope": 0.4}),
    "gatv2 relu": (GATv2Conv, {"negative_slope": 0.0}),
    "gatv2 below": (GATv2Conv, {"negative_slope": -0.3}),
    "gatv2 edges": (GATv2Conv, {"edge_dim": EDGE_DIM}),
    "gatv2 edges min": (GATv2Conv, {"edge_dim": EDGE_DIM, "fill_value": "min"}),
    "gatv2 edges add": (GATv2Conv, {"edge_dim": EDGE_DIM, "fill_value": "add"}),
    "gatv2 edges mul": (GATv2Conv, {"edge_dim": EDGE_DIM, "fill_value": "mul"}),
    "gatv2 edges tensor": (
        GATv2Conv,
        {"edge_dim": EDGE_DIM, "fill_value": torch.tensor([1.0, -1.0, 0.5])},
    ),
    "gatv2 no loops no bias": (GATv2Conv, {"add_self_loops": False, "bias": False}),
    "gatv2 bipartite": (GATv2Conv, {"in_channels": (DIM, 4), "add_self_loops": False}),
    "gatv2 bipartite loops": (GATv2Conv, {"in_channels": (DIM, 4), "residual": True}),
    "gatv2 bipartite shared": (GATv2Conv, {"in_channels": (DIM, DIM), "share_weights": True}),
    "transformer": (TransformerConv, {}),
    "transformer mean": (TransformerConv, {"concat": False}),
    "transformer beta": (TransformerConv, {"beta": True, "edge_dim": EDGE_DIM}),
    "transformer beta mean": (TransformerConv, {"beta": True, "concat": False}),
    "transformer edges": (TransformerConv, {"edge_dim": EDGE_DIM, "bias": False}),
    "transformer no root": (TransformerConv, {"root_weight": False, "beta": True}),
    "transformer bipartite": (TransformerConv, {"in_channels": (DIM, 4), "edge_dim": EDGE_DIM}),
}


def build(name):
    """The layer of theirs in fp64, and inputs: repeated edges, self-loops, a node without any."""
    kind, options = CASES[name]
    conv = kind(**{"in_channels": DIM, "out_channels": 4, "heads": 3, **options}).double()
    dims = options.get("in_channels", DIM)
    if isinstance(dims, tuple):
        x = tuple(
            torch.randn(n, d, dtype=torch.double)
            for n, d in zip((NODES, TARGETS), dims, strict=True)
        )
    else:
        x = torch.randn(NODES, dims, dtype=torch.double)
    targets = TARGETS if isinstance(x, tuple) else NODES
    edge_index = torch.stack([torch.randint(NODES, (EDGES,)), torch.randint(targets - 1, (EDGES,))])
    edge_index[:, :3] = torch.tensor([[1, 1, 2], [1, 3, 2]])
    edge_index[:, 4] = edge_index[:, 1]
    feature = torch.randn(EDGES, EDGE_DIM, dtype=torch.double) if "edge_dim" in options else None
    return conv, x, edge_index, feature


def results(layer, x, edge_index, feature):
    """The output, the gradients of nodes and edge features, and those of the parameters."""
    given = [t.clone().requires_grad_() for t in (x if isinstance(x, tuple) else (x,))]
    feature = None if feature is None else feature.clone().requires_grad_()
    output = layer(tuple(given) if isinstance(x, tuple) else given[0], edge_index, feature)
    layer.zero_grad()
    output.square().sum().backward()
    inputs = [t.grad for t in given] + ([] if feature is None else [feature.grad])
    named = layer.named_parameters(remove_duplicate=False)
    return output, inputs, {name: p.grad for name, p in named}


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_theirs(name):
    conv, *given = build(name)
    layer = GraphAttention.from_pyg(conv)
    output, inputs, grads = results(layer, *given)
    wanted, wanted_inputs, wanted_grads = results(conv, *given)
    torch.testing.assert_close(output, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inputs, wanted_inputs, rtol=1e-11, atol=1e-11)
    used = {name: g for name, g in wanted_grads.items() if g is not None}
    translated = pyg.renamed(used, layer.score.name, layer.state_dict())
    torch.testing.assert_close(grads, translated, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_which_weight_belongs_to_which_edge(name):
    """pyg#1227, pyg#3550: after self-loops were added, no one knew which weight was whose."""
    conv, x, edge_index, feature = build(name)
    result = GraphAttention.from_pyg(conv).attend(x, edge_index, feature)
    output, (edges, weights) = conv(x, edge_index, feature, return_attention_weights=True)
    torch.testing.assert_close(result.output, output, rtol=1e-12, atol=1e-12)
    assert torch.equal(result.edge_index, edges)
    torch.testing.assert_close(result.weights, weights, rtol=1e-12, atol=1e-12)
    given = result.edge >= 0
    assert torch.equal(result.edge_index[:, given], edge_index[:, result.edge[given]])
    loops = result.edge_index[:, ~given]
    assert torch.equal(loops[0], loops[1])


@pytest.mark.parametrize("name", ["gat", "gatv2 shared", "transformer no root"])
def test_a_checkpoint_alone_is_enough(name):
    """No layer of theirs is needed to read what one of theirs has saved."""
    conv, x, edge_index, _ = build(name)
    layer = GraphAttention(**pyg.arguments(conv)).double()
    layer.load_pyg(conv.state_dict())
    torch.testing.assert_close(layer(x, edge_index), conv(x, edge_index))


def test_options_dtype_and_mode_are_taken_over():
    conv = GATv2Conv(4, 2, heads=2, dropout=0.25, negative_slope=0.3).half().eval()
    layer = GraphAttention.from_pyg(conv)
    assert (layer.dropout, layer.score.parameter, layer.training) == (0.25, 0.3, False)
    assert {p.dtype for p in layer.parameters()} == {torch.half}
    with torch.no_grad():
        conv.lin_l.weight.zero_()
    assert layer.key.weight.abs().max() > 0, "weights are copies"


@pytest.mark.parametrize(
    ("conv", "message"),
    [
        (torch.nn.Linear(2, 2), "GATConv, GATv2Conv or TransformerConv"),
        (GATv2Conv(2, 2, flow="target_to_source"), "flow='target_to_source'"),
        (GATv2Conv(2, 2, aggr="mean"), "aggr='mean'"),
    ],
)
def test_layers_that_cannot_be_taken_over(conv, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GraphAttention.from_pyg(conv)


LAZY = {
    "gat": (GATConv, -1, {}),
    "gat edges": (GATConv, -1, {"edge_dim": -1, "residual": True}),
    "gat bipartite": (GATConv, (-1, -1), {"add_self_loops": False}),
    "gatv2": (GATv2Conv, -1, {"residual": True}),
    "gatv2 bipartite": (GATv2Conv, (-1, 4), {"edge_dim": EDGE_DIM}),
    "transformer": (TransformerConv, (-1, -1), {"edge_dim": -1}),
}


def lazy_inputs(dims, options):
    x = torch.randn(NODES, DIM)
    x = (x, torch.randn(TARGETS, 4)) if isinstance(dims, tuple) else x
    edge_index = torch.stack([torch.randint(NODES, (EDGES,)), torch.randint(TARGETS, (EDGES,))])
    return x, edge_index, torch.randn(EDGES, EDGE_DIM) if "edge_dim" in options else None


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("seen", [False, True])
def test_widths_of_minus_one(name, seen):
    """Of a layer that has seen inputs the weights are taken; of one that has not, the vectors."""
    kind, dims, options = LAZY[name]
    conv = kind(dims, 2, heads=3, **options)
    given = lazy_inputs(dims, options)
    if seen:
        conv(*given)
    layer = GraphAttention.from_pyg(conv)
    output = layer(*given)
    conv(*given)
    assert output.shape == (TARGETS if isinstance(dims, tuple) else NODES, 6)
    assert not any(p.abs().max() == 0 for name, p in layer.named_parameters() if "weight" in name)
    if not seen:
        layer.load_pyg(conv.state_dict())
        output = layer(*given)
    torch.testing.assert_close(output, conv(*given))
    assert (layer.source_dim, layer.target_dim) == (DIM, 4 if isinstance(dims, tuple) else DIM)


def test_a_lazy_layer_of_our_own():
    torch.manual_seed(0)
    layer = GraphAttention(-1, 4, 2, edge_dim=-1, score="additive")
    copied = GraphAttention(-1, 4, 2, edge_dim=-1, score="additive")
    x, edge_index, edge = lazy_inputs(DIM, {"edge_dim": EDGE_DIM})
    with pytest.raises(TypeError, match="this call decides the widths of -1, got None"):
        layer(None, edge_index, edge)
    output = layer(x, edge_index, edge)
    assert layer.key.in_features == DIM and layer.edge.in_features == EDGE_DIM
    spread = float(layer.key.weight.detach().std())
    assert spread == pytest.approx(DIM**-0.5, rel=0.5)
    # A checkpoint decides the widths before the first call.
    copied.load_state_dict(layer.state_dict())
    torch.testing.assert_close(copied(x, edge_index, edge), output)
    with pytest.raises(ValueError, match=r"\(nodes, 5\)"):
        layer(torch.randn(NODES, 7), edge_index, edge)
    shared = GraphAttention(-1, 4, 2, share_weights=True)
    with pytest.raises(ValueError, match=r"share_weights=True needs one width.*5 and target dim 4"):
        shared((x, torch.randn(NODES, 4)), edge_index)
    assert shared((x, x), edge_index).shape == (NODES, 8)


def test_from_pyg_wants_a_layer():
    with pytest.raises(TypeError, match="conv must be a layer"):
        GraphAttention.from_pyg("GATv2Conv")


def test_weights_of_another_layer_are_refused():
    layer = GraphAttention(4, 2, share_weights=True)
    with pytest.raises(ValueError, match="weights of a GATConv, but this layer has score 'gatv2'"):
        layer.load_pyg(GATConv(4, 2).state_dict())
    with pytest.raises(ValueError, match="build it with share_weights=False"):
        layer.load_pyg(GATv2Conv(4, 2).state_dict())
    with pytest.raises(ValueError, match=r"'extra.weight' is not a parameter of a GATv2Conv"):
        layer.load_pyg(GATv2Conv(4, 2).state_dict() | {"extra.weight": torch.ones(1)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_pyg(GATv2Conv(4, 3, share_weights=True).state_dict())


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv])
def test_parameters_start_as_theirs(kind):
    """Same bounds and spread for every parameter, sizes unequal so that a mix-up shows."""
    conv = kind(40, 200, heads=5, edge_dim=17, residual=True)
    layer = GraphAttention(
        40, 200, 5, score="gat" if kind is GATConv else "gatv2", edge_dim=17, residual=True
    )
    theirs = pyg.renamed(conv.state_dict(), layer.score.name, layer.state_dict())
    for name, ours in layer.named_parameters():
        for spread in (lambda x: float(x.detach().std()), lambda x: float(x.detach().abs().max())):
            assert spread(ours) == pytest.approx(spread(theirs[name]), rel=0.1), name


def test_torch_geometric_is_not_needed():
    code = """
import sys
sys.modules["torch_geometric"] = None
import torch
from regard.nn.graph import GraphAttention
print(GraphAttention(3, 2)(torch.ones(4, 3), torch.tensor([[0, 1], [2, 3]])).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[4, 2]" in done.stdout
