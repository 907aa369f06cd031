"""What `DocumentFinder` gives to the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.recipes.metrics import Metric
from regard.recipes.retrieve.bags import Bags
from regard.recipes.retrieve.net import DocumentMatcher
from regard.recipes.retrieve.ranking import of_logits
from regard.recipes.training import Job

LOGITS_AT_ONCE = 2**22  # of the queries' vectors with the rows of the documents' table


class JudgedBags(NamedTuple):
    """Queries, and the rows of the documents that answer each."""

    queries: Bags
    relevant: list[np.ndarray]


class QueryBatch(NamedTuple):
    """A batch: queries, candidates, and which candidates answer a query (Q, candidates)."""

    queries: Bags
    candidates: Bags
    answers: Tensor


class MatcherJob(Job):
    """The training of a matcher: shuffled queries, each against the answers of its batch and drawn documents.

    Args:
        model: what is trained.
        documents: all documents.
        rows: for training and for validation.
        metric: of the validation.
        size: queries in a batch.
        negatives: documents drawn for a batch; None for all documents.
        seed: of the shuffling and drawing.
    """

    def __init__(
        self, model: DocumentMatcher, documents: Bags, rows: tuple[JudgedBags, JudgedBags], metric: Metric,
        size: int, negatives: int | None, seed: int,
    ) -> None:  # fmt: skip
        self.model, self.documents = model, documents
        self.rows, self.held = rows
        self.metric, self.size, self.seed = metric, size, seed
        self.memory = None if documents.single else documents.means
        self.negatives = None if negatives is None or negatives >= len(documents) else negatives

    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.rows.queries) // self.size)

    def batches(self, epoch: int) -> Iterator[QueryBatch]:
        """All queries, shuffled by seed and epoch."""
        random = np.random.default_rng((self.seed, epoch))
        order = random.permutation(len(self.rows.queries))
        for some in np.array_split(order, self.steps_per_epoch()):
            yield self.asked(some, random)

    def asked(self, some: np.ndarray, random: np.random.Generator) -> QueryBatch:
        """A batch of these queries."""
        relevant = [self.rows.relevant[n] for n in some]
        queries = self.rows.queries.take(torch.from_numpy(some))
        if self.negatives is None:
            chosen, candidates = np.arange(len(self.documents)), self.documents
        else:
            drawn = random.choice(len(self.documents), self.negatives, replace=False)
            chosen = np.unique(np.concatenate([*relevant, drawn]))
            candidates = self.documents.take(torch.from_numpy(chosen)).compact()
        answers = torch.zeros(len(some), len(chosen))
        for number, own in enumerate(relevant):
            answers[number, torch.from_numpy(np.searchsorted(chosen, own))] = 1
        return QueryBatch(queries, candidates, answers.to(queries.table.device))

    def loss(self, batch: QueryBatch) -> Tensor:
        """The cross-entropy of the weights over documents, with equal shares for the answers of a query."""
        weights = self.model(batch.queries, batch.candidates, self.memory).log_softmax(1)
        share = batch.answers / batch.answers.sum(1, keepdim=True)
        return -(share * weights).sum(1).mean()

    def validate(self, model: nn.Module) -> float:
        """The quality of the ranking of all documents for the validation queries."""
        found = statistics_of(model, self.held, self.documents)
        return self.metric.gain(self.metric.value(found))


def parts_of(model: nn.Module, queries: Bags, documents: Bags) -> Iterator[Tensor]:
    """Rows of queries in parts whose logits fit in memory."""
    each = len(documents)
    if getattr(model, "late_too", False) and not documents.single and len(queries):
        each = max(len(documents.table) * int(queries.sizes.max()), each)
    yield from torch.arange(len(queries)).split(max(LOGITS_AT_ONCE // max(each, 1), 1))


@torch.no_grad()
def all_logits(model: nn.Module, queries: Bags, documents: Bags) -> Iterator[Tensor]:
    """The logits of all documents for some queries after the other."""
    for rows in parts_of(model, queries, documents):
        yield model(queries.take(rows), documents)


def statistics_of(model: nn.Module, asked: JudgedBags, documents: Bags) -> np.ndarray:
    """The statistics of each query."""
    found, relevant = [], iter(asked.relevant)
    for logits in all_logits(model, asked.queries, documents):
        found.append(of_logits(logits, [next(relevant) for _ in logits]))
    return np.concatenate(found) if found else np.zeros((0, 3))


def best_of(model: nn.Module, queries: Bags, documents: Bags, count: int) -> Sequence[np.ndarray]:
    """The rows of the best documents of each query, the best first."""
    found = []
    for logits in all_logits(model, queries, documents):
        found.extend(logits.topk(min(count, logits.shape[1]), 1).indices.cpu().numpy())
    return found
