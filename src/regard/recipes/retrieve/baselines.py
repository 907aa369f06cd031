"""What finders are compared with: BM25 and LSI for texts, FAISS and learned metrics for vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize

from regard.measuring.clock import worked
from regard.recipes.datasets import Dataset, Part
from regard.recipes.kit import Evaluated
from regard.recipes.metrics import Metric
from regard.recipes.retrieve.documents import relevant_rows
from regard.recipes.retrieve.ranking import of_lists, of_logits
from regard.recipes.retrieve.searching import FaissSearch, SearchMethod
from regard.recipes.retrieve.words import counted, decomposed, rarity_of, weighted, words_of

LISTED = 1000  # documents that FAISS lists for a query; of the rest it knows no order
Search = Callable[[Any], tuple[np.ndarray, bool]]


def evaluated(data: Dataset, metric: Metric, built: Callable[[], tuple[Search, int]]) -> Evaluated:
    """A method that is built once and then asked.

    Args:
        data: the set.
        metric: of the comparison.
        built: makes what takes queries to logits (queries, documents), False, or to lists of rows, True; and how many
            numbers it has learned.
    """
    begun = worked()
    search, size = built()
    ready = worked()
    tested = statistics(search, data.test)
    seconds = worked() - ready
    validation = metric.value(statistics(search, data.validation))
    return Evaluated(validation, tested, size, ready - begun, seconds)


def statistics(search: Search, part: Part) -> np.ndarray:
    """Statistics of the queries of a part."""
    relevant = relevant_rows(part.y, part.x.documents, len(part))
    found, listed = search(part.x.content)
    return of_lists(found, relevant) if listed else of_logits(torch.from_numpy(found), relevant)


def counted_as(texts: list[str], words: list[str]) -> sparse.csr_matrix:
    """How often each text has each of these words."""
    number = {word: place for place, word in enumerate(words)}
    pairs = [(n, number[w]) for n, one in enumerate(texts) for w in words_of(one) if w in number]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    return sparse.csr_matrix((np.ones(len(pairs)), (rows, columns)), (len(texts), len(words)))


def bm25(data: Dataset, setting: Mapping[str, Any]) -> tuple[Search, int]:
    """BM25 (Robertson et al. 1995) on the words that finders see too."""
    words, counts = counted(data.train.x.documents.content)
    lengths = np.asarray(counts.sum(1)).ravel()
    share, most = setting["b"], setting["k1"]
    weights = counts.tocoo()
    longer = 1 - share + share * lengths[weights.row] / max(lengths.mean(), 1)
    saturated = weights.data * (most + 1) / (weights.data + most * longer)
    table = sparse.csr_matrix(
        (rarity_of(counts)[weights.col] * saturated, (weights.row, weights.col)), counts.shape
    )
    return lambda asked: ((counted_as(asked, words) @ table.T).toarray(), False), 0


def lsi(data: Dataset, setting: Mapping[str, Any]) -> tuple[Search, int]:
    """Latent semantic indexing (Deerwester et al. 1990) by scikit-learn's truncated SVD."""
    words, counts = counted(data.train.x.documents.content)
    rarity, axes = rarity_of(counts), decomposed(counts, setting["width"], 0)
    documents = normalize(weighted(counts, rarity) @ axes)

    def search(asked: Any) -> tuple[np.ndarray, bool]:
        return normalize(weighted(counted_as(asked, words), rarity) @ axes) @ documents.T, False

    return search, axes.size


def by_faiss(data: Dataset, setting: Mapping[str, Any]) -> tuple[Search, int]:
    """FAISS by the cosine of vectors less the documents' mean, on all of their numbers or the first principal axes."""
    documents = data.train.x.documents.content
    mean, axes = documents.mean(0), None
    if setting.get("axes"):
        _, found = np.linalg.eigh(np.cov(documents - mean, rowvar=False).astype(np.float64))
        axes = found[:, ::-1][:, : setting["axes"]].astype(np.float32)

    def unit(x: np.ndarray) -> np.ndarray:
        moved = x - mean if axes is None else (x - mean) @ axes
        return np.ascontiguousarray(normalize(moved), np.float32)

    more = {k: v for k, v in setting.items() if k not in ("axes", "kind")}
    found = FaissSearch(unit(documents), SearchMethod(setting["kind"], **more))
    count = min(LISTED if setting["kind"] == "flat" else 100, len(documents))
    size = 0 if axes is None else axes.size
    return lambda asked: (found.search(unit(asked), count)[1], True), size


def by_classes(data: Dataset, setting: Mapping[str, Any], seed: int) -> tuple[Search, int]:
    """Projections of scikit-learn that learn from classes, then the Euclidean distance.

    LDA (Fisher 1936), or neighbourhood components analysis (Goldberger et al. 2004). Classes are those of the queries
    that share their documents: they are told no more than a finder is.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    x, labels = classes_of(data.train)
    if setting["kind"] == "lda":
        model = LinearDiscriminantAnalysis(solver="eigen", shrinkage=setting["shrinkage"])
    else:
        model = NeighborhoodComponentsAnalysis(
            setting["axes"], max_iter=setting["steps"], random_state=seed
        )
    scale = np.abs(x).max()
    model.fit(x / scale, labels)
    table = model.transform(data.train.x.documents.content / scale)

    def search(asked: Any) -> tuple[np.ndarray, bool]:
        own = model.transform(asked / scale)
        square = (own**2).sum(1)[:, None] - 2 * own @ table.T + (table**2).sum(1)
        return -square, False

    return search, table.shape[1] * x.shape[1]


def classes_of(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of queries and of the documents that answer them, with the class of each."""
    documents = part.x.documents
    groups: dict[tuple[int, ...], int] = {}
    labels = [
        groups.setdefault(tuple(own.tolist()), len(groups))
        for own in relevant_rows(part.y, documents, len(part))
    ]
    answers = [row for own in groups for row in own]
    named = [label for own, label in groups.items() for _ in own]
    return np.vstack([part.x.content, documents.content[answers]]), np.array([*labels, *named])
