"""What a translation training does at each step and validation.

Shape legend: B batch, T target pieces, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.recipes.training import Job
from regard.recipes.translate.batches import Corpus, PairBatch
from regard.recipes.translate.networks import RecurrentTranslator, TransformerTranslator
from regard.recipes.translate.subwords import BOS, EOS, PAD, UNK


@dataclass(frozen=True)
class Regularization:
    """What keeps a network from learning its few sentences by heart.

    Attributes:
        label_smoothing: the share of each target's probability that is spread over all pieces.
        word_dropout: the share of source and target inputs that are replaced by `<unk>`.
        consistency: weight of the divergence between two passes with different dropout (R-Drop, Liang et al.
            2021); 0 for one pass only.
    """

    label_smoothing: float
    word_dropout: float
    consistency: float


class TranslationJob(Job):
    """Training of a network on a corpus.

    Args:
        model: the network.
        corpus: its batches.
        rules: label smoothing, word dropout and consistency.
        quality: from a model in eval mode to its quality on the validation data.
    """

    def __init__(
        self,
        model: RecurrentTranslator | TransformerTranslator,
        corpus: Corpus,
        rules: Regularization,
        quality: Callable[[nn.Module], float],
    ) -> None:
        self.model, self.corpus, self.rules, self.quality = model, corpus, rules, quality

    def batches(self, epoch: int) -> Iterator[PairBatch]:
        """The batches of an epoch."""
        return self.corpus.batches(epoch)

    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return len(self.corpus)

    def prepare(self, batch: PairBatch) -> tuple[Tensor | None, ...]:
        """The target (B, T), and the source as the network reads it."""
        source, lengths, target = batch
        if self.rules.consistency:
            # Both passes in one batch: on a GPU twice the rows cost little more than the rows once.
            source, lengths, target = (torch.cat([x, x]) for x in batch)
        source = dropped(source, self.rules.word_dropout)
        return target, *self.model.read(source, lengths)  # type: ignore[not-callable] # a method of the network

    def loss(self, batch: tuple[Tensor | None, ...]) -> Tensor:
        """Smoothed cross entropy of the target's pieces in nats, and the divergence of two passes."""
        rules, (target, *read) = self.rules, batch
        assert target is not None
        inputs = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
        inputs = dropped(inputs, rules.word_dropout)
        logits = self.model.teach(read, inputs)  # type: ignore[not-callable] # a method of the network
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        count = (target != PAD).sum()
        loss = smoothed(log_probs, target, rules.label_smoothing).sum() / count
        if rules.consistency:
            one, other = log_probs.chunk(2)
            # Half the sum of both Kullback-Leibler divergences, sum (p - q)(log p - log q) / 2.
            apart = ((one.exp() - other.exp()) * (one - other)).sum(-1)
            real = target.chunk(2)[0] != PAD
            loss = loss + rules.consistency * 0.5 * (apart * real).sum() / (count / 2)
        return loss

    def validate(self, model: nn.Module) -> float:
        """The quality on the validation data."""
        return self.quality(model)


def smoothed(log_probs: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Cross entropy (B, T) with label smoothing, 0 at padding, from log probabilities (B, T, V)."""
    right = log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = -(1 - smoothing) * right
    if smoothing:
        loss = loss - smoothing * log_probs.mean(-1)
    return loss * (target != PAD)


def dropped(tokens: Tensor, share: float) -> Tensor:
    """The tokens with a random share of the ordinary ones replaced by `<unk>`."""
    if not share:
        return tokens
    lost = (torch.rand(tokens.shape, device=tokens.device) < share) & (tokens > EOS)
    return tokens.masked_fill(lost, UNK)
