"""Batches of sentence pairs, and the loss of a batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from regard.recipes.translate.batches import Corpus, cut_by_tokens
from regard.recipes.translate.job import Regularization, TranslationJob, dropped, smoothed
from regard.recipes.translate.networks import Sizes, network
from regard.recipes.translate.subwords import EOS, PAD, UNK
from regard.recipes.translate.translator import ARCHITECTURES

CPU = torch.device("cpu")
TOKENS = 48


def rows(count: int = 60, first: int = 4) -> list[list[int]]:
    """Sentences of 1 to 9 pieces and an end mark; each has a first piece of its own."""
    lengths = torch.randint(0, 9, (count,)).tolist()
    return [
        [first + row, *torch.randint(4, 20, (n,)).tolist(), EOS] for row, n in enumerate(lengths)
    ]


def corpus(**more) -> tuple[list[list[int]], list[list[int]], Corpus]:
    source, target = rows(), rows(first=200)
    options = {"tokens": TOKENS, "multiples": (8, 1), "seed": 3, "device": CPU} | more
    return source, target, Corpus(source, target, **options)


def pairs_in(batch) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch without padding."""
    found = []
    for source, length, target in zip(*batch, strict=True):
        real = target[target != PAD].tolist()
        assert (source[length:] == PAD).all() and (target[len(real) :] == PAD).all()
        found.append((source[:length].tolist(), real))
    return found


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("multiples", [(8, 1), (8, 8), (1, 4)])
def test_every_pair_is_once_in_every_epoch(full, multiples):
    source, target, made = corpus(full=full, multiples=multiples)
    wanted = sorted(zip(source, target, strict=True))
    for epoch in range(2):
        batches = list(made.batches(epoch))
        assert len(batches) == len(made)
        found = [pair for batch in batches for pair in pairs_in(batch) if pair[1]]
        assert sorted(found) == wanted
        for source_B, _, target_B in batches:
            assert max(source_B.numel(), target_B.numel()) <= TOKENS
            assert source_B.shape[1] % multiples[0] == target_B.shape[1] % multiples[1] == 0


def test_full_batches_of_one_width_have_one_shape_and_empty_sentences_fill_them():
    _, _, made = corpus(full=True)
    shapes: dict[tuple[int, int], set[int]] = {}
    for batch in made.batches(0):
        key = batch.source.shape[1], batch.target.shape[1]
        shapes.setdefault(key, set()).add(len(batch.source))
        empty = [pair for pair in pairs_in(batch) if not pair[1]]
        assert empty == [([EOS], [])] * len(empty)
    assert all(len(found) == 1 for found in shapes.values())


def test_order_follows_from_seed_and_epoch():
    first, again, other, later = (
        [batch.source[:, 0].tolist() for batch in corpus_of(seed).batches(epoch)]
        for seed, epoch in ((3, 0), (3, 0), (4, 0), (3, 1))
    )
    assert first == again
    assert first not in (other, later)


def corpus_of(seed: int) -> Corpus:
    torch.manual_seed(0)
    return corpus(seed=seed)[2]


def test_a_sentence_larger_than_a_batch_is_a_batch_of_its_own():
    torch.manual_seed(0)
    long = [[5] * 60 + [EOS]]
    made = Corpus([*rows(3), *long], [*rows(3), *long], tokens=TOKENS, multiples=(8, 1), seed=0,
                  device=CPU, full=True)  # fmt: skip
    assert sorted(len(batch.source) for batch in made.batches(0))[0] == 1
    widths = torch.tensor([[2, 2], [3, 1], [9, 9]]).numpy()
    assert cut_by_tokens(widths, 6) == [(0, 2), (2, 3)]


def job_of(architecture: str, made: Corpus, **rules) -> TranslationJob:
    torch.manual_seed(1)
    model = network(architecture, Sizes(300, 8, 1, 2, 8, 16, 6, dropout=0.0), None)
    known = {"label_smoothing": 0.1, "word_dropout": 0.0, "consistency": 0.0} | rules
    return TranslationJob(model.double(), made, Regularization(**known), lambda model: 0.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_empty_sentences_change_neither_loss_nor_gradient(architecture):
    found = []
    for full in (False, True):
        torch.manual_seed(0)
        job = job_of(architecture, corpus(full=full)[2])
        for batch in job.batches(0):
            loss = job.loss(job.prepare(batch))
            loss.backward()
            found.append((loss.detach(), [x.grad.clone() for x in job.model.parameters()]))
    half = len(found) // 2
    for (loss, own), (other, theirs) in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(loss.float(), other.float())
        for one, two in zip(own, theirs, strict=True):
            torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_smoothed_loss_is_that_of_torch():
    logits, target = torch.randn(3, 5, 11), torch.randint(1, 11, (3, 5))
    target[1, 3:] = PAD
    for smoothing in (0.0, 0.1):
        found = smoothed(logits.log_softmax(-1), target, smoothing).sum()
        wanted = F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=smoothing,
            reduction="sum",
        )  # fmt: skip
        torch.testing.assert_close(found, wanted)


def test_two_passes_without_dropout_agree_and_with_dropout_do_not():
    made = corpus()[2]
    batch = next(iter(made.batches(0)))
    for dropout in (0.0, 0.5):
        losses = []
        for consistency in (0.0, 5.0):
            job = job_of("transformer", made, consistency=consistency)
            for module in job.model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = dropout
            job.model.train()
            torch.manual_seed(0)
            losses.append(float(job.loss(job.prepare(batch)).detach()))
        if dropout:
            assert losses[1] > losses[0] + 0.1
        else:
            assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_word_dropout_leaves_marks_alone():
    tokens = torch.tensor([[1, 7, 8, 9, EOS, PAD]]).expand(200, -1)
    found = dropped(tokens, 0.5)
    assert set(found[:, 1:4].unique().tolist()) == {UNK, 7, 8, 9}
    assert torch.equal(found[:, [0, 4, 5]], tokens[:, [0, 4, 5]])
    assert 0.4 < (found[:, 1:4] == UNK).float().mean() < 0.6
    assert dropped(tokens, 0.0) is tokens
