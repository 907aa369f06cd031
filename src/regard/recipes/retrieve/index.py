"""`SoftIndex`: keys under ids that are searched, attended to and trained through, however many they are.

Shape legend: Q queries, N keys, D key dim, V value dim, K candidates.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

import regard
from regard import Score
from regard.describe import describe
from regard.measuring.failures import first_line
from regard.recipes.blockwise import SoftRead, best_keys, soft_read
from regard.recipes.estimator import RecipeError, building, check_score
from regard.recipes.retrieve.filing import read_tensors, write_tensors
from regard.recipes.retrieve.ids import Ids, check_ids
from regard.recipes.retrieve.searching import (
    FaissSearch,
    SearchMethod,
    key_features,
    query_features,
)


class NearestKeys(NamedTuple):
    """The best keys of each query, the best first: their ids and logits, both (Q, K)."""

    ids: np.ndarray
    logits: Tensor


class SoftIndex:
    """Keys under ids, with any score between queries and keys.

    `search` finds the best keys. `attend` is attention over all keys, exact and in bounded memory, or over the best
    `k` of them; gradients reach queries and the score. As the temperature falls it becomes the nearest neighbour.

    Args:
        dim: of the keys.
        score: a `Score` with one head, a name of one without parameters, or None for scaled dot.
        method: how candidates are found: "exact", "flat", "ivf", "hnsw", or a `SearchMethod`.
    """

    def __init__(
        self,
        dim: int,
        score: Score | str | None = None,
        method: str | SearchMethod = "exact",
    ) -> None:
        if type(dim) is not int or dim < 1:
            raise RecipeError(f"dim must be an integer of 1 or more, got {dim!r}")
        check_score(score)
        self.dim, self.score = dim, score
        self.method = method if isinstance(method, SearchMethod) else SearchMethod(method)  # type: ignore[bad-argument-type]
        self.keys = torch.empty(0, dim)
        self.values: Tensor | None = None
        self.ids = Ids()
        self._search: FaissSearch | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, ids: Any, keys: Any, values: Any = None) -> Self:
        """Add keys (N, D) under new ids, all of them numbers or all texts, with values (N, V) or without.

        Every call copies what is there: add many keys at once.

        Raises:
            RecipeError: an id is there already or given twice, or shapes do not fit.
        """
        keys = self.checked(keys, "keys")
        names = check_ids(ids, len(keys))
        if values is not None:
            values = torch.as_tensor(values)
            if values.ndim != 2 or len(values) != len(keys):
                raise RecipeError(
                    f"values must be ({len(keys)}, width), one row for each key, got {tuple(values.shape)}"
                )
        if len(self) and (values is None) != (self.values is None):
            raise RecipeError("either all keys have values or none: add them in the same way")
        if len(self) and values is not None and values.shape[1] != self.values.shape[1]:  # type: ignore[missing-attribute]
            raise RecipeError(
                f"values must have width {self.values.shape[1]}, got {values.shape[1]}"  # type: ignore[missing-attribute]
            )
        self.ids = self.ids.joined(names)
        self.keys = torch.cat([self.keys.to(keys), keys]) if len(self.keys) else keys
        if values is not None:
            self.values = values if self.values is None else torch.cat([self.values, values])
        self._search = None
        return self

    def remove(self, ids: Any) -> Self:
        """Remove these ids with their keys.

        Raises:
            RecipeError: an id is not there.
        """
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[torch.from_numpy(self.ids.rows(ids))] = False
        self.ids = self.ids.kept(kept.numpy())
        self.keys = self.keys[kept.to(self.keys.device)]
        if self.values is not None:
            self.values = self.values[kept.to(self.values.device)]
        self._search = None
        return self

    def search(self, query: Any, k: int = 10, *, only: Any = None) -> NearestKeys:
        """The best `k` keys of each query; all keys, if there are fewer.

        Args:
            query: (Q, D), any number of them.
            k: how many.
            only: the ids among which is searched, exactly; None for all.
        """
        rows, logits = self.candidates(self.asked(query), k, only)
        return NearestKeys(self.ids.names[rows.cpu().numpy()], logits)

    def attend(
        self,
        query: Any,
        *,
        k: int | None = None,
        temperature: float | Tensor = 1.0,
        only: Any = None,
    ) -> SoftRead:
        """Attention of each query over the keys: the output (Q, V) and the LSE of the logits (Q,).

        Args:
            query: (Q, D).
            k: attend to that many candidates of `search`; None for all keys, exactly.
            temperature: 0 takes the value of the best key.
            only: the ids that may be attended to; None for all.
        """
        query = self.asked(query)
        hard = not isinstance(temperature, Tensor) and temperature == 0
        if k is None and not hard:
            allowed = None if only is None else self.allowed(only)
            return soft_read(
                query, self.keys, self.values, self.score, temperature=temperature, allowed=allowed
            )
        rows, _ = self.candidates(query, 1 if hard else k or 1, only)
        keys = self.keys[rows.to(self.keys.device)].to(query)
        values = keys if self.values is None else self.values[rows.to(self.values.device)].to(query)
        if hard:
            return SoftRead(values[:, 0], query.new_full((len(query),), torch.inf))
        found = regard.attend(query.unsqueeze(1), keys, values, self.score, temperature=temperature)
        assert found.lse is not None
        return SoftRead(found.output.squeeze(1), found.lse.squeeze(1))

    def log_probability(self, query: Any, ids: Any, *, temperature: float | Tensor = 1.0) -> Tensor:
        """The log of the weight (Q,) that each query gives to its id among all keys: a loss to train by."""
        query = self.asked(query)
        rows = torch.from_numpy(self.ids.rows(ids))
        if len(rows) != len(query):
            raise RecipeError(
                f"ids must have one entry for each of {len(query)} queries, got {len(rows)}"
            )
        own = self.keys[rows.to(self.keys.device)].to(query)
        logits = regard.score(query.unsqueeze(1), own.unsqueeze(1), self.score)[:, 0, 0]
        return logits / temperature - self.attend(query, temperature=temperature).lse

    def candidates(self, query: Tensor, k: int, only: Any) -> tuple[Tensor, Tensor]:
        """Rows and logits (Q, K) of the best keys."""
        if type(k) is not int or k < 1:
            raise RecipeError(f"k must be an integer of 1 or more, got {k!r}")
        allowed = None if only is None else self.allowed(only)
        if self.method.kind == "exact" or allowed is not None:
            logits, rows = best_keys(query, self.keys, k, self.score, allowed=allowed)
            return rows, logits
        if self._search is None:
            self._search = FaissSearch(key_features(self.score, self.keys.to(query)), self.method)
        asked = query_features(self.score, query, self._search.features.shape[1])
        _, places = self._search.search(asked, min(k, len(self)))
        rows = torch.from_numpy(places).to(query.device)
        # Inverted lists may hold fewer than k keys: such a query is searched exactly.
        if len(short := (rows < 0).any(1).nonzero()[:, 0]):
            rows[short] = best_keys(query[short], self.keys, min(k, len(self)), self.score)[1]
        keys = self.keys[rows.to(self.keys.device)].to(query)
        with torch.no_grad():
            return rows, regard.score(query.unsqueeze(1), keys, self.score)[:, 0]

    def allowed(self, only: Any) -> Tensor:
        """True for the rows of these ids.

        Raises:
            RecipeError: there are none, or one is not there.
        """
        rows = self.ids.rows(only)
        if not len(rows):
            raise RecipeError("only= has no ids: give at least one, or None for all")
        found = torch.zeros(len(self), dtype=torch.bool)
        found[torch.from_numpy(rows)] = True
        return found

    def asked(self, query: Any) -> Tensor:
        """The queries, checked.

        Raises:
            RecipeError: the index is empty, or they have another dim.
        """
        if not len(self):
            raise RecipeError("the index is empty: add keys first")
        return self.checked(query, "query", self.query_dim())

    def query_dim(self) -> int:
        """The dim of queries: that of the keys, unless the score compares unlike dims."""
        return getattr(self.score, "query_dim", None) or self.dim

    def checked(self, x: Any, name: str, dim: int | None = None) -> Tensor:
        """Rows of finite numbers of the right dim."""
        dim = dim or self.dim
        try:
            found = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError):
            raise RecipeError(f"{name} must be (rows, {dim}) numbers, got {describe(x)}") from None
        if found.ndim != 2 or found.shape[1] != dim:
            raise RecipeError(f"{name} must be (rows, {dim}), got {tuple(found.shape)}")
        if not found.is_floating_point():
            found = found.float()
        # The sum is NaN or infinite if a number is, and needs no mask as large as the keys.
        if len(found) and not found.sum(dtype=torch.float64).isfinite():
            row = int((~found.isfinite().all(1)).nonzero()[0, 0])
            raise RecipeError(f"{name} must be finite numbers: row {row} has NaN or infinity")
        return found

    def to(self, device: str | torch.device) -> Self:
        """Move keys, values and the score."""
        self.keys = self.keys.to(device)
        self.values = None if self.values is None else self.values.to(device)
        if isinstance(self.score, Score):
            self.score.to(device)
        self._search = None
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write keys, values, ids and the method to one file, atomically.

        A score with parameters is not in it: give it to `load`. Structures of FAISS are built again on first use.
        """
        tensors = {"keys": self.keys} | self.ids.as_tensors()
        if self.values is not None:
            tensors["values"] = self.values
        named = not isinstance(self.score, Score)
        facts = {"dim": self.dim, "method": vars(self.method), "named": named}
        write_tensors(Path(path), tensors, facts | {"score": self.score if named else None})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], score: Score | None = None, *, verify: bool = True
    ) -> Self:
        """Read a file that `save` wrote; its keys are mapped into memory, not read.

        Args:
            path: the file.
            score: the score, for an index that was saved with a `Score` object.
            verify: compare the checksum of the content, which reads it once.

        Raises:
            RecipeError: the file is cut off or damaged, or needs a score.
        """
        facts, tensors = read_tensors(Path(path), verify)
        try:
            if not facts["named"] and score is None:
                raise RecipeError(f"{path} was saved with a Score object: give it as score=")
            found = cls(facts["dim"], score or facts["score"], SearchMethod(**facts["method"]))
            found.keys, found.values = tensors["keys"], tensors.get("values")
            found.ids = Ids.of_tensors(tensors)
            with building():
                if found.keys.shape != (len(found.ids), found.dim):
                    raise ValueError("ids and keys differ in number")
        except RecipeError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RecipeError(f"{path} is no saved index: {first_line(error)}") from None
        return found
