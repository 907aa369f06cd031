"""Batches of nodes give what the whole graph gives: trims, mini-batches, the sampler, sparse features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import k_hop_subgraph

from regard.recipes.graph import NodeClassifier, Nodes
from regard.recipes.graph.features import SPARSE_UP_TO, NodeFeatures, quiet
from regard.recipes.graph.loading import GraphSource, PlainSampler

CPU = torch.device("cpu")
COUNT, EDGES, WIDTH = 60, 150, 7
LAYERS = {
    "gatv2": {"score": "gatv2"},
    "gat without self-loops": {"score": "gat", "self_loops": False},
    "dot with residual": {"score": "scaled_dot", "self_loops": False, "residual": True},
    "PyG GATConv": {"score": "gat", "layer": "pyg"},
    "PyG TransformerConv": {
        "score": "scaled_dot", "layer": "pyg", "self_loops": False, "residual": True,
    },
    "equal weights": {"score": "mean"},
    "no edges": {"layer": "mlp"},
}  # fmt: skip


def graph(edge_dim: int = 0, seed: int = 0) -> Data:
    """A sparse random graph with repeated edges, self-loops, and nodes without any edge at the end."""
    draw = torch.Generator().manual_seed(seed)
    edges = torch.randint(COUNT - 5, (2, EDGES), generator=draw)
    edges[:, :6] = torch.tensor([[1, 1, 1, 4, 4, 9], [2, 2, 2, 4, 4, 9]])
    found = Data(torch.randn(COUNT, WIDTH, generator=draw), edges)
    if edge_dim:
        found.edge_attr = torch.randn(EDGES, edge_dim, generator=draw)
    return found


def built(**arguments) -> NodeClassifier:
    """A classifier with random weights; dropout is 0, so that training mode can be compared too."""
    given = {"width": 3, "heads": 2, "dropout": 0.0, "device": "cpu"} | arguments
    edge_dim = given.pop("edge_features", 0)
    model = NodeClassifier(**given)
    model.restore({"features": WIDTH, "edge_features": edge_dim, "classes": [0, 1, 2]})
    return model


WANTED = torch.tensor([3, 17, 59, 4, 2, 30])


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("edge_dim", [0, 2])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_a_part_gives_the_outputs_and_gradients_of_the_whole_graph(name, layers, edge_dim, mode):
    """Layers leave out nodes and edges that no output depends on any more."""
    model = built(**LAYERS[name], layers=layers, edge_features=edge_dim, readout=layers == 2)
    source = model.source(graph(edge_dim))
    (part,) = model.parts(source, WANTED)
    assert part.hops is not None and part.x.shape[0] < COUNT
    net = model.model_.train(mode == "train")
    found = {}
    for kind, batch in (("part", part), ("whole", source.whole(WANTED))):
        net.zero_grad()
        logits = net(batch)
        logits.square().sum().backward()
        found[kind] = [logits, *(one.grad for one in net.parameters())]
    torch.testing.assert_close(found["part"], found["whole"], rtol=1e-4, atol=1e-5)


def test_a_part_is_no_larger_than_it_must_be():
    model = built(layers=2)
    whole = graph()
    (part,) = model.parts(model.source(whole), WANTED)
    near = k_hop_subgraph(WANTED, 2, whole.edge_index, num_nodes=COUNT)[0]
    assert part.x.shape[0] == len(near)
    nearest = k_hop_subgraph(WANTED, 1, whole.edge_index, num_nodes=COUNT)[0]
    nodes, counts = part.hops
    assert [sum(nodes[:n]) for n in (1, 2, 3)] == [len(WANTED), len(nearest), len(near)]
    into = [torch.isin(whole.edge_index[1], kept).sum() for kept in (WANTED, nearest)]
    assert [counts[0], sum(counts)] == into


@pytest.mark.parametrize(("score", "edge_dim"), [("gat", 2), ("gatv2", 2), ("scaled_dot", 0)])
@pytest.mark.parametrize("readout", [False, True])
def test_the_network_is_that_of_the_layers_of_pyg(score, edge_dim, readout):
    """With the same weights: heads, self-loops, edge features and the last layer are wired alike."""
    own = {"self_loops": False, "residual": True} if score == "scaled_dot" else {}
    made = {
        layer: built(layer=layer, score=score, readout=readout, edge_features=edge_dim, **own)
        for layer in ("pyg", "regard")
    }
    for mine, theirs in zip(*(made[k].model_.layers for k in ("regard", "pyg")), strict=True):
        mine.load_pyg(theirs.state_dict())
    if readout:
        made["regard"].model_.readout.load_state_dict(made["pyg"].model_.readout.state_dict())
    nodes = Nodes(graph(edge_dim))
    torch.testing.assert_close(made["regard"].logits(nodes), made["pyg"].logits(nodes))


def test_equal_weights_are_a_mean_over_neighbours():
    model = built(score="mean", layers=1, edge_features=2, out_heads=1)
    nodes = Nodes(graph(2))
    found = model.attend(nodes)
    into = np.bincount(found.edges[1], minlength=COUNT)
    np.testing.assert_allclose(found.weights[:, 0], 1 / into[found.edges[1]], rtol=1e-6)
    (layer,) = model.model_.layers
    assert {name for name, _ in layer.named_parameters()} == {"key.weight", "key.bias", "bias"}


def test_gcn_keeps_the_whole_graph():
    """A part lacks edges to the nodes at its border, whose degrees GCN divides by."""
    model = built(layer="gcn")
    source = model.source(graph())
    (batch,) = model.parts(source, WANTED)
    assert batch.hops is None and batch.x.shape[0] == COUNT
    torch.testing.assert_close(
        model.logits(Nodes(graph(), WANTED)), model.logits(Nodes(graph()))[WANTED]
    )


@pytest.mark.parametrize("edge_dim", [0, 2])
@pytest.mark.parametrize("index", [WANTED, torch.tensor([5, 5, 1, 5]), torch.arange(COUNT)])
def test_mini_batches_predict_as_the_whole_graph(index, edge_dim):
    whole, batched = built(edge_features=edge_dim), built(edge_features=edge_dim, batch_nodes=4)
    nodes = Nodes(graph(edge_dim), index)
    assert len(list(batched.parts(batched.source(nodes.graph), index))) == -(-len(index) // 4)
    torch.testing.assert_close(batched.logits(nodes), whole.logits(nodes))
    source = whole.source(nodes.graph)
    with torch.no_grad():
        torch.testing.assert_close(
            whole.logits(nodes), whole.model_.eval()(source.whole(nodes.index))
        )


def test_batches_of_an_epoch_have_every_node_once_in_an_order_of_their_own():
    source = GraphSource(graph(), NodeFeatures.of(graph().x, CPU))
    rows = {
        seed: torch.cat([one.rows for one in source.batches(torch.arange(40), 7, [2, 2], seed)])
        for seed in (1, 2)
    }
    assert all(sorted(one.tolist()) == list(range(40)) for one in rows.values())
    assert not torch.equal(rows[1], rows[2])
    again = torch.cat([one.rows for one in source.batches(torch.arange(40), 7, [2, 2], 1)])
    assert torch.equal(rows[1], again)


def test_the_sampler_takes_so_many_edges_and_each_alike():
    """Of 6 edges 2 are drawn; over many draws each comes equally often."""
    edges = torch.stack([torch.arange(1, 7), torch.zeros(6, dtype=torch.long)])
    sampler = PlainSampler(edges, 7, [2], torch.Generator().manual_seed(0))
    drawn = torch.zeros(6)
    for _ in range(600):
        found = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0])))
        assert len(found.edge) == len(found.edge.unique()) == 2
        drawn[found.edge] += 1
    # Each is binomial with mean 200 and deviation 11.5.
    assert (drawn - 200).abs().max() < 5 * 11.5


def test_the_sampler_brings_each_edge_once_with_its_ends():
    whole = graph()
    sampler = PlainSampler(whole.edge_index, COUNT, [-1, -1], torch.Generator())
    found = sampler.sample_from_nodes(NodeSamplerInput(None, WANTED))
    assert len(found.edge) == len(found.edge.unique())
    ends = torch.stack([found.node[found.row], found.node[found.col]])
    assert torch.equal(ends, whole.edge_index[:, found.edge])
    assert sum(found.num_sampled_nodes) == len(found.node) == len(found.node.unique())
    assert sum(found.num_sampled_edges) == len(found.edge)


def sparse_rows() -> torch.Tensor:
    """Features of which one in twenty is not 0, and a row without any."""
    dense = torch.randn(30, 40) * (torch.rand(30, 40) < 0.05)
    dense[7] = 0
    assert 0 < dense.count_nonzero() < SPARSE_UP_TO * dense.numel()
    return dense


def test_sparse_features_are_what_dense_ones_are():
    dense = sparse_rows()
    with quiet():
        rows = dense.to_sparse_csr()
    for given in (dense, dense.to_sparse_coo(), rows):
        found = NodeFeatures.of(given, CPU)
        assert found.starts is not None and found.values.ndim == 1
        torch.testing.assert_close(found.dropped(0.6, False).to_dense(), dense)
        order = torch.tensor([7, 3, 3, 29, 0])
        torch.testing.assert_close(found.take(order).dropped(0.0, True).to_dense(), dense[order])
        assert found.take(torch.arange(0)).shape == (0, 40)
    full = torch.randn(5, 4)
    for given in (full, full.to_sparse_coo()):
        assert torch.equal(NodeFeatures.of(given, CPU).take(torch.tensor([2])).values, full[2:3])


def test_dropout_of_sparse_features_drops_and_scales_entries():
    dense = (torch.rand(400, 400) < 0.05).float()
    dropped = NodeFeatures.of(dense, CPU).dropped(0.6, True).to_dense()
    kept = dropped[dense > 0]
    assert set(kept.unique().tolist()) == {0.0, 2.5}
    assert float((kept > 0).float().mean()) == pytest.approx(0.4, abs=0.03)
    assert (dropped[dense == 0] == 0).all()


@pytest.mark.parametrize("name", [*LAYERS, "gcn"])
def test_a_network_on_sparse_features_is_the_network_on_dense_ones(name):
    """Outputs and gradients: sparse rows have a product of their own, whose gradient we compute."""
    dense = sparse_rows()
    whole = Data(dense, torch.randint(30, (2, 80)))
    model = NodeClassifier(dropout=0.0, device="cpu", **LAYERS.get(name, {"layer": name}))
    model.restore({"features": 40, "edge_features": 0, "classes": [0, 1]})
    found = []
    for x in (NodeFeatures.of(dense, CPU), NodeFeatures((30, 40), dense)):
        model.model_.zero_grad()
        logits = model.model_(GraphSource(whole, x).whole(torch.arange(30)))
        logits.square().sum().backward()
        found.append([logits, *(one.grad.clone() for one in model.model_.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_of_the_entries_that_dropout_left():
    x, layer = NodeFeatures.of(sparse_rows(), CPU), torch.nn.Linear(40, 3)
    torch.manual_seed(1)
    rows = x.dropped(0.5, True)
    with x.multiplied(rows):
        own = layer(rows)
    wanted = layer(rows.to_dense())
    torch.testing.assert_close(own, wanted)
    grads = [torch.autograd.grad(one.square().sum(), layer.weight)[0] for one in (own, wanted)]
    torch.testing.assert_close(*grads)
    assert type(own.grad_fn.next_functions[0][0]).__name__ == "SparseLinearBackward"
    with torch.no_grad(), x.multiplied(rows):
        torch.testing.assert_close(layer(rows), wanted)
