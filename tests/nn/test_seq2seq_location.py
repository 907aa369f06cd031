"""Location and coverage terms and the forward window."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.nn.seq2seq import (
    BahdanauAttention,
    DecoderAttention,
    Location,
    LuongAttention,
    coverage_loss,
)

B, T, L, Q, K, E = 3, 4, 7, 5, 6, 8
LENGTHS = torch.tensor([7, 4, 2])
LOCATION = Location(kernel=3, channels=4)


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.randn(B, T, Q, dtype=torch.float64, requires_grad=True),
        torch.randn(B, L, K, dtype=torch.float64, requires_grad=True),
    )


def textbook(attention, query, keys, term):
    """Bahdanau's step by step, with `term(previous, total)` (B, L, E) inside tanh."""
    score = attention.score
    hidden = torch.arange(L) >= LENGTHS[:, None]
    previous = total = torch.zeros(B, L, dtype=torch.float64)
    contexts, all_weights = [], []
    for t in range(T):
        inside = query[:, t, None] @ score.query_weight.T + keys @ score.key_weight.T
        logits = torch.tanh(inside + term(previous, total)) @ score.score.v[0]
        previous = logits.masked_fill(hidden, -torch.inf).softmax(-1)
        total = total + previous
        contexts.append((previous[:, None] @ keys)[:, 0])
        all_weights.append(previous)
    return torch.stack(contexts, 1), torch.stack(all_weights, 1)


def everything(attention, context, weights, query, keys):
    loss = context.sin().sum() + weights.square().sum()
    return [
        context,
        weights,
        *torch.autograd.grad(loss, [query, keys, *attention.parameters()]),
    ]


@pytest.mark.parametrize("of", ["previous", "total", "both"])
def test_location_term_is_the_textbook_with_all_gradients(of):
    attention = BahdanauAttention(Q, K, E, location=Location(3, 4, of)).double()
    (term,) = attention.terms

    def location(previous, total):
        parts = {"previous": [previous], "total": [total], "both": [previous, total]}[of]
        features = F.conv1d(torch.stack(parts, 1), term.filters, padding=1)
        return features.mT @ term.projection[0]

    query, keys = tensors()
    context, weights, _ = attention(query, attention.prepare(keys, lengths=LENGTHS))
    got = everything(attention, context, weights[:, 0], query, keys)
    expected = textbook(attention, query, keys, location)
    torch.testing.assert_close(got, everything(attention, *expected, query, keys))


def test_coverage_term_is_the_textbook_with_all_gradients():
    attention = BahdanauAttention(Q, K, E, coverage=True).double()
    (term,) = attention.terms
    query, keys = tensors()
    context, weights, _ = attention(query, attention.prepare(keys, lengths=LENGTHS))
    got = everything(attention, context, weights[:, 0], query, keys)
    expected = textbook(attention, query, keys, lambda _, c: c[..., None] * term.weight[0])
    torch.testing.assert_close(got, everything(attention, *expected, query, keys))


def test_terms_of_an_inner_score_add_to_the_logits():
    attention = LuongAttention(Q, K, "general", location=LOCATION, coverage=True).double()
    query, keys = tensors()
    memory = attention.prepare(keys, lengths=LENGTHS)
    state = attention(query[:, 0], memory).state
    term = sum(each(state) for each in attention.terms)  # (B, 1, L, 1)
    logits = query[:, 1, None] @ attention.score.weight[0] @ keys.mT + term[..., 0]
    logits = logits.masked_fill(torch.arange(L) >= LENGTHS[:, None, None], -torch.inf)
    weights = attention(query[:, 1], memory, state).weights
    torch.testing.assert_close(weights, logits.softmax(-1))


@pytest.mark.parametrize(
    "build",
    [
        lambda: BahdanauAttention(Q, K, E, heads=2, location=LOCATION, coverage=True, bias=True),
        lambda: LuongAttention(Q, K, heads=2, location=LOCATION, coverage=True),
        lambda: BahdanauAttention(Q, K, E, heads=2, location=LOCATION, window=(0, 2)).eval(),
    ],
    ids=["bahdanau", "luong", "window"],
)
def test_padding_has_weight_zero_and_does_not_matter(build):
    """A bias after the projection leaked through padding in espnet before PR#397."""
    attention, (query, keys) = build().double(), tensors()
    context, weights, _ = attention(query, attention.prepare(keys, lengths=LENGTHS))
    for b, length in enumerate(LENGTHS):
        assert (weights[b, ..., length:] == 0).all()
        alone = attention(query[b : b + 1], attention.prepare(keys[b : b + 1, :length]))
        torch.testing.assert_close(context[b], alone.context[0])
        torch.testing.assert_close(weights[b, ..., :length], alone.weights[0])


def test_terms_with_nothing_to_attend_to():
    attention = BahdanauAttention(Q, K, E, location=LOCATION, coverage=True, window=(1, 1)).double()
    query, keys = tensors()
    for module in (attention, attention.eval()):
        found = module(query, module.prepare(keys, lengths=[0, 0, 3]))
        assert (found.context[:2] == 0).all() and (found.weights[:2] == 0).all()
        assert module(query, module.prepare(keys[:, :0])).context.shape == (B, T, K)


def test_window_follows_the_peak_in_eval_alone():
    attention = DecoderAttention(regard.Dot(), window=(1, 2))
    keys = torch.eye(8)[None] * 50  # a query picks its key outright, where it may
    picks = [0, 2, 7, 3, 2, 0, 4]
    query = torch.eye(8)[None, picks]
    free = attention(query, attention.prepare(keys)).weights[0, 0]
    assert free.argmax(-1).tolist() == picks
    weights = attention.eval()(query, attention.prepare(keys)).weights[0, 0]
    position, peak = torch.arange(8), 0
    for row in weights:
        assert torch.equal(row > 0, (position >= peak - 1) & (position <= peak + 2))
        peak = int(row.argmax())
    # 7 is out of reach from 2, where keys 1 to 4 are equal: the first of them is its peak.
    assert weights.argmax(-1).tolist() == [0, 2, 1, 3, 2, 1, 0]


def test_window_starts_at_the_first_visible_key():
    attention = BahdanauAttention(Q, K, E, window=(0, 0)).double().eval()
    query, keys = tensors()
    mask = torch.arange(L) >= torch.tensor([0, 2, 6])[:, None]  # padding on the left
    weights = attention(query, attention.prepare(keys, visible=mask)).weights
    assert weights[:, 0, 0].argmax(-1).tolist() == [0, 2, 6]


def test_each_head_has_its_own_window():
    attention = BahdanauAttention(Q, K, E, heads=2).double().eval()
    query, keys = tensors()
    memory = attention.prepare(keys)
    state = attention(query[:, 0], memory).state
    attention.window = (0, 0)
    weights = attention(query[:, 1], memory, state).weights
    assert torch.equal(weights.argmax(-1), state.weights.argmax(-1))


def test_terms_start_small_enough_to_keep_the_variance_of_scores():
    attention = BahdanauAttention(32, 32, 32, heads=64, location=Location(), coverage=True)
    query, keys = torch.randn(2, 8, 32), torch.randn(2, 40, 32)
    memory = attention.prepare(keys)
    state = attention(query, memory).state
    side = attention.keys_now(memory, state)
    assert 0.7 < regard.score(query[:, None], side, attention.score).var() < 1.4


def test_coverage_loss_is_the_sum_of_what_is_attended_to_twice():
    weights = torch.rand(B, 2, T, L, dtype=torch.float64).softmax(-1)
    lengths, costs = [4, 1, 0], []
    for b, length in enumerate(lengths):
        for head in range(2):
            coverage = torch.zeros(L, dtype=torch.float64)
            for t in range(length):
                costs.append(torch.minimum(weights[b, head, t], coverage).sum())
                coverage = coverage + weights[b, head, t]
    expected = torch.stack(costs).mean()
    torch.testing.assert_close(coverage_loss(weights, torch.tensor(lengths)), expected)
    assert coverage_loss(torch.eye(4)[None, None]) == 0
    assert coverage_loss(weights, torch.zeros(B, dtype=torch.long)) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": 4}, "kernel must be odd"),
        ({"channels": 0}, "channels must be an integer of 1"),
        ({"of": "sum"}, "'previous' or 'total' or 'both', got 'sum'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Location(**settings)


@pytest.mark.parametrize(
    "score",
    [
        lambda: regard.Projected(regard.Additive(8, 4), Q, K, key_heads=2),
        lambda: regard.Projected(regard.Gaussian(), Q, K, width=8, heads=4, key_heads=2),
    ],
    ids=["pairwise", "inner"],
)
def test_terms_of_heads_that_share_their_keys(score):
    """Two heads share the keys, but each has its own term: the same as keys of its own."""
    shared = DecoderAttention(score(), location=Location(3, 2), coverage=True).double()
    query, keys = tensors()
    memory = shared.prepare(keys, lengths=LENGTHS)
    side = type(memory.side)(
        *(None if x is None else x.repeat_interleave(2, 1) for x in memory.side)
    )
    expected = shared(query, memory._replace(side=side))
    torch.testing.assert_close(shared(query, memory), expected)


def test_terms_of_keys_that_were_lowered_about_an_origin():
    """A term that drops the origin would compare shifted keys with queries that are not."""
    attention = DecoderAttention(regard.Gaussian(), coverage=True).double()
    torch.nn.init.zeros_(attention.terms[0].weight)
    keys = 50 + torch.randn(B, L, Q, dtype=torch.float64)
    query = keys[:, :T] + 0.1
    logits = -0.5 * torch.cdist(query, keys).square() / Q**0.5  # bandwidth Q ** 0.25
    weights = attention(query, attention.prepare(keys)).weights[:, 0]
    torch.testing.assert_close(weights, logits.softmax(-1))


def test_a_term_is_as_wide_as_the_hidden_layer_not_as_the_keys():
    """GAT takes keys of width 8 and compares one number of each."""
    attention = DecoderAttention(regard.Projected(regard.GAT(8), Q, K), coverage=True).double()
    query, keys = tensors()
    assert attention.terms[0].weight.shape == (1, 1, 1)
    assert attention(query, attention.prepare(keys)).context.shape == (B, T, K)


def test_coverage_loss_of_weights_without_a_head_dim_is_refused():
    with pytest.raises(ValueError, match=r"\(batch, heads, steps, keys\), got shape \(2, 3, 4\)"):
        coverage_loss(torch.rand(2, 3, 4))


def test_a_pairwise_score_of_unknown_width_is_refused():
    class Odd(regard.PairwiseScore):
        name, activation = "odd", "tanh"

    with pytest.raises(ValueError, match="Odd has no `width`"):
        DecoderAttention(Odd(), coverage=True)
