"""GraphAttention: what it computes, at the edges of the possible."""

from __future__ import annotations

import copy

import pytest
import torch

import regard
from regard.nn.graph import GraphAttention
from regard.scores import GAT
from regard.stabilize import SoftCapped, Tempered

NAMES = list(regard.scores.SIZED)


def graph(nodes=6, edges=15, dim=5, edge_dim=3, dtype=torch.float32):
    x, feature = torch.randn(nodes, dim, dtype=dtype), torch.randn(edges, edge_dim, dtype=dtype)
    return x, torch.randint(nodes, (2, edges)), feature


@pytest.mark.parametrize("name", NAMES)
def test_on_a_complete_graph_it_is_attention(name):
    """Every source to every target: the same as the dense function over projected nodes."""
    layer = GraphAttention((5, 7), 4, 2, score=name, self_loops=False, bias=False).double()
    source, target = torch.randn(6, 5, dtype=torch.double), torch.randn(3, 7, dtype=torch.double)
    edge_index = torch.cartesian_prod(torch.arange(6), torch.arange(3)).T

    def heads(linear, x):
        return linear(x).unflatten(-1, (2, 4)).transpose(0, 1)[None]

    value = heads(layer.key if layer.value is None else layer.value, source)
    query, key = heads(layer.query, target), heads(layer.key, source)
    wanted = regard.attend(query, key, value, layer.score, want={"weights"})
    result = layer.attend((source, target), edge_index)
    torch.testing.assert_close(result.output, wanted.output[0].transpose(0, 1).flatten(1))
    weights = wanted.weights[0][:, edge_index[1], edge_index[0]].T
    torch.testing.assert_close(result.weights, weights)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_gradients(name, edge_dim):
    layer = GraphAttention(3, 2, 2, score=name, edge_dim=edge_dim, residual=True).double()
    x, edge_index, feature = graph(4, 7, dim=3, dtype=torch.double)
    given = [x.requires_grad_()] + ([feature.requires_grad_()] if edge_dim else [])

    def call(x, *rest):
        return layer(x, edge_index, *rest[: len(given) - 1])

    assert torch.autograd.gradcheck(call, (*given, *layer.parameters()))


def test_a_soft_capped_score_is_capped():
    score, capped = regard.GATv2(4, 2), SoftCapped(regard.GATv2(4, 2), 0.5)
    capped.load_state_dict({f"score.{name}": p for name, p in score.state_dict().items()})
    x, edge_index, _ = graph()
    layer = GraphAttention(5, 4, 2, score=score, self_loops=False)
    other = GraphAttention(5, 4, 2, score=capped, self_loops=False)
    other.key, other.query = layer.key, layer.query
    logits = regard.score(
        *(m(x).unflatten(-1, (2, 4)).transpose(0, 1)[None] for m in (layer.query, layer.key)), score
    )
    logits = 0.5 * torch.tanh(logits[0][:, edge_index[1], edge_index[0]].T / 0.5)
    ratio = other.attend(x, edge_index).weights / logits.exp()
    first = edge_index[1] == edge_index[1, 0]
    torch.testing.assert_close(ratio[first], ratio[first][:1].expand(int(first.sum()), 2))


@pytest.mark.parametrize("name", NAMES)
def test_isolated_nodes_get_zero(name):
    layer = GraphAttention(5, 4, 2, score=name, self_loops=False, bias=False)
    x, edge_index, _ = graph()
    edge_index = edge_index[:, edge_index[1] != 2]
    output = layer(x, edge_index)
    assert torch.equal(output[2], torch.zeros(8))
    assert bool((output[edge_index[1]] != 0).any(-1).all())
    biased = GraphAttention(5, 4, 2, self_loops=False)
    with torch.no_grad():
        biased.bias.copy_(torch.arange(8.0))
    assert torch.equal(biased(x, edge_index)[2], torch.arange(8.0))


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_without_edges_or_nodes(name, edge_dim, self_loops):
    """dgl#1245, dgl#1598: a graph without edges crashed."""
    layer = GraphAttention(5, 4, 2, score=name, edge_dim=edge_dim, self_loops=self_loops)
    for nodes in (3, 0):
        x, edge_index, feature = graph(nodes=max(nodes, 1), edges=0)
        x = x[:nodes].requires_grad_()
        output = layer(x, edge_index, feature if edge_dim else None)
        assert output.shape == (nodes, 8) and bool(output.isfinite().all())
        output.sum().backward()
        assert x.grad.shape == x.shape
        result = layer.attend(x, edge_index, feature if edge_dim else None)
        assert result.weights.shape == (nodes if self_loops else 0, 2)
    pair = (torch.randn(3, 5), torch.randn(0, 5))
    assert layer(pair, edge_index, feature if edge_dim else None).shape == (0, 8)


def test_repeated_edges_count_each():
    layer, x = GraphAttention(5, 4, self_loops=False), torch.randn(3, 5)
    once, twice = torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1, 1], [2, 2, 2]])
    a, b = layer.attend(x, once).weights, layer.attend(x, twice).weights
    torch.testing.assert_close(b[1], b[2])
    torch.testing.assert_close(b[1] / b[0], a[1] / a[0])


def test_edges_may_come_in_any_order():
    layer = GraphAttention(5, 4, 2, edge_dim=3)
    x, edge_index, feature = graph()
    order = torch.randperm(15)
    moved = layer(x, edge_index[:, order], feature[order])
    torch.testing.assert_close(moved, layer(x, edge_index, feature))


@pytest.mark.parametrize("name", NAMES)
def test_nan_reaches_the_targets_of_its_node_alone(name):
    layer = GraphAttention(5, 4, 2, score=name)
    x, edge_index, _ = graph(nodes=8)
    clean = layer(x, edge_index)
    x[3] = torch.nan
    output = layer(x, edge_index)
    touched = torch.zeros(8, dtype=torch.bool)
    touched[edge_index[1][edge_index[0] == 3]] = touched[3] = True
    assert bool(output[touched].isnan().all())
    torch.testing.assert_close(output[~touched], clean[~touched])


def test_nan_in_a_feature_reaches_the_target_of_its_edge_alone():
    layer = GraphAttention(5, 4, 2, edge_dim=3, edge_in_value=True, self_loops=False)
    x, edge_index, feature = graph()
    feature[4] = torch.nan
    output = layer(x, edge_index, feature)
    assert output.isnan().any(-1).nonzero().flatten().tolist() == [int(edge_index[1, 4])]


@pytest.mark.parametrize("edge_in_value", [True, False])
def test_a_self_loop_that_is_taken_out_is_not_read(edge_in_value):
    layer = GraphAttention(5, 4, 2, edge_dim=3, edge_in_value=edge_in_value)
    x, edge_index, feature = graph()
    edge_index[:, 4] = 1
    other = feature.clone()
    other[4] = torch.nan
    other.requires_grad_()
    output = layer(x, edge_index, other)
    torch.testing.assert_close(output, layer(x, edge_index, feature))
    output.square().sum().backward()
    assert bool(other.grad.isfinite().all()) and torch.equal(other.grad[4], torch.zeros(3))
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bipartite", [True, False])
def test_padding_nodes_stay_out_of_every_gradient(name, bipartite):
    layer = GraphAttention(5, 4, 2, score=name, self_loops=False)
    x, edge_index, _ = graph()
    padded = torch.cat([x, torch.full((2, 5), torch.nan)]).requires_grad_()
    output = layer((padded, padded.clone()) if bipartite else padded, edge_index)
    torch.testing.assert_close(output[:6], layer(x, edge_index))
    output[:6].sum().backward()
    for tensor in (padded, *layer.parameters()):
        assert tensor.grad is None or bool(tensor.grad.isfinite().all())


@pytest.mark.parametrize("size", [100, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gatv2", "gat", "scaled_dot", "cosine", "additive"])
def test_large_inputs_do_not_overflow(name, dtype, size):
    """GraphNeuralNetworks.jl#246: inputs of 100 made GAT and GATv2 overflow."""
    layer = GraphAttention(5, 4, 2, score=name).to(dtype)
    x, edge_index, _ = graph()
    x = (x.sign() * size).to(dtype).requires_grad_()
    output = layer(x, edge_index)
    output.float().sum().backward()
    assert bool(output.isfinite().all()) and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("name", ["gatv2", "gat", "scaled_dot"])
def test_half_precision_sums_over_a_hub_in_fp32(name, edge_dim, dtype, device):
    """A hub of 8192 edges alike: sums in half precision would stop growing long before.

    Node 0 is the hub. Its edges out, beside one more for each target, sum in its gradient; its
    edges in, of the graph turned around, sum in its output.
    """
    count = 8192
    exact = GraphAttention(5, 4, 2, score=name, edge_dim=edge_dim, self_loops=False).double()
    layer = copy.deepcopy(exact).to(dtype)
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5).to(dtype)[[0] + [1] * count]
    others = torch.arange(1, count + 1)
    sources = torch.cat([torch.zeros(count, dtype=torch.long), others.roll(1)])
    edge_index = torch.stack([sources, others.repeat(2)])
    feature = torch.randn(2, 3).to(dtype).repeat_interleave(count, 0) if edge_dim else None
    found = []
    edge_index = edge_index.to(device)
    for module, cast in ((layer.to(device), dtype), (exact.to(device), torch.double)):
        given = x.to(device, cast).requires_grad_()
        rest = [] if feature is None else [feature.to(device, cast)]
        output = module(given, edge_index, *rest)
        grads = torch.autograd.grad(output[1:, 0].double().sum(), (given, module.key.weight))
        turned = module(given, edge_index.flip(0), *rest)
        found.append([t.detach().double() for t in (grads[0][0], grads[1], turned[0])])
    for half, wanted in zip(*found, strict=True):
        assert float((half - wanted).norm()) < 0.06 * float(wanted.norm())


def test_edge_features_in_the_value_are_a_switch():
    x, edge_index, feature = graph()
    layer = GraphAttention(5, 4, 2, edge_dim=3, edge_in_value=True, self_loops=False)
    result = layer.attend(x, edge_index, feature)
    message = (layer.key(x)[edge_index[0]] + layer.edge(feature)).unflatten(-1, (2, 4))
    message = (message * result.weights.unsqueeze(-1)).flatten(1)
    wanted = torch.zeros(6, 8).index_add(0, edge_index[1], message) + layer.bias
    torch.testing.assert_close(result.output, wanted)
    layer.edge_in_value = False
    message = (layer.key(x)[edge_index[0]]).unflatten(-1, (2, 4)) * result.weights.unsqueeze(-1)
    wanted = torch.zeros(6, 8).index_add(0, edge_index[1], message.flatten(1)) + layer.bias
    torch.testing.assert_close(layer(x, edge_index, feature), wanted)


def test_edge_features_may_have_one_dim():
    layer = GraphAttention(5, 4, edge_dim=1)
    x, edge_index, feature = graph(edge_dim=1)
    assert torch.equal(layer(x, edge_index, feature[:, 0]), layer(x, edge_index, feature))


def test_dropout_acts_in_training_alone_and_not_on_the_weights_returned():
    layer = GraphAttention(5, 4, 2, dropout=0.5, bias=False)
    x, edge_index, _ = graph(nodes=40, edges=400)
    kept = [layer.attend(x, edge_index) for _ in range(2)]
    assert not torch.equal(kept[0].output, kept[1].output)
    assert torch.equal(kept[0].weights, kept[1].weights)
    mean = torch.stack([layer(x, edge_index) for _ in range(400)]).mean(0)
    layer.eval()
    assert torch.equal(layer(x, edge_index), layer(x, edge_index))
    torch.testing.assert_close(mean, layer(x, edge_index), rtol=0.1, atol=0.1)


def test_width_apart_from_the_output():
    layer = GraphAttention(5, 4, 2, score=regard.Additive(16, 2), edge_dim=3)
    x, edge_index, feature = graph()
    assert layer(x, edge_index, feature).shape == (6, 8)
    assert layer.key.weight.shape == (32, 5) and layer.value.weight.shape == (8, 5)
    assert GraphAttention(5, 4, 2, score="cosine", width=6).query.weight.shape == (12, 5)


def test_a_gat_object_with_edges():
    layer = GraphAttention(5, 4, 2, score=GAT(4, 2, edge=True), edge_dim=3)
    x, edge_index, feature = graph()
    layer(x, edge_index, feature).sum().backward()
    assert layer.score.edge_vector.grad.abs().sum() > 0
    plain = GraphAttention(5, 4, 2, score=GAT(4, 2), edge_dim=3)
    assert not torch.equal(plain(x, edge_index, feature), plain(x, edge_index, feature * 2))


@pytest.mark.parametrize("width", [4, 32, 256])
@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "bilinear", "additive", "object"])
def test_scores_start_with_variance_one(name, width):
    score = regard.GATv2(width, 16) if name == "object" else name
    layer = GraphAttention(24, width, 16, score=score)
    x = torch.randn(2, 200, 24)
    query, key = (
        m(x[i]).unflatten(-1, (16, width)).transpose(0, 1)[None]
        for i, m in enumerate((layer.query, layer.key))
    )
    variance = float(regard.score(query, key, layer.score).detach().var(dim=(-1, -2)).mean())
    assert 0.5 < variance < 1.5, variance


def test_reset_parameters_draws_anew():
    for name in NAMES:
        layer = GraphAttention(5, 4, 2, score=name, edge_dim=3, residual=True, gate=True)
        drawn = [p for p in layer.parameters() if bool((p != p.flatten()[0]).any())]
        before = [p.detach().clone() for p in drawn]
        layer.reset_parameters()
        assert all(not torch.equal(p, old) for p, old in zip(drawn, before, strict=True))


def test_reset_parameters_reaches_a_wrapped_score():
    layer = GraphAttention(5, 4, 2, score=Tempered(regard.Additive(4, 2), heads=2))
    before = layer.score.score.v.detach().clone()
    with torch.no_grad():
        layer.score.log_factor.fill_(3.0)
    layer.reset_parameters()
    assert not torch.equal(layer.score.score.v, before) and not layer.score.log_factor.any()


@pytest.mark.parametrize("name", [*regard.scores.SIZED, None])
def test_every_score_by_name(name):
    layer = GraphAttention(5, 4, 2, score=name, edge_dim=3)
    assert layer.score.name == (name or "scaled_dot")
    x, edges, feature = torch.randn(6, 5), torch.randint(6, (2, 9)), torch.randn(9, 3)
    assert layer(x, edges, feature).shape == (6, 8)


def test_the_repr_shows_what_was_set():
    text = repr(GraphAttention((5, 3), 4, 2, edge_dim=3, fill=0.5, concat=False, dropout=0.1))
    assert "(5, 3), 4, heads=2, concat=False, fill=0.5, dropout=0.1" in text
    plain = GraphAttention(5, 4, score="gat", self_loops=False)
    assert "5, 4, heads=1, self_loops=False, share_weights=True" in repr(plain)


def test_a_score_given_is_left_as_it_is():
    score = regard.Additive(4, 2)
    before = score.v.detach().clone()
    GraphAttention(5, 4, 2, score=score)
    assert torch.equal(score.v, before)


def test_memory_is_that_of_the_edges():
    """pyGAT#56, keras-gat#22: nodes x nodes x width is out of memory at a few thousand nodes."""
    layer, nodes = GraphAttention(4, 8, 2), 100_000
    x = torch.randn(nodes, 4)
    edge_index = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(
                t.numel()
                for t in torch.utils._pytree.tree_leaves(result)
                if isinstance(t, torch.Tensor)
            )
            return result

    with Watch():
        layer(x, edge_index).sum().backward()
    assert max(sizes) <= 2 * nodes * 2 * 8, "edges (self-loops included) x heads x width"
