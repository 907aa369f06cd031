"""Scores: formulas by hand, parameters, starting variance, what is never built, and your own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import (
    Activation,
    Additive,
    Bilinear,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    InnerScore,
    LowRank,
    PairwiseScore,
    Projected,
    ScaledDot,
    Score,
)
from regard.engines.cpu import tiles
from regard.forms import InnerKey, InnerQuery, PairwiseKey, PairwiseQuery


def one_pair(query: list[float], key: list[float], score: Score | str) -> float:
    """The score of one query and one key."""
    logits = regard.score(torch.tensor([query]), torch.tensor([key]), score)
    assert logits.shape == (1, 1)
    return logits.item()


def set_parameters(score: Score, **values) -> Score:
    with torch.no_grad():
        for name, value in values.items():
            getattr(score, name).copy_(torch.tensor(value))
    return score


Q, K = [1.0, 2.0], [3.0, -1.0]
ADDITIVE = 0.5 * math.tanh(4) - 2 * math.tanh(1)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("dot", 1.0),
        ("scaled_dot", 1 / math.sqrt(2)),
        (None, 1 / math.sqrt(2)),
        ("cosine", math.sqrt(2) / math.sqrt(5 * 10)),
        (Cosine(scale=3.0), 3 / math.sqrt(50)),
        (set_parameters(Cosine(scale=3.0), gain=[2.0]), 6 / math.sqrt(50)),
        ("gaussian", -13 / (2 * math.sqrt(2))),
        (Gaussian(bandwidth=2.0), -13 / 8),
        (set_parameters(Gaussian(bandwidth=2.0), log_factor=[math.log(3)]), -13 / 72),
        (set_parameters(Bilinear(2, 2), weight=[[[1.0, 2.0], [0.0, -1.0]]]), 3.0),
        (
            set_parameters(LowRank(2, 2, 1), query_factor=[[1.0, 1.0]], key_factor=[[2.0, 0.0]]),
            18.0,
        ),
        (set_parameters(Additive(2), v=[[0.5, -2.0]]), ADDITIVE),
        (
            set_parameters(Additive(2, bias=True), v=[[0.5, -2.0]], bias=[[-4.0, 0.0]]),
            -2 * math.tanh(1),
        ),
        (
            set_parameters(Additive(2, weight_norm=True), v=[[3.0, 4.0]], gain=[10.0]),
            6 * math.tanh(4) + 8 * math.tanh(1),
        ),
        (set_parameters(GATv2(2), v=[[0.5, -2.0]]), 0.0),
        (set_parameters(GATv2(2, bias=True), v=[[1.0, 1.0]], bias=[[-9.0, 0.0]]), -1 + 1.0),
        (
            set_parameters(
                GATv2(2, negative_slope=0.5, bias=True), v=[[1.0, 1.0]], bias=[[-9.0, 0.0]]
            ),
            -2.5 + 1.0,
        ),
        (
            set_parameters(
                Projected(Dot(), 2, 2, width=1), query_weight=[[1.0, 1.0]], key_weight=[[2.0, 0.0]]
            ),
            18.0,
        ),
        (
            set_parameters(
                Projected(Dot(), 2, 2, width=1, bias=True),
                query_weight=[[1.0, 1.0]],
                key_weight=[[2.0, 0.0]],
                query_bias=[1.0],
                key_bias=[-1.0],
            ),
            20.0,
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_formula_by_hand(score, expected):
    assert one_pair(Q, K, score) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_unequal_dims_by_hand():
    """Query dim 2, key dim 3."""
    bilinear = set_parameters(Bilinear(2, 3), weight=[[[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]])
    assert one_pair([1.0, 2.0], [3.0, 4.0, 5.0], bilinear) == pytest.approx(13 + 8)
    projected = set_parameters(
        Projected(Additive(1), 2, 3),
        query_weight=[[0.1, 0.0]],
        key_weight=[[0.0, 0.0, 0.1]],
    )
    set_parameters(projected.score, v=[[2.0]])
    assert one_pair([1.0, 2.0], [3.0, 4.0, 5.0], projected) == pytest.approx(2 * math.tanh(0.6))


HEADS = 4
COUNTS = {
    "dot": (Dot(), 0),
    "scaled_dot": (ScaledDot(), 0),
    "cosine": (Cosine(HEADS), HEADS),
    "cosine fixed": (Cosine(None), 0),
    "gaussian": (Gaussian(heads=HEADS), HEADS),
    "gaussian fixed": (Gaussian(heads=None), 0),
    "bilinear": (Bilinear(8, 6, HEADS), HEADS * 8 * 6),
    "low_rank": (LowRank(8, 6, 3, HEADS), 3 * HEADS * (8 + 6)),
    "low_rank grouped": (LowRank(8, 6, 3, HEADS, key_heads=2), 3 * (HEADS * 8 + 2 * 6)),
    "additive": (Additive(8, HEADS), HEADS * 8),
    "additive bias": (Additive(8, HEADS, bias=True), 2 * HEADS * 8),
    "additive norm": (Additive(8, HEADS, bias=True, weight_norm=True), 2 * HEADS * 8 + HEADS),
    "gatv2": (GATv2(8, HEADS), HEADS * 8),
    "projected": (Projected(Additive(8, HEADS), 5, 6), HEADS * 8 * (5 + 6) + HEADS * 8),
    "projected grouped": (
        Projected(Dot(), 5, 6, width=8, heads=HEADS, key_heads=2, bias=True),
        HEADS * 8 * 6 + 2 * 8 * 7,
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_number_of_parameters(name):
    score, expected = COUNTS[name]
    assert sum(p.numel() for p in score.parameters()) == expected


BUILDS = {
    "scaled_dot": lambda d: ScaledDot(),
    "cosine": lambda d: Cosine(HEADS),
    "bilinear": lambda d: Bilinear(d, d, HEADS),
    "bilinear unequal": lambda d: Bilinear(d, d // 2, HEADS),
    "low_rank": lambda d: LowRank(d, d, max(d // 4, 1), HEADS),
    "additive": lambda d: Additive(d, HEADS),
    "additive norm": lambda d: Additive(d, HEADS, weight_norm=True, bias=True),
    "gatv2": lambda d: GATv2(d, HEADS),
    "gatv2 steep": lambda d: GATv2(d, HEADS, negative_slope=0.9),
    "projected additive": lambda d: Projected(Additive(16, HEADS), d, d // 2),
    "projected scaled_dot": lambda d: Projected(ScaledDot(), d, d, width=16, heads=HEADS),
}


@pytest.mark.parametrize("dim", [8, 32, 128, 512])
@pytest.mark.parametrize("name", BUILDS)
def test_scores_start_with_variance_1(name, dim):
    """Unit-variance inputs: a softmax that is neither flat nor saturated at any width.

    The mean over many draws of the parameters: that of a single head with few units is noisy.
    """
    key_dim = dim // 2 if "unequal" in name or name == "projected additive" else dim
    total = 0.0
    draws = 60
    for _ in range(draws):
        q, k = torch.randn(1, HEADS, 16, dim), torch.randn(1, HEADS, 16, key_dim)
        logits = regard.score(q, k, BUILDS[name](dim)).detach()
        total += float(logits.square().mean())
    assert total / draws == pytest.approx(1, abs=0.2)


# Your own score, in under 20 lines each.


class Distance(InnerScore):
    """`-|q - k|^2`, a Gaussian without bandwidth."""

    name = "distance"

    def query(self, q: Tensor) -> InnerQuery:
        return InnerQuery(2 * q, alpha=-q.square().sum(-1))

    def key(self, k: Tensor) -> InnerKey:
        return InnerKey(k, beta=-k.square().sum(-1))


SOFTSIGN = Activation(
    "softsign",
    value=lambda x, _: x / (1 + x.abs()),
    slope=lambda x, _y, _: (1 + x.abs()) ** -2,
)


class Softsign(PairwiseScore):
    """`sum_h v_h (a_h + b_h) / (1 + |a_h + b_h|)`."""

    name = "softsign"
    activation = "softsign"

    def __init__(self, hidden: int, heads: int = 1) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.randn(heads, hidden))

    def query(self, q: Tensor) -> PairwiseQuery:
        return PairwiseQuery(q, self.v)

    def key(self, k: Tensor) -> PairwiseKey:
        return PairwiseKey(k)


def textbook(score: Score, q: Tensor, k: Tensor) -> Tensor:
    if isinstance(score, Distance):
        return -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1)
    hidden = torch.nn.functional.softsign(q.unsqueeze(-2) + k.unsqueeze(-3))
    return (hidden * score.v[:, None, None]).sum(-1)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
@pytest.mark.parametrize("build", [Distance, lambda: Softsign(4, 2)], ids=["inner", "pairwise"])
def test_a_score_of_your_own_runs_on_every_engine(build, engine, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 64)
    score = build().double()
    q, k, v = (torch.randn(2, 2, n, 4, dtype=torch.float64).requires_grad_() for n in (5, 20, 20))
    allowed = torch.ones(5, 20, dtype=torch.bool).tril(3)
    if engine == "sdpa" and isinstance(score, PairwiseScore):
        with pytest.raises(regard.EngineRefused, match="pairwise"):
            regard.attention(q, k, v, score, engine=engine)
        return
    output = regard.attention(q, k, v, score, mask=allowed, engine=engine)
    logits = textbook(score, q, k)
    expected = logits.masked_fill(~allowed, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(output, expected)
    wanted = [q, k, v, *score.parameters()]
    grads = torch.autograd.grad(output.square().sum(), wanted)
    for grad, want in zip(grads, torch.autograd.grad(expected.square().sum(), wanted), strict=True):
        torch.testing.assert_close(grad, want)
    torch.testing.assert_close(regard.score(q, k, score), logits)


def test_a_slope_may_be_given_as_booleans_or_broadcast():
    """`x > 0` is the natural way to write the derivative of ReLU, and a constant that of a line."""
    Activation("test relu", lambda x, _: x.relu(), lambda x, _y, _: x > 0)
    Activation("test line", lambda x, c: c * x, lambda x, _y, c: torch.tensor(c).to(x).expand_as(x))
    for name in ("test relu", "test line"):
        score = Softsign(4)
        score.activation, score.parameter = name, 0.5
        q, k = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        found = []
        for engine in ("cpu", "reference"):
            output = regard.attention(q, k, k, score, engine=engine)
            found.append(torch.autograd.grad(output.square().sum(), [q, k, score.v]))
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y)


def test_an_activation_that_was_never_registered_is_named():
    score = Softsign(4)
    score.activation = "sofsign"
    with pytest.raises(ValueError, match=r"sofsign.*Activation"):
        regard.attention(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4), score)


MODULES = {
    "cosine": lambda: Cosine(2),
    "gaussian": lambda: Gaussian(0.7, heads=2),
    "bilinear": lambda: Bilinear(4, 4, 2),
    "low_rank": lambda: LowRank(4, 4, 3, 2),
    "additive": lambda: Additive(4, 2, bias=True, weight_norm=True),
    "gatv2": lambda: GATv2(4, 2, negative_slope=0.3, bias=True),
    "projected": lambda: Projected(Additive(3, 2), 4, 4, bias=True),
    "own": lambda: Softsign(4, 2),
}


@pytest.mark.parametrize("name", MODULES)
def test_state_dict_round_trip(name):
    one, other = MODULES[name](), MODULES[name]()
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.normal_()
    other.load_state_dict(one.state_dict())
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    assert torch.equal(regard.score(q, k, one), regard.score(q, k, other))


@pytest.mark.parametrize("name", MODULES)
def test_deepcopy_is_the_same_score_with_its_own_parameters(name):
    score = MODULES[name]()
    twin = copy.deepcopy(score)
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    before = regard.score(q, k, twin)
    assert torch.equal(regard.score(q, k, score), before)
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.add_(1)
    assert torch.equal(regard.score(q, k, twin), before)


@pytest.mark.parametrize("name", MODULES)
def test_a_score_is_a_module_that_gives_logits(name):
    score = MODULES[name]()
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    assert torch.equal(score(q, k), regard.score(q, k, score))
    assert score(q, k).shape == (1, 2, 3, 5)


@pytest.mark.parametrize("name", MODULES)
def test_moving_a_score_to_another_dtype_moves_all_of_it(name):
    score = MODULES[name]().to(torch.bfloat16)
    x = torch.randn(1, 2, 3, 4, dtype=torch.bfloat16)
    assert regard.attention(x, x, x, score).dtype == torch.bfloat16


@pytest.mark.parametrize("name", MODULES)
def test_the_two_sides_can_be_lowered_apart_and_cached(name):
    """What a decoder does: the key side once, the query side at each step, beams reordered."""
    score = MODULES[name]()
    q, k = torch.randn(3, 2, 1, 4), torch.randn(3, 2, 5, 4)
    order = torch.tensor([2, 0, 1])
    cached = score.join(score.query(q), score.key(k).reorder(order))
    fresh = score.join(score.query(q), score.key(k[order]))
    assert type(cached) is type(score.lower(q, k[order]))
    assert torch.equal(cached.query, fresh.query)
    assert torch.equal(cached.key, fresh.key)


def test_weight_norm_splits_length_and_direction():
    """The direction may be any length; the gain alone sets the score's size."""
    score = Additive(4, 2, weight_norm=True)
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    before = regard.score(q, k, score)
    with torch.no_grad():
        score.v.mul_(7)
    torch.testing.assert_close(regard.score(q, k, score), before)
    with torch.no_grad():
        score.gain.mul_(3)
    torch.testing.assert_close(regard.score(q, k, score), 3 * before)


def test_one_shared_input_head_becomes_the_heads_of_the_score():
    """(B, 1, L, d) inputs with W_q and W_k for each head, as multi-head attention has them."""
    for score in (
        Bilinear(4, 6, 3),
        LowRank(4, 6, 2, 3),
        Projected(Additive(5, 3), 4, 6),
        Projected(Cosine(3), 4, 6, width=5),
        Projected(Gaussian(heads=3), 4, 6, width=5),
    ):
        q, k, v = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 5, 6), torch.randn(2, 1, 5, 2)
        assert regard.attention(q, k, v, score).shape == (2, 3, 3, 2), score
        repeated = regard.attention(q.expand(2, 3, 3, 4), k.expand(2, -1, 5, 6), v, score)
        torch.testing.assert_close(regard.attention(q, k, v, score), repeated)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "own"])
def test_rescale_multiplies_the_logits_of_each_head(name):
    score = MODULES[name]()
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    before = regard.score(q, k, score)
    factor = torch.tensor([0.5, 0.25])
    score.rescale_(factor)
    torch.testing.assert_close(regard.score(q, k, score), before * factor.view(2, 1, 1))


@pytest.mark.parametrize(
    "score", [Dot(), Cosine(None), Gaussian(heads=None), Softsign(4, 2)], ids=str
)
def test_a_score_that_cannot_be_rescaled_says_so(score):
    with pytest.raises(ValueError, match=r"no parameters that scale|wrap"):
        score.rescale_(torch.tensor([0.5, 0.5]))
