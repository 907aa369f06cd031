"""The series through the wide kernels on a GPU: errors beside exact attention, masks, dropout, bits, memory."""

import pytest
import torch

import regard
from regard import Additive, Mask
from regard.sine import escapes

pytestmark = pytest.mark.gpu
HEADS, VALUE, BATCH = 4, 64, 2
MASKS = ("none", "causal", "lengths", "causal, lengths", "window", "segments", "segments, window")
BF16 = torch.bfloat16


def inputs(length=640, keys=None, hidden=64, value_dim=VALUE, key_heads=HEADS, spread=1.0):
    keys = keys or length
    q = spread * torch.randn(BATCH, HEADS, length, hidden, device="cuda")
    k = spread * torch.randn(BATCH, key_heads, keys, hidden, device="cuda")
    v = torch.randn(BATCH, key_heads, keys, value_dim, device="cuda")
    score = Additive(hidden, HEADS).to("cuda", BF16)
    return *(x.to(BF16).requires_grad_() for x in (q, k, v)), score


def found(q, k, v, score, grad, **options):
    out = regard.attention(q, k, v, score, **options)
    return out.detach(), *torch.autograd.grad(out, [q, k, v, score.v], grad)


def truth(q, k, v, score, grad, **options):
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    double = Additive(q.shape[-1], HEADS).cuda().double()
    double.load_state_dict(score.state_dict())
    return found(*wide, double, grad.double(), engine="reference", **options)


def errors(ours, wanted):
    return [float((x.double() - y).norm() / y.norm()) for x, y in zip(ours, wanted, strict=True)]


def gradient(q, v):
    return torch.randn(*q.shape[:3], v.shape[-1], device="cuda", dtype=BF16)


def masks(queries, keys):
    lengths = {
        "keys": torch.tensor([keys // 3, keys], device="cuda"),
        "queries": torch.tensor([queries, queries // 2], device="cuda"),
    }
    ids = [torch.arange(n, device="cuda").mul(3).div(n).long() - 1 for n in (queries, keys)]
    return {
        "none": None,
        "causal": Mask.causal("top_left"),
        "lengths": Mask.lengths(**lengths),
        "causal, lengths": Mask.causal() & Mask.lengths(**lengths),
        "window": Mask.window(left=70, right=9),
        "segments": Mask.segments(*ids),
        "segments, window": Mask.segments(*ids) & Mask.window(left=40),
    }


@pytest.mark.parametrize("hidden", [16, 48])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(640, 640), (333, 517)])
def test_masks(queries, keys, name, hidden):
    q, k, v, score = inputs(queries, keys, hidden)
    grad, options = gradient(q, v), {"mask": masks(queries, keys)[name]}
    escapes.reset()
    ours = found(q, k, v, score, grad, engine="sine", **options)
    assert escapes.count("cuda") == (1, 0)
    assert max(errors(ours, truth(q, k, v, score, grad, **options))) < 1e-2


@pytest.mark.parametrize("name", ["lengths", "window", "segments"])
def test_what_leaves_the_range_is_exact_under_masks(name):
    q, k, v, score = inputs(300, 400, spread=30.0)
    grad, options = gradient(q, v), {"mask": masks(300, 400)[name]}
    escapes.reset()
    ours = found(q, k, v, score, grad, engine="sine", **options)
    assert escapes.count("cuda") == (1, 1)
    wanted = truth(q, k, v, score, grad, **options)
    exact = errors(found(q, k, v, score, grad, engine="triton", **options), wanted)
    for own, other in zip(errors(ours, wanted), exact, strict=True):
        assert own <= 2 * max(other, 2.5e-3)


@pytest.mark.parametrize("value_dim", [1, 64, 100, 256])
@pytest.mark.parametrize("hidden", [33, 64, 200])
@pytest.mark.parametrize("key_heads", [4, 1])
def test_widths_and_grouped_heads(key_heads, hidden, value_dim):
    q, k, v, score = inputs(257, 130, hidden, value_dim, key_heads)
    grad = gradient(q, v)
    ours = found(q, k, v, score, grad, engine="sine")
    assert max(errors(ours, truth(q, k, v, score, grad))) < 1e-2


def test_by_default_it_keeps_to_the_error_of_bf16():
    q, k, v, score = inputs(4096)
    plan = regard.explain(q, k, v, score)
    assert plan.engine == "sine" and plan.error_bound < 1.2e-2
    grad = gradient(q, v)
    escapes.reset()
    ours = found(q, k, v, score, grad)
    exact = found(q, k, v, score, grad, engine="triton")
    assert escapes.count("cuda") == (1, 0)
    assert max(errors(ours, [x.double() for x in exact])) < 6e-3


@pytest.mark.parametrize("hidden", [16, 64])
def test_dropout_drops_the_weights_that_exact_attention_drops(hidden):
    """The same seed gives the same weights, on whichever kernels the call runs."""
    q, k, v, score = inputs(512, hidden=hidden)
    grad, results = gradient(q, v), []
    for engine in ("sine", "triton"):
        torch.manual_seed(5)
        results.append(found(q, k, v, score, grad, engine=engine, dropout=0.2))
    assert max(errors(results[0], [x.double() for x in results[1]])) < 1e-2


def test_a_call_has_the_same_bits_each_time():
    q, k, v, score = inputs(1000)
    grad = gradient(q, v)
    first = found(q, k, v, score, grad, engine="sine")
    for _ in range(50):
        for x, y in zip(found(q, k, v, score, grad, engine="sine"), first, strict=True):
            assert torch.equal(x, y)


def test_a_captured_graph_decides_anew_at_every_replay():
    q, k, v, score = (x.detach() if isinstance(x, torch.Tensor) else x for x in inputs(300))
    mask = masks(300, 300)["lengths"]
    call = lambda: regard.attention(q, k, v, score, engine="sine", mask=mask)  # noqa: E731
    near = q.clone()
    with torch.no_grad():
        wanted = {1: call()}
        q.copy_(30 * near)
        wanted[30] = call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()
        for scale in (1, 30, 1):
            q.copy_(scale * near)
            graph.replay()
            assert torch.equal(out, wanted[scale])


def test_the_workspace_is_bounded():
    q, k, v, score = inputs(4096)
    q, k, v = (x.detach().repeat(1, 4, 1, 1).requires_grad_() for x in (q, k, v))
    score = Additive(64, 4 * HEADS).to("cuda", BF16)
    grad = gradient(q, v)
    found(q, k, v, score, grad, engine="sine")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    results = found(q, k, v, score, grad, engine="sine")
    own = sum(x.numel() * x.element_size() for x in results)
    assert torch.cuda.max_memory_allocated() - before - own < 2**30
