"""Softmax, sums and scores over the edges of a node."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.engines.edges.plain import at, edge_logits, edge_softmax, sum_at
from regard.nn.graph.edges import FILLS, with_self_loops
from regard.scores import GAT
from regard.stabilize import Normalized, Tempered
from regard.testing import check_score

TARGET = torch.tensor([0, 3, 0, 1, 3, 3])


def dense_softmax(logits, target, nodes):
    """The same by a loop over the nodes."""
    weights = torch.zeros_like(logits)
    for node in range(nodes):
        weights[target == node] = logits[target == node].softmax(0)
    return weights


def test_softmax_is_that_of_each_node_alone():
    logits = torch.randn(6, 2, dtype=torch.double)
    torch.testing.assert_close(edge_softmax(logits, TARGET, 5), dense_softmax(logits, TARGET, 5))


def test_gradients_of_softmax_and_sum():
    logits = torch.randn(6, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: edge_softmax(x, TARGET, 5), logits)
    assert torch.autograd.gradcheck(lambda x: sum_at(x, TARGET, 5), logits)
    assert torch.autograd.gradgradcheck(lambda x: edge_softmax(x, TARGET, 5), logits)


@pytest.mark.parametrize("shift", [1e4, -1e4, 3e38])
def test_large_logits_do_not_overflow(shift):
    """pyg#53: without the largest subtracted, exp overflows at 89 and vanishes at -104."""
    logits = torch.randn(6, 2).sign() + shift
    weights = edge_softmax(logits, TARGET, 5)
    torch.testing.assert_close(weights, dense_softmax(logits, TARGET, 5))
    torch.testing.assert_close(sum_at(weights, TARGET, 5)[[0, 1, 3]], torch.ones(3, 2))


def test_weights_sum_to_one_however_many_edges():
    """1e-16 added to the sum is 0 in fp16; here the sum is at least 1 without it (pyg PR 2106)."""
    logits = torch.randn(50_000, 1).half()
    weights = edge_softmax(logits, torch.zeros(50_000, dtype=torch.long), 1)
    assert weights.dtype == torch.float32
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5)
    assert bool((weights > 0).all())


def test_minus_infinity_hides_an_edge_and_nan_stays_with_its_node():
    logits = torch.randn(6, 2)
    logits[0], logits[3], logits[1, 0] = -torch.inf, -torch.inf, torch.nan
    weights = edge_softmax(logits, TARGET, 5)
    assert torch.equal(weights[0], torch.zeros(2)) and torch.equal(weights[2], torch.ones(2))
    assert torch.equal(weights[3], torch.zeros(2)), "the only edge of its node"
    assert bool(weights[[1, 4, 5], 0].isnan().all())
    assert not bool(weights[[0, 2, 3]].isnan().any() or weights[:, 1].isnan().any())


def test_a_hidden_edge_has_no_gradient():
    logits = torch.randn(6, 2, requires_grad=True)
    hidden = logits.masked_fill(torch.arange(6).unsqueeze(-1) == 3, -torch.inf)
    (grad,) = torch.autograd.grad(edge_softmax(hidden, TARGET, 5).square().sum(), logits)
    assert bool(grad.isfinite().all()) and torch.equal(grad[3], torch.zeros(2))


def test_no_edges_and_no_nodes():
    none = torch.zeros(0, dtype=torch.long)
    assert edge_softmax(torch.zeros(0, 2), none, 3).shape == (0, 2)
    assert edge_softmax(torch.zeros(0, 2), none, 0).shape == (0, 2)
    assert torch.equal(sum_at(torch.zeros(0, 2), none, 3), torch.zeros(3, 2))


def test_the_cpu_gives_the_same_bits_each_time():
    logits, target = torch.randn(5000, 4), torch.randint(7, (5000,))
    first = edge_softmax(logits, target, 7)
    for _ in range(3):
        assert torch.equal(edge_softmax(logits, target, 7), first)


@pytest.mark.gpu
@pytest.mark.parametrize("fill", ["mean", "add", "min", "max"])
def test_torch_can_make_the_gpu_deterministic(fill):
    """Sums by atomics differ from run to run; torch's deterministic mode must not refuse ours."""
    edge_index = torch.randint(50, (2, 5000), device="cuda")
    given = torch.randn(5000, 4, device="cuda", requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        found = []
        for _ in range(2):
            edges = with_self_loops(edge_index, given, 50, fill)
            weights = edge_softmax(edges.feature, edges.target, 50)
            output = sum_at(weights * at(given, edges.source), edges.target, 50)
            found.append([output, *torch.autograd.grad(output.square().sum(), given)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


SCORES = {
    "dot": lambda: regard.Dot(),
    "scaled_dot": lambda: regard.ScaledDot(),
    "cosine": lambda: regard.Cosine(2),
    "gaussian": lambda: regard.Gaussian(heads=2),
    "bilinear": lambda: regard.Bilinear(4, 4, 2),
    "low_rank": lambda: regard.LowRank(4, 4, 3, 2),
    "additive": lambda: regard.Additive(4, 2, bias=True, weight_norm=True),
    "gatv2": lambda: regard.GATv2(4, 2, bias=True),
    "gat": lambda: GAT(4, 2),
    "tempered": lambda: Tempered(regard.Gaussian(heads=None), 0.5, heads=2),
    "normalized": lambda: Normalized(regard.ScaledDot(), 4),
}


@pytest.mark.parametrize("name", SCORES)
def test_the_score_of_an_edge_is_that_of_the_pair(name):
    score = SCORES[name]().double()
    q, k = torch.randn(2, 5, 4, dtype=torch.double), torch.randn(2, 7, 4, dtype=torch.double)
    source, target = torch.randint(7, (12,)), torch.randint(5, (12,))
    wanted = regard.score(q[None], k[None], score)[0, :, target, source].T
    torch.testing.assert_close(edge_logits(score.lower(q, k), target, source), wanted)
    by_edge = edge_logits(score.lower(q, k[:, source]), target, None)
    torch.testing.assert_close(by_edge, wanted)


@pytest.mark.parametrize("fill", FILLS)
def test_self_loops_take_the_features_of_the_edges_to_their_node(fill):
    edge_index = torch.tensor([[0, 1, 2, 2, 1], [1, 1, 1, 0, 3]])
    feature = torch.tensor([[2.0], [100.0], [4.0], [3.0], [7.0]])
    edges = with_self_loops(edge_index, feature, 3, fill)
    empty = 1.0 if fill == "mul" else 0.0
    wanted = {"mean": 3.0, "add": 6.0, "min": 2.0, "max": 4.0, "mul": 8.0}[fill]
    assert edges.feature.flatten().tolist() == [2, 0, 4, 3, 7, 3, wanted, empty]
    assert edges.hidden.tolist() == [False, True, False, False, False, False, False, False]
    assert edges.source.tolist() == [0, 1, 2, 2, 1, 0, 1, 2]
    assert edges.target.tolist() == [1, 1, 1, 0, 3, 0, 1, 2]


def gat_formula(score, q, k):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    a = torch.einsum("bhqd,hd->bhq", q, score.query_vector)
    b = torch.einsum("bhkd,hd->bhk", k, score.key_vector)
    return torch.nn.functional.leaky_relu(a.unsqueeze(-1) + b.unsqueeze(-2), 0.2)


def test_gat_keeps_the_contract_of_a_score():
    build = lambda query_dim, key_dim, heads, key_heads: GAT(query_dim, heads)  # noqa: E731
    assert check_score(build, gat_formula, kinked=True, dtypes=("fp64", "bf16")).served > 0


def test_gat_starts_with_scores_of_variance_one():
    for hidden in (4, 64, 512):
        score = GAT(hidden, heads=64)
        logits = regard.score(
            torch.randn(64, 50, hidden)[None], torch.randn(64, 50, hidden)[None], score
        )
        assert 0.8 < float(logits.detach().var()) < 1.25, hidden


def test_gat_score_is_refused_wrong_widths_and_scales_in_place():
    score = GAT(4, 2)
    with pytest.raises(ValueError, match="GAT was built for query dim 4"):
        score(torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3))
    q = torch.randn(1, 2, 5, 4)
    before = score(q, q)
    score.rescale_(torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(score(q, q), before * torch.tensor([2.0, 0.5]).view(2, 1, 1))


def test_gat_logits_may_pass_the_range_of_fp16():
    score = GAT(64).half()
    with torch.no_grad():
        score.query_vector.fill_(1)
    q, k = torch.full((1, 1, 2, 64), 2e3).half(), torch.randn(1, 1, 3, 64).half()
    assert bool(regard.attention(q, k, k, score).isfinite().all())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sums_of_a_gather_backward_are_in_fp32(device):
    x = torch.zeros(1, 1, dtype=torch.bfloat16, device=device, requires_grad=True)
    at(x, torch.zeros(4096, dtype=torch.long, device=device)).sum().backward()
    assert float(x.grad) == 4096
