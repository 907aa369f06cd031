"""`Documents` and `Queries`: what is searched, what is asked, and which documents answer a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard.describe import describe
from regard.recipes.columns import as_list, checked_texts
from regard.recipes.estimator import RecipeError
from regard.recipes.retrieve.ids import Ids, check_ids

Content = list[str] | np.ndarray


@dataclass(frozen=True, eq=False)
class Documents:
    """What is searched: texts, or vectors (N, D), under unique ids.

    Attributes:
        names: the ids, numbers or texts; those of the rows if None is given.
        content: texts, or vectors.
    """

    names: Any
    content: Any

    def __post_init__(self) -> None:
        content = checked_content(self.content, "documents")
        if not len(content):
            raise RecipeError("documents are empty: give at least one")
        names = range(len(content)) if self.names is None else self.names
        names = check_ids(list(names), len(content), "ids of documents")
        object.__setattr__(self, "content", content)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "ids", Ids(names, "document"))

    def __len__(self) -> int:
        return len(self.content)

    @property
    def rows(self) -> Ids:
        """From ids to rows."""
        return self.ids  # type: ignore[missing-attribute] # set after the checks


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries, texts or vectors as their documents are.

    Attributes:
        content: texts, or vectors.
        documents: what they are asked of.
    """

    content: Any
    documents: Documents

    def __post_init__(self) -> None:
        if not isinstance(self.documents, Documents):
            raise RecipeError(f"documents must be a Documents, got {describe(self.documents)}")
        content = checked_content(self.content, "queries")
        check_alike(content, self.documents.content)
        object.__setattr__(self, "content", content)

    def __len__(self) -> int:
        return len(self.content)

    def take(self, rows: Sequence[int] | np.ndarray) -> Queries:
        """Some of the queries, of the same documents."""
        return Queries(taken(self.content, rows), self.documents)


def taken(content: Content, rows: Any) -> Content:
    """Some rows of texts or vectors."""
    if isinstance(content, np.ndarray):
        return content[np.asarray(rows, np.int64)]
    return [content[int(n)] for n in rows]


def checked_content(x: Any, name: str) -> Content:
    """Texts as a list, or finite vectors as float32.

    Raises:
        RecipeError: it is neither, or a vector has NaN or infinity.
    """
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    if isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
        if x.ndim != 2:
            raise RecipeError(f"{name} must be texts or vectors (rows, width), got shape {x.shape}")
        found = np.ascontiguousarray(x, np.float32)
        if len(bad := np.flatnonzero(~np.isfinite(found).all(1))):
            raise RecipeError(f"{name} must be finite: row {bad[0]} has NaN or infinity")
        return found
    return checked_texts(as_list(x, name, "texts"), name, "texts")


def check_alike(queries: Content, documents: Content) -> None:
    """Refuse queries that are no texts where documents are, or of another width.

    Raises:
        RecipeError: names both.
    """
    vectors = isinstance(documents, np.ndarray)
    if isinstance(queries, np.ndarray) != vectors and len(queries):
        kinds = ("vectors", "texts") if vectors else ("texts", "vectors")
        raise RecipeError(f"documents are {kinds[0]} and queries {kinds[1]}: both must be alike")
    if isinstance(queries, np.ndarray) and isinstance(documents, np.ndarray):
        wide, given = documents.shape[1], queries.shape[1]
        if wide != given:
            raise RecipeError(f"queries must have the documents' width {wide}, got {given}")


def relevant_rows(y: Any, documents: Documents, count: int) -> list[np.ndarray]:
    """For each query the rows of the documents that answer it, sorted, each once.

    Args:
        y: for each query a document's id, or several.
        documents: those that are searched.
        count: of the queries.

    Raises:
        RecipeError: y is missing, too short or too long, has an unknown id, or a query has no answer.
    """
    if y is None:
        raise RecipeError(
            "y is missing: give for each query the ids of the documents that answer it"
        )
    given = as_list(y, "y", "ids of documents for each query")
    if len(given) != count:
        raise RecipeError(f"y must have one entry for each of {count} queries, got {len(given)}")
    found = []
    for number, one in enumerate(given):
        several = isinstance(one, list | tuple | set | frozenset | np.ndarray)
        own = list(one) if several else [one]
        if not own:
            raise RecipeError(f"y[{number}] is empty: leave out queries that no document answers")
        try:
            found.append(np.unique(documents.rows.rows(own)))
        except RecipeError as error:
            raise RecipeError(f"y[{number}]: {error}") from None
    return found
