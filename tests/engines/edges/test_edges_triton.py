"""Triton's kernels over edges: in the interpreter, compiled for GPUs that are not here, and on one that is."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard import SortedEdges
from regard.engines.edges import gpu, operators
from regard.engines.edges.graph import divided
from regard.engines.edges.plain import attend_edges
from regard.engines.gpu import HAS_TRITON
from regard.nn import GraphAttention

from .graphs import (
    GRAPHS,
    SHAPES,
    Shape,
    check,
    in_pieces,
    inputs,
    output_gradient,
    random,
    results,
)

SCRIPT = Path(__file__).with_name("compiling.py")
# Bytes of stack that a thread may take, in place of a register or two.
STACK = 8
# KiB of shared memory of a program; see `tests/engines/triton/test_compiling.py`.
SHARED = {80: 99, 90: 227}
QUICK = ("GATv2, 8 x 16, divided", "GAT, 8 x 8", "additive, 8 x 16", "dot, 8 x 16")


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(gpu, "INTERPRETS", True)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", ["GATv2", "GAT", "dot"])
def test_the_interpreter_computes_the_plain_formulas(shape, name, interpreted):
    check(GRAPHS[name](), SHAPES[shape])


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["a large target", "a large source", "self-loops added"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_large_nodes_are_divided(shape, name, interpreted):
    check(in_pieces(GRAPHS[name]()), shape)


@pytest.mark.interpreted
def test_more_heads_than_a_program_takes(interpreted):
    check(in_pieces(GRAPHS["one set"](), 4), Shape("leaky_relu", 70, 3, 6))


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["two sets", "a large target"])
def test_nan_in_a_source_reaches_its_targets_alone(name, interpreted):
    edges, shape = in_pieces(GRAPHS[name]()), SHAPES["GATv2"]
    tensors = inputs(edges, shape)
    with torch.no_grad():
        clean = operators.attend(*tensors, edges, shape.kind, 0.3)
        tensors[1][2] = torch.nan
        found = operators.attend(*tensors, edges, shape.kind, 0.3)
    touched = torch.zeros(edges.targets, dtype=torch.bool)
    touched[edges.edge_index[1][edges.edge_index[0] == 2]] = True
    assert bool(found[touched].isnan().all())
    assert torch.equal(found[~touched], clean[~touched])


@pytest.mark.parametrize("most", [1, 2, 7])
def test_pieces_hold_every_edge_once(most):
    for name, make in GRAPHS.items():
        side = divided(make().into, most)
        if side.pieces is None:
            continue
        nodes, held = side.starts.shape[0] - 1, {}
        rows = zip(*(x.tolist() for x in side.pieces[:4]), strict=True)
        for node, begin, end, slot in rows:
            if node < nodes:
                assert end - begin <= most, name
                held.setdefault(node, []).append((begin, end, slot))
        assert sorted(held) == list(range(nodes)), name
        for node, parts in held.items():
            edges = [e for begin, end, _ in parts for e in range(begin, end)]
            assert edges == list(range(int(side.starts[node]), int(side.starts[node + 1]))), name
        large = [node for node in side.pieces.large.tolist() if node < nodes]
        assert large == [node for node, parts in held.items() if len(parts) > 1], name
        for at, node in enumerate(large):
            slots = [slot for *_, slot in held[node]]
            first, count = int(side.pieces.first[at]), int(side.pieces.count[at])
            assert slots == list(range(first, first + count)), name
            assert first + count <= gpu.slots(side), name


def compiled(capability: int, names: tuple[str, ...], cache: Path) -> list[dict]:
    own = {name: x for name, x in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(capability), *names],
        check=False,
        env={**own, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(
    not HAS_TRITON or (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="needs Triton and its compiler, which come on Linux",
)
@pytest.mark.parametrize(
    ("capability", "names"),
    [
        (90, QUICK),
        pytest.param(80, (), marks=pytest.mark.slow),
        pytest.param(90, (), marks=pytest.mark.slow),
    ],
)
def test_kernels_compile_without_spills(capability, names, tmp_path):
    kernels = compiled(capability, names, tmp_path)
    assert len({x["kernel"] for x in kernels}) == 5
    for x in kernels:
        assert x["stack"] <= STACK, x
        assert x["shared"] <= SHARED[capability] * 1024, x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_gpu_computes_the_plain_formulas(shape, name, dtype):
    check(GRAPHS[name]().to("cuda"), shape, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bits_are_the_same_200_times(shape):
    ends = random(3000, 3000, 40_000)
    ends[:, :5000] = 7  # a node with many edges at both ends
    edges = SortedEdges.of(ends.cuda(), 3000)
    assert edges.into.pieces is not None
    tensors = inputs(edges, shape, device="cuda")
    grad = output_gradient(tensors, shape)
    first = results(tensors, edges, shape.kind, grad, operators.attend)
    for _ in range(200):
        again = results(tensors, edges, shape.kind, grad, operators.attend)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("flip", [False, True])
def test_a_node_with_a_million_neighbours(flip):
    count, nodes = 1_000_000, 1000
    ends = torch.stack([torch.arange(count) % nodes, torch.zeros(count, dtype=torch.long)])
    edges = SortedEdges.of((ends.flip(0) if flip else ends).cuda(), nodes)
    check(edges, SHAPES["GATv2"], device="cuda", terms=100.0)


@pytest.mark.gpu
def test_more_numbers_than_32_bits_count():
    """2**31 numbers in the keys and more: the last sources are read, and get their gradients."""
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of GPU memory")
    sources, heads, width, targets = 2**24 + 64, 8, 16, 64
    last = torch.arange(sources - targets, sources)
    edges = SortedEdges.of(torch.stack([last, torch.arange(targets)]).cuda(), (sources, targets))
    query = torch.randn(targets, heads, width, device="cuda")
    key = torch.randn(sources, heads, width, device="cuda", requires_grad=True)
    v = torch.randn(heads, width, device="cuda")
    output = operators.attend(query, key, v, None, edges, "leaky_relu", 0.2)
    torch.testing.assert_close(output, key[-targets:])  # one edge each: the weight is 1
    (grad,) = torch.autograd.grad(output.sum(), key)
    # The backward sums a logit in another order than the forward: its weight is 1 but for rounding.
    torch.testing.assert_close(grad[-targets:], torch.ones_like(grad[-targets:]), atol=1e-4, rtol=0)
    assert not bool(grad[:-targets].any())


@pytest.mark.gpu
def test_more_edge_numbers_than_32_bits_count():
    """E x H beyond 2**31 in one call, which only tensors of edges would feel."""
    if torch.cuda.mem_get_info()[0] < 60 * 2**30:
        pytest.skip("needs 60 GiB of GPU memory")
    nodes, count, heads = 100_000, 2**27 + 1000, 16
    ends = torch.randint(nodes, (2, count), device="cuda")
    edges = SortedEdges.of(ends, nodes)
    query = torch.randn(nodes, heads, 1, device="cuda", requires_grad=True)
    value = torch.ones(nodes, heads, 1, device="cuda", requires_grad=True)
    v = torch.ones(heads, 1, device="cuda")
    output = operators.attend(query, query.detach(), v, value, edges, "leaky_relu", 0.2)
    torch.testing.assert_close(output, torch.ones_like(output))
    of_query, of_value = torch.autograd.grad(output.sum(), (query, value))
    torch.testing.assert_close(of_query, torch.zeros_like(of_query), atol=1e-3, rtol=0)
    torch.testing.assert_close(float(of_value.sum()), float(output.numel()), rtol=1e-4, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gatv2", "gat", "scaled_dot", "additive", "gaussian"])
def test_a_layer_by_kernels_is_the_plain_layer(name):
    layer = GraphAttention(24, 16, 8, score=name).cuda()
    x = torch.randn(3000, 24, device="cuda", requires_grad=True)
    edge_index = random(3000, 3000, 20_000).cuda()
    edges = SortedEdges.of(edge_index, 3000, self_loops=True)
    assert regard.explain(layer, x, edge_index)[0].plan.engine == "edges-triton"
    assert regard.explain(layer, x, edges)[0].plan.engine == "edges-triton"
    # Weights are asked for, which PyTorch's operations have.
    output, wanted = layer(x, edges), layer.attend(x, edge_index).output
    torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-4)
    leaves, grad = [x, *layer.parameters()], torch.randn_like(output)
    found = torch.autograd.grad(output, leaves, grad)
    wanted = torch.autograd.grad(wanted, leaves, grad)
    largest = max(float(one.abs().max()) for one in wanted)
    for one, other in zip(found, wanted, strict=True):
        # Of a bias of the keys of a dot product the gradient is 0, and what is computed is rounding.
        size = max(float(other.abs().max()), 1e-2 * largest)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * size)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_the_host_does_not_wait():
    layer = GraphAttention(24, 16, 8).cuda()
    x, edge_index = torch.randn(3000, 24, device="cuda"), random(3000, 3000, 20_000).cuda()
    layer(x, SortedEdges.of(edge_index, 3000, self_loops=True)).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x, SortedEdges.of(edge_index, 3000, self_loops=True)).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_a_call_and_its_gradient_are_captured_in_a_cuda_graph():
    shape, edges = SHAPES["GATv2"], SortedEdges.of(random(500, 500, 9000).cuda(), 500)
    tensors = inputs(edges, shape, device="cuda")
    grad = output_gradient(tensors, shape)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wanted = results(tensors, edges, shape.kind, grad, operators.attend)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        found = results(tensors, edges, shape.kind, grad, operators.attend)
    captured.replay()
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


@pytest.mark.gpu
def test_second_derivatives_on_a_gpu():
    edges, shape = GRAPHS["one set"]().to("cuda"), SHAPES["additive"]
    tensors = inputs(edges, shape, device="cuda")
    exact = [x.detach().double().requires_grad_() for x in tensors]
    found = []
    for given, run in ((tensors, operators.attend), (exact, attend_edges)):
        output = run(*given, edges, shape.kind, 0.3)
        first = torch.autograd.grad(output.square().sum(), given, create_graph=True)
        total = sum(x.square().sum() for x in first)
        found.append([x.double() for x in torch.autograd.grad(total, given)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
