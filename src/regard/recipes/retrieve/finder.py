"""`DocumentFinder`: ranks documents for a query, by attention of its vectors over theirs."""

from __future__ import annotations

import json
import os
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from regard import Score
from regard.recipes.columns import held_out
from regard.recipes.datasets import Dataset
from regard.recipes.estimator import Recipe, RecipeError, building, checked_validation
from regard.recipes.metrics import Metric
from regard.recipes.retrieve.bags import Bags
from regard.recipes.retrieve.documents import (
    Content,
    Documents,
    Queries,
    check_alike,
    checked_content,
    relevant_rows,
)
from regard.recipes.retrieve.glove import glove_vectors
from regard.recipes.retrieve.ids import check_ids
from regard.recipes.retrieve.job import JudgedBags, MatcherJob, best_of, statistics_of
from regard.recipes.retrieve.net import READINGS, DocumentMatcher, MatcherShape, Reading
from regard.recipes.retrieve.ranking import MEASURES
from regard.recipes.retrieve.reading import (
    VECTORS,
    BagReader,
    VectorReader,
    Vectors,
    context_reader,
    reader_of,
    vector_reader,
    word_reader,
)
from regard.recipes.training import TrainingPlan, TrainingProgress, train


class FinderModel(nn.Module):
    """The matcher, with documents and reader as buffers, so that a saved model finds documents on its own."""

    def __init__(self, matcher: DocumentMatcher, kept: dict[str, Tensor]) -> None:
        super().__init__()
        self.matcher = matcher
        self.kept = nn.Module()
        for name, x in kept.items():
            self.kept.register_buffer(name, x)

    def forward(self, queries: Bags, documents: Bags) -> Tensor:
        """Logits (queries, documents)."""
        return self.matcher(queries, documents)


class DocumentFinder(Recipe):
    """Ranks documents, texts or vectors, for queries of the same kind.

    Every vector of a query attends over those of a document and over a sink; see `DocumentMatcher`. Training knows the ids of
    the documents that answer each query, and nothing else.

    Args:
        score: a name such as "cosine", a `Score` with one head, or None for scaled dot.
        vectors: of the words of texts: "own" are learned from the documents, "glove" has GloVe's beside them, "minilm"
            are those of a sentence encoder, which depend on the sentence. Vectors given as such are taken as they are.
        reading: of texts: "late" attends over the words of each document, "hop" over all documents, "late+hop" does
            both, and "mean", the control, compares mean vectors without attention.
        width: of the score's projections; None for that of the vectors.
        measure: "map" or "recall" (among the first ten), by which training stops and `score` judges.
        epochs: of training, at most; 0 for the vectors as they are.
        rate: the largest learning rate; it falls along a cosine.
        batch: queries in a batch.
        negatives: documents drawn for each batch beside those that answer; None for all.
        patience: the most validations in a row without a better one; None for never.
        folder: of the public data that have GloVe; None for `REGARD_DATA`.
        seed: of vectors, batches and weights.
        device: None for the GPU if there is one.
    """

    name = "retrieve"

    def __init__(
        self,
        score: str | Score | None = "cosine",
        vectors: Vectors = "own",
        reading: Reading = "late+hop",
        width: int | None = None,
        measure: str = "map",
        epochs: int = 10,
        rate: float = 1e-3,
        batch: int = 32,
        negatives: int | None = None,
        patience: int | None = None,
        folder: str | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        self.score = score  # type: ignore[bad-override] - kept as `chosen_score`
        self.vectors, self.reading, self.width, self.measure = vectors, reading, width, measure
        self.epochs, self.rate, self.batch, self.negatives = epochs, rate, batch, negatives
        self.patience, self.folder, self.seed, self.device = patience, folder, seed, device

    @property
    def metric(self) -> Metric:  # type: ignore[override] - follows from the measure
        """MAP or recall@10."""
        return MEASURES[self.measure]

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        documents: Documents | None = None,
        validation: tuple[Any, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: TrainingProgress | None = None,
    ) -> Self:
        """Train on queries and the ids of the documents that answer them; see `Recipe.fit`.

        Args:
            x: `Queries`, or texts or vectors with `documents`.
            y: for each query the id of a document, or several.
            documents: what is searched, if `x` does not say.
            validation: (x, y) of the same documents.
            checkpoint: as in `Recipe.fit`.
            progress: as in `Recipe.fit`.
        """
        self.check_arguments()
        x = self.queries(x, documents)
        found = relevant_rows(y, x.documents, len(x))
        if not len(x):
            raise RecipeError(
                "x is empty: give at least one query with the documents that answer it"
            )
        if validation is None:
            kept, held = held_out(range(len(x)), self.seed)
            rows = (
                (x.take(kept), [found[n] for n in kept]),
                (x.take(held), [found[n] for n in held]),
            )
        else:
            held_x, held_y = checked_validation(validation)
            held_x = self.queries(held_x, x.documents)
            rows = (x, found), (held_x, relevant_rows(held_y, x.documents, len(held_x)))
        self.learn_documents(x.documents)
        self.model_ = self.fresh_model()
        judged = [JudgedBags(self.read(one.content), own) for one, own in rows]
        self.matcher.start(judged[0].queries, self.documents_)
        job = MatcherJob(self.matcher, self.documents_, (judged[0], judged[1]), self.metric,
                         self.batch, self.negatives, self.seed)  # fmt: skip
        self.history_ = train(
            job,
            TrainingPlan(epochs=self.epochs, rate=self.rate, patience=self.patience),
            seed=self.seed,
            device=self.chosen_device(),
            checkpoint=checkpoint,
            progress=progress,
            identity=lambda: self.identity(x.documents.names, x.documents.content,
                                           *((one.content, own) for one, own in rows)),
        )  # fmt: skip
        self.model_.eval()
        return self

    def fit_dataset(self, data: Dataset, **options: Any) -> Self:
        """`fit` on the training part of a set, with its validation part."""
        held = (data.validation.x, data.validation.y)
        return self.fit(data.train.x, data.train.y, validation=held, **options)

    def predict(self, x: Any, n_best: int = 1) -> np.ndarray:
        """The ids of the best `n_best` documents of each query (queries, n_best), the best first."""
        if type(n_best) is not int or n_best < 1:
            raise RecipeError(f"n_best must be an integer of 1 or more, got {n_best!r}")
        bags = self.read(self.asked(x))
        count = min(n_best, len(self.names_))
        rows = best_of(self.matcher, bags, self.documents_, count)
        return self.names_[np.array(rows, np.int64).reshape(len(bags), count)]

    def statistics(self, x: Any, y: Any) -> np.ndarray:
        """Average precision, recall among the first ten and reciprocal rank of each query (N, 3)."""
        content = self.asked(x)
        relevant = relevant_rows(y, self.known_documents(), len(content))
        return statistics_of(
            self.matcher, JudgedBags(self.read(content), relevant), self.documents_
        )

    @property
    def matcher(self) -> DocumentMatcher:
        """The trained network."""
        assert isinstance(self.model_, FinderModel)
        return self.model_.matcher

    def known_documents(self) -> Documents:
        """The documents' ids, with their rows as content: what judgements are checked against."""
        return Documents(self.names_, np.zeros((len(self.names_), 1), np.float32))

    def queries(self, x: Any, documents: Documents | None) -> Queries:
        """The queries with their documents.

        Raises:
            RecipeError: x is plain, and no documents are given.
        """
        if isinstance(x, Queries):
            return x
        if documents is None:
            raise RecipeError(
                "x has no documents: give documents=Documents(ids, texts), or x=Queries(...)"
            )
        return Queries(x, documents)

    def asked(self, x: Any) -> Content:
        """The content of queries to a trained model, checked."""
        self.check_fitted()
        content = checked_content(x.content if isinstance(x, Queries) else x, "x")
        if isinstance(self.reader_, VectorReader):
            check_alike(content, np.zeros((1, self.reader_.blocks[0]), np.float32))
        else:
            check_alike(content, [""])
        return content

    def read(self, content: Content) -> Bags:
        """Queries as bags on the device."""
        return self.reader_.read(content).to(self.chosen_device())

    def learn_documents(self, documents: Documents) -> None:
        """Make the reader, and read the documents."""
        self.names_ = documents.names
        content, reader = documents.content, None
        self.reader_: BagReader
        if isinstance(content, np.ndarray):
            reader = vector_reader(content)
        elif self.vectors == "minilm":
            reader = context_reader(content)
        else:
            glove = glove_vectors(self.folder) if self.vectors == "glove" else None
            reader = word_reader(content, glove, self.seed)
        self.reader_ = reader
        self.documents_ = self.read(content)

    def fresh_model(self) -> FinderModel:
        """The network with fresh weights, and all that a saved model needs."""
        single = self.documents_.single
        shape = MatcherShape(
            self.reader_.blocks, self.chosen_score, self.width, self.reading, single
        )
        torch.manual_seed(self.seed)
        with building():
            matcher = DocumentMatcher(shape)
        bags = self.documents_
        kept = {"reader_" + name: x for name, x in self.reader_.tensors().items()} | {
            "first": bags.first,
            "types": bags.types,
            "counts": bags.counts,
            "salience": bags.salience,
        }
        if "reader_table" not in kept:  # else the documents' table is that of the words
            kept["table"] = bags.table
        return FinderModel(matcher, kept).to(self.chosen_device())

    def learned(self) -> dict[str, Any]:
        """Ids, the reader, and the sizes of what is kept beside the weights."""
        kept = {k: [list(x.shape), str(x.dtype)] for k, x in self.model_.kept.named_buffers()}  # type: ignore[missing-attribute]
        return {"names": self.names_.tolist(), "reader": self.reader_.facts(), "kept": kept}

    def restore(self, learned: dict[str, Any]) -> None:
        """Set what `learned` returned, and build the network; documents follow with the weights."""
        self.check_arguments()
        self.names_ = check_ids(learned["names"])
        kept = {k: torch.empty(shape, dtype=getattr(torch, kind.removeprefix("torch.")))
                for k, (shape, kind) in learned["kept"].items()}  # fmt: skip
        self.take_kept(kept, learned["reader"])
        self.model_ = self.fresh_model()

    def take_kept(self, kept: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """The reader and the documents from what was kept."""
        own = {k.removeprefix("reader_"): x for k, x in kept.items() if k.startswith("reader_")}
        self.reader_ = reader_of(facts, own)
        table = kept.get("table", kept.get("reader_table"))
        if table is None or len(kept["first"]) != len(self.names_) + 1:
            raise RecipeError("its documents are incomplete")
        single = isinstance(self.reader_, VectorReader)
        self.documents_ = Bags(
            table, kept["types"], kept["first"], kept["counts"], kept["salience"], single
        )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: str | torch.device | None = None
    ) -> Self:
        """Read a file that `save` wrote; see `Recipe.load`."""
        found = super().load(path, device=device)
        kept = {k: x.cpu() for k, x in found.model_.kept.named_buffers()}  # type: ignore[missing-attribute]
        found.take_kept(kept, json.loads(json.dumps(found.reader_.facts())))
        found.documents_ = found.documents_.to(found.chosen_device())
        return found

    def check_arguments(self) -> None:
        """Refuse arguments that cannot work, by name."""
        self.check_training()
        for name, choices in (
            ("vectors", VECTORS),
            ("reading", READINGS),
            ("measure", tuple(MEASURES)),
        ):
            if getattr(self, name) not in choices:
                raise RecipeError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        for name in ("width", "batch", "negatives"):
            value = getattr(self, name)
            if (type(value) is not int or value < 1) and (name == "batch" or value is not None):
                raise RecipeError(f"{name} must be an integer of 1 or more, got {value!r}")
