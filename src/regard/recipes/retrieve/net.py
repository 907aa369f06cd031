"""`DocumentMatcher`: how well each document answers each query, by two kinds of attention.

- Over the vectors of a document ("late", late interaction): each vector of the query attends over those of a document
  and over a sink. The share of attention that the document gets, rather than the sink, is how far it answers this
  vector. With a score that is large for equal words alone and a sink that grows with the document's length, this is
  the saturation of BM25; a trained score counts related words too.
- Over the documents ("hop"): the query's mean vector attends over the mean vectors of all documents, and moves towards
  what it finds, before documents are ranked: a retrieval that is itself soft, and learns.

Shape legend: Q queries, N documents, E vectors of all queries, T rows of the documents' table, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import Bilinear, LowRank, Projected, Score
from regard.recipes.estimator import building, own_score
from regard.recipes.retrieve.bags import Bags
from regard.scores.lookup import make_score

Reading = Literal["late+hop", "hop", "late", "mean"]
READINGS: tuple[Reading, ...] = get_args(Reading)
SATURATION, LENGTH = 1.2, 0.75  # the usual k1 and b of BM25, from which training starts
SHARP = 10.0  # the logit of a vector with itself above that with others, from which training starts
TINY = 1e-30
HOP = 20.0  # sharpness of the attention over documents, whose cosines are smaller, at the start of training
STEP = 0.6  # how far the query moves, at the start of training
SAMPLED = 512  # vectors by which sharpness is set
LEAST_SPREAD = 1e-3
STARTED = ("query_weight", "key_weight", "query_factor", "key_factor", "weight")
LATE = 0.3  # the part of late interaction in the whole, at the start of training


@dataclass(frozen=True)
class MatcherShape:
    """The sizes of a `DocumentMatcher`; the names are those of `DocumentFinder`."""

    blocks: tuple[int, ...]
    score: str | Score | None
    width: int | None
    reading: Reading
    single: bool

    @property
    def dim(self) -> int:
        """Numbers of a vector."""
        return sum(self.blocks)


class DocumentMatcher(nn.Module):
    """Logits of all documents for all queries.

    Args:
        shape: the sizes.
    """

    def __init__(self, shape: MatcherShape) -> None:
        super().__init__()
        self.shape = shape
        self.single, self.late_too = shape.single, shape.reading.startswith("late")
        self.whole_too, self.hops = shape.reading != "late", shape.reading.endswith("hop")
        attends = shape.single or self.late_too
        self.score = fitted_score(shape) if attends else None
        self.sharpness = nn.Parameter(torch.zeros(()))  # its logarithm
        self.volume = nn.Parameter(torch.tensor(math.log(20.0)))
        if shape.single:
            return
        self.sink = nn.Parameter(torch.zeros(()))
        self.length = nn.Parameter(torch.tensor(math.log(LENGTH / (1 - LENGTH))))
        self.rarity = nn.Parameter(torch.ones(()))
        self.late_part = nn.Parameter(torch.tensor(LATE))
        self.gains = nn.Parameter(torch.ones(shape.dim))
        self.register_buffer("usual", torch.ones(()))  # the mean length of a document
        self.hop_score = fitted_score(shape) if self.hops else None
        self.hop_sharpness = nn.Parameter(torch.tensor(0.0))
        self.step = nn.Parameter(torch.tensor(STEP))

    @torch.no_grad()
    def start(self, queries: Bags, documents: Bags) -> None:
        """Set sharpness and sink by the vectors, so that every score starts from about the same weights."""
        other = documents.table[:: max(len(documents.table) // SAMPLED, 1)]
        if self.score is not None:
            some = self.unit(queries.table[queries.types.unique()[:SAMPLED]])
            own, spread = spread_of(self.score, some, self.unit(other))
            # An additive score does not favour equal vectors at its start: its logits stay as they are.
            if spread > LEAST_SPREAD:
                self.sharpness.fill_(math.log(SHARP / spread))
            if not self.single:
                self.usual.fill_(float(documents.lengths().mean().clamp(min=1)))
                self.sink.fill_(own * float(self.sharpness.exp()) + math.log(SATURATION))
        if not self.single and self.hop_score is not None:
            means = documents.means[:SAMPLED]
            _, spread = spread_of(self.hop_score, means, means)
            if spread > LEAST_SPREAD:
                self.hop_sharpness.fill_(math.log(HOP / spread))

    def forward(self, queries: Bags, documents: Bags, memory: Tensor | None = None) -> Tensor:
        """Logits (Q, N).

        Args:
            queries: what is asked.
            documents: what is ranked.
            memory: mean vectors of the documents that a hop attends over; None for those of `documents`.
        """
        if self.single:
            assert self.score is not None
            asked, found = (self.unit(one.table[one.types]) for one in (queries, documents))
            return regard.score(asked, found, self.score) * self.sharpness.exp()
        found = torch.zeros((), device=queries.table.device)
        if self.whole_too:
            found = found + self.whole(queries, documents, memory)
        if self.late_too:
            found = found + (self.late_part if self.whole_too else 1.0) * self.late(
                queries, documents
            )
        return self.volume.exp() * found

    def whole(self, queries: Bags, documents: Bags, memory: Tensor | None) -> Tensor:
        """The cosines (Q, N) of the mean vectors, with a learned gain for each of their numbers, after the hop."""
        asked, means = queries.means, documents.means
        if self.hops:
            asked = self.moved(asked, means if memory is None else memory)
        sides = [F.normalize(one * self.gains, dim=-1) for one in (asked, means)]
        return sides[0] @ sides[1].T

    def moved(self, asked: Tensor, memory: Tensor) -> Tensor:
        """The queries (Q, D), moved towards what they attend to among the documents."""
        warm = (-self.hop_sharpness).exp().view(1)
        found = regard.attention(asked, memory, memory, self.hop_score, temperature=warm)
        return F.normalize(asked, dim=-1) + self.step * F.normalize(found, dim=-1)

    def late(self, queries: Bags, documents: Bags) -> Tensor:
        """The mean share (Q, N) of the query's vectors, weighted by how much each says."""
        shares = self.shares(queries, documents)  # (N, E)
        weight = queries.salience.clamp(min=TINY) ** self.rarity
        total = torch.zeros(len(queries), device=weight.device).index_add(0, queries.owners, weight)
        weight = weight / total.clamp(min=TINY)[queries.owners]
        found = shares.new_zeros(len(queries), len(documents))
        return found.index_add(0, queries.owners, shares.T * weight.unsqueeze(1))

    def shares(self, queries: Bags, documents: Bags) -> Tensor:
        """The share (N, E) of attention that stays in a document, for each vector of the queries."""
        logits = self.logits(queries, documents)
        top = logits.amax(1, keepdim=True).detach()
        inside = documents.summed((logits - top).exp().T.contiguous(), documents.counts)  # (N, E)
        lse = (inside + TINY).log() + top.T
        return torch.sigmoid(lse - self.sink_of(documents).unsqueeze(1))

    def sink_of(self, documents: Bags) -> Tensor:
        """The logit (N,) of the sink, which grows with the length of a document."""
        lengths, share = documents.lengths(), torch.sigmoid(self.length)
        return self.sink + (1 - share + share * lengths / self.usual).log()

    def weights(self, queries: Bags, documents: Bags) -> Tensor:
        """The attention (E, entries) of each vector of a query over the entries of one document; the rest is the sink's."""
        logits = self.logits(queries, documents)[:, documents.types] + documents.counts.log()
        sink = self.sink_of(documents).expand(len(logits), 1)
        return torch.cat([logits, sink], 1).softmax(1)[:, :-1]

    def logits(self, queries: Bags, documents: Bags) -> Tensor:
        """Logits (E, T) of the queries' vectors with the rows of the documents' table."""
        assert self.score is not None
        asked, found = self.unit(queries.table[queries.types]), self.unit(documents.table)
        return regard.score(asked, found, self.score) * self.sharpness.exp()

    def unit(self, x: Tensor) -> Tensor:
        """Vectors of norm 1, each block of them with the same share."""
        parts = [F.normalize(one, dim=-1) for one in x.split(self.shape.blocks, -1)]
        return torch.cat(parts, -1) / len(parts) ** 0.5


def spread_of(score: Score, some: Tensor, other: Tensor) -> tuple[float, float]:
    """The mean score of a vector with itself, and how far it is above that with others."""
    own = float(regard.score(some.unsqueeze(1), some.unsqueeze(1), score).mean())
    return own, own - float(regard.score(some, other, score).mean())


def fitted_score(shape: MatcherShape) -> Score:
    """The score with projections that start as the identity, so that training starts from the vectors' own geometry."""
    given = own_score(shape.score)
    if isinstance(given, Score):
        return given
    width = shape.width or shape.dim
    with building():
        made = make_score(given, width, 1)
        if isinstance(made, LowRank):
            made = LowRank(shape.dim, shape.dim, max(width // 2, 1))
        elif isinstance(made, Bilinear):
            made = Bilinear(shape.dim, shape.dim)
        else:
            made = Projected(made, shape.dim, shape.dim, width=width)
    for name, parameter in made.named_parameters():
        if name.rpartition(".")[2] in STARTED:
            nn.init.eye_(parameter.view(-1, shape.dim))
    return made
