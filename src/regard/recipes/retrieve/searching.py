"""The nearest candidates by FAISS, for scores that are inner products of features.

A score of the inner form, `scale <phi(q), psi(k)> + beta(k)`, is an inner product of `(scale phi, 1)` and
`(psi, beta)`, which FAISS searches: flat (exact), by inverted lists (IVF) or in a graph of neighbours (HNSW). Additive
scores are no inner product; they are searched exactly, block by block.

Shape legend: Q queries, N keys, F features, K best keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from regard import Score
from regard.forms import InnerKey, InnerQuery
from regard.recipes.blockwise import BLOCK
from regard.recipes.estimator import RecipeError, building
from regard.scores.lookup import named_score

Method = Literal["exact", "flat", "ivf", "hnsw"]
METHODS: tuple[Method, ...] = get_args(Method)
MISSING = "the search by FAISS needs faiss: pip install 'regard[recipes]', or method='exact'"
TRAINED_ON = 64  # keys for each inverted list by which FAISS places them; more are not used


@dataclass(frozen=True)
class SearchMethod:
    """How candidates are found.

    Attributes:
        kind: "exact" scores every key by the score itself, on any device; "flat", "ivf" and "hnsw" are FAISS's.
        lists: of "ivf"; None for four times the root of the number of keys.
        probes: lists of "ivf" that a query looks into.
        links: of each key in the graph of "hnsw".
        width: candidates that "hnsw" keeps while it walks, in building and searching.
    """

    kind: Method = "exact"
    lists: int | None = None
    probes: int = 8
    links: int = 32
    width: int = 128

    def __post_init__(self) -> None:
        if self.kind not in METHODS:
            raise RecipeError(f"method must be one of {', '.join(METHODS)}, got {self.kind!r}")
        for name in ("lists", "probes", "links", "width"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise RecipeError(f"{name} must be an integer of 1 or more, got {value!r}")


def faiss_module() -> Any:
    """FAISS.

    Raises:
        RecipeError: it is not installed; names the extra that brings it.
    """
    try:
        import faiss
    except ImportError:
        raise RecipeError(MISSING) from None
    return faiss


@torch.no_grad()
def key_features(score: Score | str | None, keys: Tensor) -> np.ndarray:
    """What FAISS stores of the keys: (N, F) float32.

    Raises:
        RecipeError: the score is no inner product.
    """
    found: list[Tensor] = []
    for part in keys.split(BLOCK):
        side = lowered(score, part, "key")
        psi = side.psi[0]
        found.append(psi if side.beta is None else torch.cat([psi, side.beta[0].unsqueeze(-1)], -1))
    return contiguous(torch.cat(found))


@torch.no_grad()
def query_features(score: Score | str | None, query: Tensor, width: int) -> np.ndarray:
    """What FAISS is asked for: (Q, width) float32, without terms of the query alone, which change no order."""
    side = lowered(score, query, "query")
    phi = side.phi[0] * side.scale
    if phi.shape[1] < width:  # the last feature of the keys is their own term
        phi = torch.cat([phi, torch.ones_like(phi[:, :1])], -1)
    return contiguous(phi)


def lowered(score: Score | str | None, x: Tensor, side: str) -> Any:
    """The query or key side of an inner score with one head."""
    with building():
        own = named_score(score)
        # Without an origin, which differs from block to block.
        found = own.query(x[None]) if side == "query" else own.key_at(x[None], None)
    if not isinstance(found, InnerQuery | InnerKey):
        raise RecipeError(
            f"the score {own.name!r} is no inner product, so FAISS cannot search by it: use method='exact'"
        )
    if found[0].shape[0] != 1:
        raise RecipeError(f"an index needs a score with one head, got {found[0].shape[0]} heads")
    return found


def contiguous(x: Tensor) -> np.ndarray:
    """As FAISS takes it."""
    return np.ascontiguousarray(x.detach().cpu().float().numpy())


class FaissSearch:
    """Keys in a structure of FAISS.

    Args:
        features: of the keys (N, F), from `key_features`.
        method: "flat" keeps no copy of them.
    """

    def __init__(self, features: np.ndarray, method: SearchMethod) -> None:
        self.features, self.method = features, method
        self.faiss = faiss_module()
        self.structure = None if method.kind == "flat" else self.built()

    def built(self) -> Any:
        """The inverted lists, or the graph. Both are the same at every building of the same keys."""
        faiss, (count, width) = self.faiss, self.features.shape
        product = faiss.METRIC_INNER_PRODUCT
        if self.method.kind == "hnsw":
            found = faiss.IndexHNSWFlat(width, self.method.links, product)
            found.hnsw.efConstruction = found.hnsw.efSearch = self.method.width
        else:
            lists = min(self.method.lists or 4 * math.isqrt(count), count)
            coarse = faiss.IndexFlatIP(width)
            found = faiss.IndexIVFFlat(coarse, width, lists, product)
            found.own_fields = True
            coarse.this.disown()
            found.nprobe = min(self.method.probes, lists)
            found.cp.min_points_per_centroid = 1  # few keys are no mistake here
            found.cp.max_points_per_centroid = TRAINED_ON
            found.train(self.features)
        found.add(self.features)
        return found

    def search(self, query: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The greatest inner products (Q, K) and their keys (Q, K); -1 where a list had too few."""
        if self.structure is not None:
            return self.structure.search(query, count)
        product = self.faiss.METRIC_INNER_PRODUCT
        return self.faiss.knn(query, self.features, count, metric=product)
