"""Attention over sorted edges: the plain formulas, and numba's kernels beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import regard
from regard import SortedEdges
from regard.engines import edge_plan, native
from regard.engines.edges import graph, operators
from regard.engines.edges.plain import attend_edges
from regard.nn import GraphAttention

from .graphs import GRAPHS, SHAPES, check, inputs, output_gradient, random, results

compiled = pytest.mark.skipif(
    native.absent(load=False) is not None, reason="numba is not installed"
)


@pytest.fixture
def every_size(monkeypatch):
    """Kernels run calls of any size."""
    monkeypatch.setattr(edge_plan, "FEW_ON_CPU", 0)


def dense(query, key, v, value, edges, kind, number):
    """Attention by a dense mask; a pair that is there several times counts as often."""
    form = query.transpose(0, 1), key.transpose(0, 1)
    if v is None:
        logits = form[0] @ form[1].mT * number
    else:
        x = form[0].unsqueeze(2) + form[1].unsqueeze(1)
        units = torch.tanh(x) if kind == "tanh" else torch.nn.functional.leaky_relu(x, number)
        logits = (units * v[:, None, None]).sum(-1)
    ends = edges.ends()
    there = ends < edges.targets
    count = torch.zeros(edges.targets, edges.sources, dtype=query.dtype)
    places = (ends[there].long(), edges.into.other[there].long())
    count.index_put_(places, count.new_ones(()), accumulate=True)
    seen = count > 0
    weights = count * torch.exp((logits - logits.detach().amax()).masked_fill(~seen, -torch.inf))
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("hts,shc->thc", weights, key if value is None else value)


@pytest.mark.parametrize("name", ["one set", "multi-edges", "self-loops added", "a large target"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_plain_formulas_are_those_of_a_dense_mask(shape, name):
    edges = GRAPHS[name]()
    tensors = inputs(edges, shape, torch.float64)
    grad = output_gradient(tensors, shape)
    found, wanted = (results(tensors, edges, shape.kind, grad, f) for f in (attend_edges, dense))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradcheck_of_the_plain_formulas(shape):
    edges = GRAPHS["self-loops added between two sets"]()
    given = inputs(edges, shape, torch.float64)

    def call(*tensors):
        rest = iter(tensors)
        return attend_edges(
            *(x if x is None else next(rest) for x in given), edges, shape.kind, 0.3
        )

    there = [x for x in given if x is not None]
    assert torch.autograd.gradcheck(call, there)


@compiled
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kernels_compute_the_plain_formulas(shape, name):
    check(GRAPHS[name](), shape)


@compiled
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_half_precision_is_widened(shape, dtype):
    check(GRAPHS["one set"](), shape, dtype)


@compiled
@pytest.mark.parametrize("flip", [False, True])
def test_a_node_with_very_many_edges_keeps_its_digits(flip):
    """PyTorch adds one edge after another: its sums err ten times as much."""
    count, shape = 100_000, SHAPES["GATv2"]
    ends = torch.stack([torch.arange(count) % 50, torch.zeros(count, dtype=torch.long)])
    edges = SortedEdges.of(ends.flip(0) if flip else ends, 50)
    tensors = inputs(edges, shape)
    grad = output_gradient(tensors, shape)
    exact = [None if x is None else x.detach().double().requires_grad_() for x in tensors]
    wanted = results(exact, edges, shape.kind, grad, attend_edges)
    ours, plain = (
        results(tensors, edges, shape.kind, grad, run) for run in (operators.attend, attend_edges)
    )
    for x, y, truth in zip(ours, plain, wanted, strict=True):
        error, usual = (float((z - truth).abs().max()) for z in (x, y))
        assert error <= 0.5 * usual + 1e-6


@compiled
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bits_do_not_depend_on_repeats_or_threads(shape):
    edges = SortedEdges.of(random(500, 500, 20_000), 500)
    tensors = inputs(edges, shape)
    grad = output_gradient(tensors, shape)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7, 2, 2):
            torch.set_num_threads(threads)
            found.append(results(tensors, edges, shape.kind, grad, operators.attend))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], other, strict=True))


@compiled
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_nan_in_a_source_reaches_its_targets_alone(shape, number):
    edges = GRAPHS["two sets"]()
    tensors = inputs(edges, shape)
    with torch.no_grad():
        clean = operators.attend(*tensors, edges, shape.kind, 0.3)
        tensors[1][2] = number
        found = operators.attend(*tensors, edges, shape.kind, 0.3)
        exact = [None if x is None else x.double() for x in tensors]
        wanted = attend_edges(*exact, edges, shape.kind, 0.3)
    touched = edges.edge_index[1][edges.edge_index[0] == 2]
    others = torch.ones(edges.targets, dtype=torch.bool)
    others[touched] = False
    assert torch.equal(found[others], clean[others])
    assert torch.equal(found.isnan(), wanted.isnan())


@compiled
@pytest.mark.parametrize("size", [30.0, 1e4, 1e30])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_large_numbers_do_not_overflow(shape, size):
    edges = GRAPHS["one set"]()
    tensors = [None if x is None else x.detach() for x in inputs(edges, shape)]
    tensors[0], tensors[1] = (
        x.sign() * min(size, 1e15 if x is None else size) for x in tensors[:2]
    )
    if shape.kind == "inner":
        tensors[0] = tensors[0].sign()
    output = operators.attend(*tensors, edges, shape.kind, 0.3)
    assert bool(output.isfinite().all()) or size == 1e30


@compiled
def test_second_derivatives_are_those_of_the_plain_formulas():
    edges, shape = GRAPHS["one set"](), SHAPES["additive"]
    tensors = inputs(edges, shape)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    found = []
    for given, run in ((tensors, operators.attend), (exact, attend_edges)):
        output = run(*given, edges, shape.kind, 0.3)
        first = torch.autograd.grad(output.square().sum(), given, create_graph=True)
        total = sum(x.square().sum() for x in first)
        found.append([x.double() for x in torch.autograd.grad(total, given)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@compiled
def test_several_gradients_at_once():
    edges, shape = GRAPHS["one set"](), SHAPES["GATv2"]
    tensors = inputs(edges, shape)
    output = operators.attend(*tensors, edges, shape.kind, 0.3)
    there = [x for x in tensors if x is not None]
    grads = torch.randn(3, *output.shape)
    found = torch.autograd.grad(output, there, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        one = torch.autograd.grad(output, there, grad, retain_graph=True)
        torch.testing.assert_close([x[i] for x in found], list(one))


@compiled
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_opcheck(shape):
    edges = GRAPHS["two sets"]()
    tensors = [None if x is None else x.detach() for x in inputs(edges, shape)]
    given = (*tensors, operators.flat(edges), shape.kind, 0.3)
    torch.library.opcheck(torch.ops.regard.edges_forward, given)
    output, lse = torch.ops.regard.edges_forward(*given)
    torch.library.opcheck(torch.ops.regard.edges_backward, (*given, output, lse, output))


def test_sorted_edges_hold_both_orders():
    edge_index = torch.tensor([[2, 0, 1, 1, 0], [1, 1, 1, 0, 2]])
    edges = SortedEdges.of(edge_index, 3, self_loops=True)
    into, out = edges.into, edges.out
    assert into.starts.tolist() == [0, 2, 5, 7]
    assert into.other.tolist() == [1, 0, 2, 0, 1, 0, 2, 1], "the self-loop given is behind the last"
    assert into.edge.tolist() == [3, 5, 0, 1, 6, 4, 7, 2]
    assert out.starts.tolist() == [0, 3, 5, 7]
    assert out.other.tolist() == [0, 1, 2, 0, 1, 1, 2, 1]
    assert [into.other[e] for e in out.edge[:7].tolist()] == [0, 0, 0, 1, 1, 2, 2]
    assert edges.edges == 8 and edges.ends().tolist() == [0, 0, 1, 1, 1, 2, 2, 3]


@compiled
def test_counting_sorts_as_torch_does(monkeypatch):
    edge_index = random(300, 200, 20_000)
    found = SortedEdges.of(edge_index, (300, 200), self_loops=True)
    monkeypatch.setattr(graph, "MANY", 10**9)
    wanted = SortedEdges.of(edge_index, (300, 200), self_loops=True)
    for x, y in zip(operators.flat(found), operators.flat(wanted), strict=True):
        assert torch.equal(x, y) and x.dtype == y.dtype


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((torch.tensor([[0, 5], [0, 1]]), 3), r"edge_index\[0\] holds 5"),
        ((torch.zeros(2, 3), 3), "must be int64"),
        ((torch.zeros(2, 3, dtype=torch.long), -1), "nodes must be"),
    ],
)
def test_wrong_edges_are_refused(given, error):
    with pytest.raises((ValueError, TypeError), match=error):
        SortedEdges.of(*given)


def test_a_layer_refuses_edges_that_were_sorted_for_something_else():
    layer, x = GraphAttention(5, 4), torch.randn(6, 5)
    edge_index = random(6, 6, 9)
    with pytest.raises(ValueError, match=r"self_loops=False, but the layer has self_loops=True"):
        layer(x, SortedEdges.of(edge_index, 6))
    with pytest.raises(ValueError, match=r"for 7 sources and 7 targets"):
        layer(x, SortedEdges.of(edge_index, 7, self_loops=True))


@pytest.mark.parametrize("options", [{}, {"edge_dim": 3}, {"dropout": 0.5}, {"self_loops": False}])
def test_sorted_edges_stand_for_the_edges_given(options):
    layer = GraphAttention(5, 4, 2, **options).eval()
    x, edge_index = torch.randn(6, 5), random(6, 6, 15)
    rest = [torch.randn(15, 3)] if "edge_dim" in options else []
    edges = SortedEdges.of(edge_index, 6, self_loops=layer.self_loops)
    torch.testing.assert_close(layer(x, edges, *rest), layer(x, edge_index, *rest))
    found, wanted = layer.attend(x, edges, *rest), layer.attend(x, edge_index, *rest)
    torch.testing.assert_close(found, wanted)


SCORES = ["gatv2", "gat", "scaled_dot", "additive", "cosine", "gaussian", "bilinear"]


@compiled
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("bipartite", [True, False])
@pytest.mark.parametrize("name", SCORES)
def test_a_layer_by_kernels_is_the_plain_layer(name, bipartite, held, every_size):
    layer = GraphAttention(5, 4, 2, score=name, self_loops=not bipartite)
    x, edge_index = torch.randn(9, 5, requires_grad=True), random(9, 9, 30)
    given = (x, x.detach().mul(2)) if bipartite else x
    edges = SortedEdges.of(edge_index, 9, self_loops=layer.self_loops) if held else edge_index
    assert regard.explain(layer, given, edges)[0].plan.engine == "edges-cpu"
    output, wanted = layer(given, edges), layer.attend(given, edge_index).output
    torch.testing.assert_close(output, wanted)
    leaves, grad = [x, *layer.parameters()], torch.randn_like(output)
    found = torch.autograd.grad(output, leaves, grad)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, leaves, grad))


def test_what_is_not_served_says_why(every_size, monkeypatch):
    x, edge_index = torch.randn(6, 5), random(6, 6, 15)

    def reasons(layer, *rest, x=x):
        plan = regard.explain(layer, x, edge_index, *rest)[0].plan
        assert plan.engine == "edges-plain"
        return " ".join(plan.refused["edges-cpu"])

    assert "features add to the keys" in reasons(
        GraphAttention(5, 4, edge_dim=3), torch.randn(15, 3)
    )
    assert "no soft cap" in reasons(
        GraphAttention(5, 4, score=regard.stabilize.SoftCapped(regard.GATv2(4), 2.0))
    )
    assert "no activation 'sine'" in reasons(
        GraphAttention(5, 4, score=regard.Additive(4, activation="sine"))
    )
    assert "too precise" in reasons(GraphAttention(5, 4).double(), x=x.double())
    monkeypatch.setattr(
        edge_plan, "absent", lambda: "numba is not installed: pip install 'regard[cpu]'"
    )
    assert "pip install 'regard[cpu]'" in reasons(GraphAttention(5, 4))
    monkeypatch.setattr(edge_plan, "FEW_ON_CPU", 10**6)
    assert "are few" in reasons(GraphAttention(5, 4))


def test_without_numba_the_layer_is_plain():
    code = (
        "import sys; sys.modules['numba'] = None; import torch, regard;"
        "layer = regard.nn.GraphAttention(16, 16, 8); x = torch.randn(3000, 16);"
        "e = torch.randint(3000, (2, 9000)); plan = regard.explain(layer, x, e)[0].plan;"
        "layer(x, e).sum().backward();"
        "assert plan.engine == 'edges-plain' and 'regard[cpu]' in plan.refused['edges-cpu'][0], plan"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_library_imports_no_numba():
    code = "import sys, regard; assert not {'numba', 'triton', 'llvmlite'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@compiled
def test_dropout_in_training_is_plain(every_size):
    layer, x, edge_index = GraphAttention(5, 4, dropout=0.5), torch.randn(6, 5), random(6, 6, 15)
    assert not torch.equal(layer(x, edge_index), layer(x, edge_index))


@compiled
def test_sorted_edges_in_a_compiled_layer(every_size):
    layer, x, edge_index = GraphAttention(5, 4), torch.randn(6, 5), random(6, 6, 15)
    edges = SortedEdges.of(edge_index, 6, self_loops=True)
    compiled_layer = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled_layer(x, edges), layer(x, edges))


@compiled
@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.jacrev, torch.func.hessian])
def test_transforms_pass_through_the_plain_formulas(transform, every_size):
    layer, x, edge_index = GraphAttention(3, 2), torch.randn(4, 3), random(4, 4, 7)
    found = transform(lambda x: layer(x, edge_index).square().sum())(x)
    layer.double()
    wanted = transform(lambda x: layer(x, edge_index).square().sum())(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
