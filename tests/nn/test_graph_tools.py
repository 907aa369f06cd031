"""What people do with a layer: compile, export, cast, copy, save, transform."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters
from torch.func import functional_call, stack_module_state

from regard.nn.graph import GraphAttention

NAMES = ["gatv2", "gat", "scaled_dot", "cosine", "gaussian", "bilinear", "additive"]


def build(name="gatv2", **options):
    return GraphAttention(5, 4, 2, score=name, edge_dim=3, residual=True, **options)


def graph(nodes=6, edges=9):
    return torch.randn(nodes, 5), torch.randint(nodes, (2, edges)), torch.randn(edges, 3)


def check_compiled(layer, compiled):
    """Sizes change from call to call; one graph serves them all."""
    for sizes in ((6, 9), (7, 12), (9, 30)):
        given = graph(*sizes)
        output, wanted = compiled(*given), layer(*given)
        torch.testing.assert_close(output, wanted)
        parameters = list(layer.parameters())
        found = torch.autograd.grad(output.square().sum(), parameters)
        torch.testing.assert_close(found, torch.autograd.grad(wanted.square().sum(), parameters))


@pytest.mark.parametrize(
    "name",
    [
        "gatv2",
        "scaled_dot",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("gat", "cosine", "gaussian")),
    ],
)
def test_compiles_in_one_graph_for_any_number_of_edges(name):
    """pyg#9603: GATv2Conv could not be compiled."""
    torch._dynamo.reset()
    counters.clear()
    layer = build(name)
    check_compiled(layer, torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager"))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_compiles_to_native_code():
    torch._dynamo.reset()
    layer = build()
    check_compiled(layer, torch.compile(layer, fullgraph=True, dynamic=True))


@pytest.mark.skipif(
    torch.__version__ < (2, 9), reason="torch.export of torch 2.6 warns of its own parameter nodes"
)
@pytest.mark.parametrize("self_loops", [True, False])
def test_exports_for_any_graph(self_loops):
    layer = build(self_loops=self_loops)
    nodes, edges = torch.export.Dim("nodes"), torch.export.Dim("edges")
    shapes = ({0: nodes}, {1: edges}, {0: edges})
    program = torch.export.export(layer, graph(), dynamic_shapes=shapes)
    given = graph(11, 40)
    torch.testing.assert_close(program.module()(*given), layer(*given))


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name):
    layer, given = build(name), graph()
    wanted = layer(*given)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(*given)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), wanted, rtol=0.05, atol=0.08)
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_parameters_and_over_nodes(name):
    layers, given = [build(name) for _ in range(3)], graph()
    parameters, buffers = stack_module_state(layers)
    base = build(name)

    def call(parameters, buffers):
        return functional_call(base, (parameters, buffers), given)

    found = torch.func.vmap(call)(parameters, buffers)
    torch.testing.assert_close(found, torch.stack([layer(*given) for layer in layers]))
    x = torch.randn(4, 6, 5)
    found = torch.func.vmap(lambda x: base(x, *given[1:]))(x)
    torch.testing.assert_close(found, torch.stack([base(one, *given[1:]) for one in x]))


@pytest.mark.parametrize("name", NAMES)
def test_func_grad_over_parameters(name):
    layer, given = build(name), graph()
    parameters = {key: p.detach() for key, p in layer.named_parameters()}
    found = torch.func.grad(lambda p: functional_call(layer, p, given).square().sum())(parameters)
    wanted = torch.autograd.grad(layer(*given).square().sum(), list(layer.parameters()))
    torch.testing.assert_close(list(found.values()), list(wanted))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])  # noqa: S301 - written one step earlier
def test_copies_compute_the_same_and_share_nothing(name, copied):
    layer, given = build(name), graph()
    other = copied(layer)
    assert torch.equal(other(*given), layer(*given))
    with torch.no_grad():
        other.key.weight.add_(1)
    assert not torch.equal(other(*given), layer(*given))


@pytest.mark.parametrize("name", NAMES)
def test_safetensors(name, tmp_path):
    layer, given = build(name, gate=True), graph()
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    other = build(name, gate=True)
    other.load_state_dict(load_file(tmp_path / "layer.safetensors"))
    assert torch.equal(other(*given), layer(*given))


@pytest.mark.parametrize("score", ["gat", "gatv2"])
def test_shared_weights_are_saved_once(score, tmp_path):
    """One tensor under two names cannot be saved by safetensors."""
    layer = GraphAttention(5, 4, 2, score=score, share_weights=True)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    assert "query.weight" not in load_file(tmp_path / "layer.safetensors")


def test_views_are_as_good_as_copies():
    layer, (x, edge_index, feature) = build(), graph()
    wide = torch.randn(6, 10)
    wide[:, ::2] = x
    given = (wide[:, ::2], edge_index.T.contiguous().T, feature.T.contiguous().T)
    torch.testing.assert_close(layer(*given), layer(x, edge_index, feature))


def test_vmap_over_edges():
    layer, (x, edge_index, feature) = build(), graph()
    several = torch.stack([edge_index, edge_index.flip(0)])
    found = torch.func.vmap(lambda edges: layer(x, edges, feature))(several)
    wanted = [layer(x, edges, feature) for edges in several]
    torch.testing.assert_close(found, torch.stack(wanted))


def test_another_dtype_on_meta_is_refused_as_elsewhere():
    layer, (x, *rest) = build().to("meta"), (t.to("meta") for t in graph())
    with pytest.raises(TypeError, match=r"x is torch.float64 but the layer"):
        layer(x.double(), *rest)


def test_on_meta_only_shapes_are_computed():
    layer = build().to("meta")
    output = layer(*(t.to("meta") for t in graph()))
    assert output.shape == (6, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_computes_what_the_cpu_computes(name):
    layer, given = build(name), graph(50, 400)
    wanted = layer(*given)
    wanted.square().sum().backward()
    other = copy.deepcopy(layer).cuda()
    other.zero_grad()
    output = other(*(t.cuda() for t in given))
    output.square().sum().backward()
    torch.testing.assert_close(output.cpu(), wanted, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(other.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("fill", ["mean", 0.5, torch.ones(3)], ids=["mean", "number", "tensor"])
def test_the_gpu_does_not_wait(fill):
    layer, given = build(fill=fill).cuda(), [t.cuda() for t in graph()]
    layer(*given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(*given).sum().backward()  # a wait for the device raises
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
