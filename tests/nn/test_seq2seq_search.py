"""Greedy and beam search against exhaustive search, and their edges."""

from __future__ import annotations

import itertools

import pytest
import torch

import regard
from regard.nn.seq2seq import (
    BahdanauAttention,
    EncoderDecoder,
    Location,
    MonotonicAttention,
    RecurrentDecoder,
    RecurrentEncoder,
    beam_search,
    gnmt_length_penalty,
    greedy,
)

PAD, BOS, EOS, A, Z = range(5)
WORDS, MAX = 5, 4


def build(attention=None, words: int = WORDS, sharpen: float = 4.0, **options) -> EncoderDecoder:
    """A random model, its output sharpened such that sequences differ in probability."""
    attention = attention or BahdanauAttention(6, 8, 5, location=Location(3, 2), coverage=True)
    decoder = RecurrentDecoder(words, 5, 6, attention, 8, **options)
    model = EncoderDecoder(RecurrentEncoder(words, 4, 4), decoder, bos=BOS, eos=EOS, pad=PAD)
    with torch.no_grad():
        for p in decoder.parameters():
            p.mul_(1.5)
        decoder.output.weight.mul_(sharpen)
    return model.double().eval()


def sources(batch: int = 6, words: int = WORDS) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, words, (batch, 5)), torch.randint(1, 6, (batch,))


def exhaustive(model, source, lengths, alpha):
    """Every hypothesis there is, best first: those that end, and those cut off."""
    ended = [(*body, EOS) for n in range(MAX) for body in itertools.product([A, Z], repeat=n)]
    every = [*ended, *itertools.product([A, Z], repeat=MAX)]
    target = torch.tensor([tokens + (PAD,) * (MAX - len(tokens)) for tokens in every])
    given = source.expand(len(every), -1), target, lengths.expand(len(every))
    log_probs = model(*given).logits.log_softmax(-1).gather(-1, target[..., None])
    totals = log_probs[..., 0].masked_fill(target == PAD, 0).sum(1).tolist()
    return sorted(
        (
            (total / ((5 + len(tokens)) / 6) ** alpha, tokens)
            for total, tokens in zip(totals, every, strict=True)
        ),
        reverse=True,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_a_beam_of_everything_is_exhaustive_search(alpha):
    """32 beams for 5 words: larger than the vocabulary, too."""
    model, (source, lengths) = build(), sources()
    result = beam_search(
        model, source, lengths, beam=32, n_best=31, length_penalty=alpha, max_length=MAX
    )
    orders = set()
    for b in range(len(source)):
        scores, expected = zip(*exhaustive(model, source[b], lengths[b], alpha), strict=True)
        ends = result.lengths[b].tolist()
        got = [tuple(row[:n]) for row, n in zip(result.tokens[b].tolist(), ends, strict=True)]
        assert got == list(expected)
        torch.testing.assert_close(result.scores[b], torch.tensor(scores, dtype=torch.float64))
        orders.add(expected)
    assert len(orders) > 1  # the sources do matter


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        (lambda: None, {}),
        (lambda: None, {"attend": "after", "feed": True, "kind": "lstm", "layers": 2}),
        (lambda: MonotonicAttention(regard.Bilinear(6, 8)), {}),
        (lambda: BahdanauAttention(6, 8, 5, heads=2, window=(1, 2)), {"attend": "after"}),
    ],
    ids=["bahdanau", "luong", "monotonic", "window"],
)
def test_beam_of_one_is_greedy(attention, options):
    finished = []
    for _ in range(6):  # a random model may end all of its hypotheses, or none
        model = build(attention(), words=8, **options)
        source, lengths = sources(batch=8, words=8)
        one = beam_search(model, source, lengths, beam=1, max_length=9)
        torch.testing.assert_close(one, greedy(model, source, lengths, max_length=9))
        finished += one.finished[:, 0].tolist()
    assert any(finished) and not all(finished)


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_scores_and_weights_are_those_of_the_tokens_returned(search):
    """A beam that is reordered must take its state with it: decoding the result again agrees."""
    model = build(words=8, sharpen=1.0)
    source, lengths = sources(batch=8, words=8)
    options = {"beam": 4, "n_best": 3} if search is beam_search else {}
    found = search(model, source, lengths, max_length=7, **options)
    for b, n in itertools.product(range(8), range(found.tokens.shape[1])):
        length = int(found.lengths[b, n])
        target = found.tokens[b, n, :length][None]
        again = model(source[b : b + 1], target, lengths[b : b + 1])
        log_probs = again.logits.log_softmax(-1).gather(-1, target[..., None])
        torch.testing.assert_close(found.log_probs[b, n], log_probs.sum())
        torch.testing.assert_close(found.weights[b, n, :, :length], again.weights[0])
        assert (found.weights[b, n, :, length:] == 0).all()
        assert (found.tokens[b, n, length:] == PAD).all()
        assert bool(found.finished[b, n]) == (int(target[0, -1]) == EOS)
        assert not ({PAD, BOS} & set(target[0].tolist()))
        assert (found.weights[b, n, ..., lengths[b] :] == 0).all()


def test_a_wider_beam_finds_no_worse():
    model = build(words=8, sharpen=1.0)
    source, lengths = sources(batch=32, words=8)
    best = [
        beam_search(model, source, lengths, beam=k, max_length=5).scores.mean() for k in (1, 4, 64)
    ]
    assert best[0] < best[1] < best[2]


def test_the_length_penalty_lengthens():
    """With it, log probabilities are divided by ((5 + n) / 6) ** alpha, as in GNMT."""
    assert gnmt_length_penalty(1, 0.6) == 1 and gnmt_length_penalty(7, 0.5) == 2**0.5
    total = {0.0: 0, 6.0: 0}
    for _ in range(4):
        model = build(words=8, sharpen=1.0)
        source, lengths = sources(batch=8, words=8)
        for alpha in total:
            found = beam_search(model, source, lengths, beam=8, length_penalty=alpha, max_length=8)
            total[alpha] += int(found.lengths.sum())
    assert total[0.0] < total[6.0]


def test_n_best_is_sorted_and_distinct():
    model, (source, lengths) = build(words=8, sharpen=1.0), sources(words=8)
    found = beam_search(model, source, lengths, beam=6, n_best=6, max_length=6)
    assert (found.scores.diff(dim=1) <= 0).all()
    for rows in found.tokens.tolist():
        assert len({tuple(row) for row in rows}) == 6


def test_fewer_hypotheses_than_asked_for():
    """With one step there are three: A, Z and the end."""
    model, (source, lengths) = build(), sources()
    found = beam_search(model, source, lengths, beam=8, n_best=5, max_length=1)
    assert (found.lengths == torch.tensor([1, 1, 1, 0, 0])).all()
    assert (found.scores[:, 3:] == -torch.inf).all() and not found.finished[:, 3:].any()
    assert (found.tokens[:, 3:] == PAD).all()


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_sources_of_length_zero_and_empty_batches(search):
    model, (source, _) = build(), sources()
    some = search(model, source, torch.tensor([0, 5, 0, 1, 2, 3]), max_length=MAX)
    assert some.log_probs.isfinite().all() and (some.weights[0] == 0).all()
    none = search(model, source[:, :0], max_length=MAX)
    assert torch.equal(none.tokens[0], some.tokens[0, :, : none.tokens.shape[2]])
    empty = search(model, source[:0], max_length=MAX)
    assert empty.tokens.shape == (0, 1, 0) and empty.weights.shape == (0, 1, 1, 0, 5)


def test_padding_and_order_of_the_batch_do_not_matter():
    model, (source, lengths) = build(words=8), sources(batch=8, words=8)
    found = beam_search(model, source, lengths, beam=3, max_length=6)
    for b in range(8):
        alone = beam_search(model, source[b : b + 1, : lengths[b]], beam=3, max_length=6)
        assert torch.equal(found.tokens[b, :, : alone.tokens.shape[2]], alone.tokens[0])
        torch.testing.assert_close(found.scores[b], alone.scores[0])


def test_search_leaves_the_model_in_the_mode_it_was_in():
    model, (source, lengths) = build(dropout=0.5), sources()
    model.train()
    model.encoder.eval()
    first = greedy(model, source, lengths, max_length=MAX)
    torch.testing.assert_close(first, greedy(model, source, lengths, max_length=MAX))
    assert model.training and model.decoder.dropout.training and not model.encoder.training
    assert not first.scores.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam must be an integer of 1 or more, got 0"),
        ({"beam": 2, "n_best": 3}, "n_best=3 hypotheses cannot come from beam=2"),
        ({"max_length": 0}, "max_length must be an integer of 1"),
        ({"length_penalty": -1.0}, "length_penalty must be a number of 0 or more"),
        ({"length_penalty": 1e3}, "length_penalty must be from 0 to 8, got 1000.0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(build(), *sources(), **options)
