"""Words of texts: their vocabulary, how rare they are, and vectors for them.

Vectors are learned from the documents themselves (a singular value decomposition, as in LSI), with GloVe's beside
them if wanted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.preprocessing import normalize

from regard.recipes.retrieve.bags import Bags, gathered

WORD = re.compile(r"[^\W_]+")
STEM = 4  # letters that a stem has at least
ENDINGS = (
    "ational", "iveness", "ization", "ations", "ingly", "ation", "ments", "edly", "ical", "ings", "ions", "ment",
    "ness", "ers", "ies", "ing", "ion", "ity", "al", "ed", "er", "es", "ic", "ly", "e", "s", "y",
)  # fmt: skip # the longest first


def words_of(text: str) -> list[str]:
    """The stems of the words in lower case, without the most frequent ones of English, which say nothing of a topic."""
    return [stem(one) for one in WORD.findall(text.lower()) if one not in ENGLISH_STOP_WORDS]


@lru_cache(2**16)
def stem(word: str) -> str:
    """The word without its longest known English ending, if four letters or more are left."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= STEM:
            return word[: -len(ending)]
    return word


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words that documents have, with how rare they are and their vectors.

    Attributes:
        words: sorted.
        rarity: (T,) the inverse document frequency of BM25, of a text in all documents.
        table: (T, D) vectors.
    """

    words: list[str]
    rarity: np.ndarray
    table: torch.Tensor

    def read(self, texts: Sequence[str]) -> Bags:
        """Texts as bags; unknown words are left out."""
        number = {word: place for place, word in enumerate(self.words)}
        rows: list[dict[int, float]] = [
            {number[w]: count for w, count in Counter(words_of(one)).items() if w in number}
            for one in texts
        ]
        return gathered(self.table, rows, self.rarity)


def counted(texts: Sequence[str]) -> tuple[list[str], sparse.csr_matrix]:
    """The words of the texts, and how often each text has each (texts, words)."""
    each = [Counter(words_of(one)) for one in texts]
    words = sorted({w for one in each for w in one})
    number = {word: place for place, word in enumerate(words)}
    rows = [n for n, one in enumerate(each) for _ in one]
    columns = [number[w] for one in each for w in one]
    values = [count for one in each for count in one.values()]
    return words, sparse.csr_matrix(
        (values, (rows, columns)), (len(texts), len(words)), dtype=np.float64
    )


def rarity_of(counts: sparse.csr_matrix) -> np.ndarray:
    """The inverse document frequency of each word, as in BM25: greater than 0."""
    having = np.bincount(counts.indices, minlength=counts.shape[1])
    return np.log(1 + (counts.shape[0] - having + 0.5) / (having + 0.5))


def weighted(counts: sparse.csr_matrix, rarity: np.ndarray) -> sparse.csr_matrix:
    """Rows of norm 1 with (1 + log count) times rarity."""
    found = counts.copy()
    found.data = (1 + np.log(found.data)) * rarity[found.indices]
    return normalize(found)


def decomposed(counts: sparse.csr_matrix, width: int, seed: int) -> np.ndarray:
    """Vectors of the words (T, width) by the company they keep: right singular vectors, as those of LSI."""
    width = max(min(width, min(counts.shape) - 1), 1)
    with np.errstate(invalid="ignore", divide="ignore"):  # shares of variance, where there is none
        found = TruncatedSVD(width, random_state=seed).fit(weighted(counts, rarity_of(counts)))
    return found.components_.T
