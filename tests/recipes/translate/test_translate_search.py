"""Search over the recipe's networks: against brute force, and step by step against all steps at once."""

from __future__ import annotations

import itertools

import pytest
import torch

from regard.nn.seq2seq import RecurrentEncoder
from regard.recipes.translate.decoding import (
    Search,
    aligned,
    best_found,
    most_pieces,
    piece_log_prob,
    searched,
)
from regard.recipes.translate.networks import Sizes, TransformerTranslator, network
from regard.recipes.translate.subwords import BOS, EOS, PAD, UNK
from regard.recipes.translate.translator import ARCHITECTURES
from regard.scores.lookup import SIZED

LONGEST = 4
WORDS = 6  # the four marks and two pieces
ATTENDING = [one for one in ARCHITECTURES if one != "none"]


def made(architecture: str, words: int = 12, score=None):
    """A random network, enlarged such that translations differ in probability, pieces and length."""
    model = network(architecture, Sizes(words, 8, 2, 2, 8, 12, 6, dropout=0.3), score)
    with torch.no_grad():
        if architecture == "transformer":
            for parameter in model.parameters():
                parameter.mul_(1.5)
        else:
            model.decoder.embedding.weight.mul_(20)
    return model.double().eval()


def batch(words: int = 12, rows: int = 5, longest: int = 6):
    lengths = torch.randint(1, longest + 1, (rows,))
    lengths[0] = longest
    source = torch.randint(UNK, words, (rows, longest))
    inside = torch.arange(longest) < lengths.unsqueeze(1)
    return source.masked_fill(~inside, PAD), lengths


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_steps_give_what_all_steps_at_once_give(architecture):
    """Caches and states hold all that a later step needs, also after beam search has reordered them."""
    model = made(architecture)
    source, lengths = batch()
    inputs = torch.randint(UNK, 12, (5, 7))
    inputs[:, 0] = BOS
    whole = model.teach(model.read(source, lengths), inputs)
    memory, state = model.encode(source, lengths)
    order = torch.arange(5)
    for step in range(7):
        if step == 3:
            order = torch.tensor([4, 0, 0, 2, 1])
            memory, state = memory.reorder(order), state.reorder(order)
        logits, _, state = model.step(inputs[order, step], memory, state)
        torch.testing.assert_close(logits, whole[order, step])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_changes_nothing(architecture):
    model = made(architecture)
    source, lengths = batch()
    inputs = torch.randint(UNK, 12, (5, 3))
    found = model.teach(model.read(source, lengths), inputs)
    for row, length in enumerate(lengths.tolist()):
        alone = model.read(source[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(found[row : row + 1], model.teach(alone, inputs[row : row + 1]))


def every_translation(model, source, alpha: float):
    """All translations of one sentence with their scores, the best first."""
    body = [UNK, *range(4, WORDS)]
    ended = [
        (*one, EOS) for count in range(LONGEST) for one in itertools.product(body, repeat=count)
    ]
    every = [*ended, *itertools.product(body, repeat=LONGEST)]
    target = torch.tensor([one + (PAD,) * (LONGEST - len(one)) for one in every])
    inputs = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
    read = model.read(source.expand(len(every), -1), torch.full((len(every),), source.shape[1]))
    log_probs = model.teach(read, inputs).log_softmax(-1).gather(-1, target.unsqueeze(-1))
    totals = log_probs.squeeze(-1).masked_fill(target == PAD, 0).sum(1).tolist()
    scored = [
        (total / ((5 + len(one)) / 6) ** alpha, one)
        for total, one in zip(totals, every, strict=True)
    ]
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_all_prefixes_finds_the_best_of_all_translations(architecture, alpha):
    model, source = made(architecture, WORDS), torch.tensor([[4, 5, 3, EOS]])
    wanted = every_translation(model, source, alpha)
    found = best_found(model, source, torch.tensor([4]), Search(81, alpha, 5), LONGEST)
    for rank in range(5):
        score, tokens = wanted[rank]
        assert tuple(found.tokens[0, rank, : found.lengths[0, rank]].tolist()) == tokens
        assert found.scores[0, rank].item() == pytest.approx(score)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_beam_one_is_greedy_and_a_wider_beam_is_no_worse(architecture):
    model = made(architecture)
    source, lengths = batch(rows=12)
    greedy, narrow, wide = (
        best_found(model, source, lengths, Search(*search), 10)
        for search in ((1, 0.0), (1, 1.0), (8, 0.0))
    )
    assert torch.equal(greedy.tokens, narrow.tokens), "a single beam has nothing to rank"
    assert len(greedy.tokens.unique(dim=0)) > 1, "the sentences are worth searching"
    better = wide.log_probs[:, 0] - greedy.log_probs[:, 0]
    # A beam may lose the greedy prefix; it does not in these sentences.
    assert (better > -1e-9).all() and (better > 1e-3).any()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_length_penalty_makes_translations_longer(architecture):
    model = made(architecture)
    source, lengths = batch(rows=30)
    count = [
        int(best_found(model, source, lengths, Search(6, alpha), 12).lengths.sum())
        for alpha in (0.0, 1.0, 4.0)
    ]
    assert count[0] <= count[1] <= count[2] and count[0] < count[2]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_batches_do_not_change_what_is_found(architecture, monkeypatch):
    model = made(architecture)
    rows = [[*torch.randint(4, 12, (n,)).tolist(), EOS] for n in (5, 1, 3, 7, 2)]
    search = Search(3, 1.0, 2)
    alone = [searched(model, [row], search, 9)[0] for row in rows]
    monkeypatch.setattr("regard.recipes.translate.decoding.AT_ONCE", {"cpu": 2})
    for row, found, wanted in zip(rows, searched(model, rows, search, 9), alone, strict=True):
        longest = most_pieces(len(row), 9)  # alone a short sentence has a shorter limit
        assert [one[:longest] for one in found] == wanted
        assert all(EOS not in one and PAD not in one for one in found)
    assert searched(model, [], search, 9) == []


@pytest.mark.parametrize("architecture", ATTENDING)
def test_alignment_rows_sum_to_one(architecture):
    model, row = made(architecture), [4, 5, 6, 7, EOS]
    tokens, weights = aligned(model, row, Search(3, 1.0), 9)
    assert weights.shape == (len(tokens), len(row))
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(len(tokens)), atol=1e-6, rtol=0)
    assert piece_log_prob(model, row, Search(3, 1.0), 9) < 0
    assert tokens == aligned(model, row, Search(3, 1.0), 9)[0]


def test_weights_are_built_only_where_they_are_asked_for():
    model = made("transformer")
    assert isinstance(model, TransformerTranslator)
    source, lengths = batch()
    found = best_found(model, source, lengths, Search(1, 0.0), 5)
    assert found.weights.shape[-1] == 0
    aligned(model, [4, 5, EOS], Search(1, 0.0), 5)
    assert not model.keep_weights


@pytest.mark.parametrize("architecture", ["none", "bahdanau", "luong"])
def test_the_control_reads_the_summary_and_nothing_else(architecture, monkeypatch):
    """With other outputs of the encoder and the same summary, only networks with attention change."""
    model = made(architecture)
    source, lengths = batch()
    inputs = torch.randint(UNK, 12, (5, 4))
    before = model.teach(model.read(source, lengths), inputs)
    forward = RecurrentEncoder.forward

    def scrambled(self, tokens, lengths=None):
        found = forward(self, tokens, lengths)
        return found._replace(output=torch.randn_like(found.output))

    monkeypatch.setattr(RecurrentEncoder, "forward", scrambled)
    after = model.teach(model.read(source, lengths), inputs)
    assert torch.equal(before, after) == (architecture == "none")
    memory, _ = model.encode(source, lengths)
    assert memory.value.shape[2] == (1 if architecture == "none" else source.shape[1])


@pytest.mark.parametrize("architecture", ATTENDING)
@pytest.mark.parametrize("score", SIZED)
def test_every_score_joins_states_of_unlike_width(architecture, score):
    model = made(architecture, score=score)
    source, lengths = batch()
    logits = model.teach(model.read(source, lengths), torch.full((5, 2), BOS))
    assert logits.shape == (5, 2, 12) and logits.isfinite().all()
