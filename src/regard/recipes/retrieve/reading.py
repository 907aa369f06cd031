"""Readers: from texts or vectors to the bags that a `DocumentMatcher` compares, and what of a reader is saved.

`VectorReader` takes vectors as they are, `WordReader` words of the documents, `ContextReader` tokens of a sentence
encoder, whose vectors depend on their sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from regard.recipes.estimator import RecipeError
from regard.recipes.retrieve.bags import Bags
from regard.recipes.retrieve.documents import Content
from regard.recipes.retrieve.words import Vocabulary, counted, decomposed, rarity_of, stem

Vectors = Literal["own", "glove", "minilm"]
VECTORS: tuple[Vectors, ...] = get_args(Vectors)
OWN_WIDTH = 200  # numbers of the vectors that are learned from the documents, as of LSI
GLOVE_SHARE = 0.5  # norm of GloVe's vectors relative to these


class BagReader(Protocol):
    """Reads queries and documents."""

    @property
    def blocks(self) -> tuple[int, ...]:
        """Widths of the parts of a vector, which are brought to norm 1 each by itself."""

    def read(self, content: Content) -> Bags:
        """Texts or vectors as bags."""

    def facts(self) -> dict[str, Any]:
        """What `reader_of` needs beside the tensors, as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """What `reader_of` needs as tensors."""


class VectorReader:
    """Vectors as they are, turned to the principal axes of the documents.

    Args:
        mean: of the documents.
        axes: (D, D) rows, the one of the greatest variance first, so that a narrow score starts from the first ones.
    """

    def __init__(self, mean: Tensor, axes: Tensor) -> None:
        self.mean, self.axes, self.blocks = mean, axes, (len(axes),)

    def read(self, content: Content) -> Bags:
        """One vector for each item."""
        x = torch.from_numpy(np.asarray(content, np.float32))
        return Bags.of_vectors((x - self.mean) @ self.axes.T)

    def facts(self) -> dict[str, Any]:
        """Its kind."""
        return {"kind": "vectors"}

    def tensors(self) -> dict[str, Tensor]:
        """Mean and axes."""
        return {"mean": self.mean, "axes": self.axes}


def vector_reader(vectors: np.ndarray) -> VectorReader:
    """A reader for vectors like these documents."""
    mean = vectors.mean(0)
    spread = (
        np.cov(vectors - mean, rowvar=False).reshape(len(mean), -1)
        if len(vectors) > 1
        else np.eye(len(mean))
    )
    _, axes = np.linalg.eigh(np.asarray(spread, np.float64))
    return VectorReader(
        torch.from_numpy(mean), torch.from_numpy(np.ascontiguousarray(axes.T[::-1], np.float32))
    )


class WordReader:
    """Words of the documents, with vectors learned from these, and GloVe's beside them if given."""

    def __init__(self, vocabulary: Vocabulary, blocks: tuple[int, ...]) -> None:
        self.vocabulary, self.blocks = vocabulary, blocks

    def read(self, content: Content) -> Bags:
        """Words that documents have."""
        return self.vocabulary.read([str(one) for one in content])

    def facts(self) -> dict[str, Any]:
        """The words."""
        return {"kind": "words", "words": self.vocabulary.words, "blocks": list(self.blocks)}

    def tensors(self) -> dict[str, Tensor]:
        """Rarities and vectors."""
        return {"rarity": torch.from_numpy(self.vocabulary.rarity), "table": self.vocabulary.table}


def word_reader(texts: list[str], glove: Mapping[str, np.ndarray] | None, seed: int) -> WordReader:
    """A reader with vectors learned from the texts, and GloVe's beside them if given."""
    words, counts = counted(texts)
    if not words:
        raise RecipeError("no document has a word that says anything: give texts of English words")
    parts = [decomposed(counts, OWN_WIDTH, seed)]
    if glove is not None:
        parts.append(beside(parts[0], words, glove))
    table = torch.from_numpy(np.hstack(parts).astype(np.float32))
    blocks = tuple(one.shape[1] for one in parts)
    return WordReader(Vocabulary(words, rarity_of(counts), table), blocks)


def beside(own: np.ndarray, words: list[str], glove: Mapping[str, np.ndarray]) -> np.ndarray:
    """GloVe's vectors of the stems, means over their words less the mean of all; 0 for stems that it lacks."""
    wide = len(next(iter(glove.values())))
    number = {word: place for place, word in enumerate(words)}
    found, count = np.zeros((len(words), wide)), np.zeros(len(words))
    for word, vector in glove.items():
        if (place := number.get(stem(word))) is not None:
            found[place] += vector
            count[place] += 1
    known = count > 0
    found[known] /= count[known, None]
    found[known] -= found[known].mean(0)
    norms = np.linalg.norm(own, axis=1).mean() / max(np.linalg.norm(found, axis=1).mean(), 1e-9)
    return found * norms * GLOVE_SHARE


class ContextReader:
    """Tokens of the sentence encoder MiniLM, each with a vector that depends on its sentence."""

    blocks = (384,)

    def __init__(self, rarity: Tensor) -> None:
        self.rarity = rarity

    def read(self, content: Content) -> Bags:
        """One vector for each token; a text is cut after 256 of them."""
        from regard.recipes.retrieve.minilm import encoded

        each = encoded(tuple(str(one) for one in content))
        sizes = torch.tensor([0, *(len(ids) for ids, _ in each)])
        ids = torch.tensor([one for ids, _ in each for one in ids], dtype=torch.long)
        table = torch.cat([x for _, x in each]) if each else torch.zeros(0, 384)
        ones = torch.ones(len(table))
        return Bags(
            table.float(), torch.arange(len(table)), sizes.cumsum(0), ones, self.rarity[ids]
        )

    def facts(self) -> dict[str, Any]:
        """Its kind."""
        return {"kind": "minilm"}

    def tensors(self) -> dict[str, Tensor]:
        """The rarities of the encoder's tokens."""
        return {"rarity": self.rarity}


def context_reader(texts: list[str]) -> ContextReader:
    """A reader whose tokens are as rare as they are in the texts."""
    from regard.recipes.retrieve.minilm import TOKENS, encoded

    each = encoded(tuple(texts))
    having = np.zeros(TOKENS)
    for ids, _ in each:
        having[np.unique(ids)] += 1
    rarity = np.log(1 + (len(each) - having + 0.5) / (having + 0.5))
    return ContextReader(torch.from_numpy(rarity.astype(np.float32)))


def reader_of(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> BagReader:
    """The reader that was saved."""
    if facts["kind"] == "vectors":
        return VectorReader(tensors["mean"], tensors["axes"])
    if facts["kind"] == "minilm":
        return ContextReader(tensors["rarity"])
    words = Vocabulary(list(facts["words"]), tensors["rarity"].numpy(), tensors["table"])
    return WordReader(words, tuple(facts["blocks"]))
