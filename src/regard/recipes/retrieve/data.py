"""The sets: docstrings and digits from packages; Cranfield, GloVe, MNIST and tables of the user from a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.recipes.blockwise import best_keys
from regard.recipes.datasets import Dataset, Origin, Part
from regard.recipes.estimator import RecipeError
from regard.recipes.retrieve.cranfield import CRANFIELD, cranfield_rows
from regard.recipes.retrieve.docstrings import docstrings
from regard.recipes.retrieve.documents import Documents, Queries
from regard.recipes.retrieve.glove import GLOVE, glove_vectors
from regard.recipes.retrieve.tables import read_tables
from regard.recipes.sources import VARIABLE, DataError, PublicSet, RemoteFile, obtained, read_file
from regard.text import Text

MNIST_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz"
IMAGES = "t10k-images-idx3-ubyte.gz"
MNIST = PublicSet(
    "mnist",
    (
        RemoteFile(
            IMAGES,
            MNIST_ADDRESS,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
    ),
    "usually cited as CC BY-SA 3.0 (LeCun and Cortes)",
)
SAMPLE = 1500  # docstrings, drawn once: the parts are 900, 200 and 400 queries of as many documents
NEAREST = 10
FOLDS = 5  # of Cranfield's queries: each seed tests on another


class Split(NamedTuple):
    """How many queries are for training, validation and test."""

    train: int
    validation: int
    test: int


Answers = list[Any]


class SearchSet(NamedTuple):
    """One set: its title, where it comes from, its licence, what measures it, and its rows.

    Attributes:
        rows: from the folder and whether to download: all queries and their answers.
        split: None for folds.
        show_rows: whether pages may show rows.
    """

    title: Text
    origin: Origin
    licence: str
    measure: str
    rows: Callable[[str | os.PathLike[str] | None, bool], tuple[Queries, Answers]]
    split: Split | None
    show_rows: bool = True


def docstring_rows(data: Any, download: bool) -> tuple[Queries, Answers]:
    """First lines, and the names of the docstrings that they begin."""
    every = docstrings()
    chosen = np.random.default_rng(0).permutation(len(every))[:SAMPLE]
    found = [every[n] for n in chosen]
    documents = Documents([name for name, _, _ in found], [body for _, _, body in found])
    return Queries([first for _, first, _ in found], documents), [name for name, _, _ in found]


def digit_rows(data: Any, download: bool) -> tuple[Queries, Answers]:
    """Digits of scikit-learn: half of them are documents, and those of the same class answer."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    kept, asked = order[:900], order[900:]
    documents = Documents(kept, x[kept].astype(np.float32))
    return Queries(x[asked].astype(np.float32), documents), [kept[y[kept] == y[n]] for n in asked]


def abstract_rows(data: Any, download: bool) -> tuple[Queries, Answers]:
    """Cranfield's queries, in an order that puts every fifth of them into another fold at random."""
    numbers, texts, queries, answers = cranfield_rows(data, download)
    order = [n for n in np.random.default_rng(0).permutation(len(queries)) if answers[n]]
    return Queries([queries[n] for n in order], Documents(numbers, texts)), [
        answers[n] for n in order
    ]


def word_rows(data: Any, download: bool) -> tuple[Queries, Answers]:
    """GloVe's words: the nearest ones by cosine answer, among those that are no queries."""
    words, vectors = zip(*glove_vectors(data).items(), strict=True)
    return nearest_rows(np.array(words), np.stack(vectors), sum(WORDS))


def image_rows(data: Any, download: bool) -> tuple[Queries, Answers]:
    """Images of MNIST's test part: the nearest ones by cosine answer, among those that are no queries."""
    folder = obtained(MNIST, data, download)
    raw = np.frombuffer(read_file(MNIST, folder, IMAGES), np.uint8, offset=16)
    pixels = raw.reshape(-1, 28 * 28).astype(np.float32) / 255
    return nearest_rows(np.arange(len(pixels)), pixels, sum(PICTURES))


def nearest_rows(names: np.ndarray, vectors: np.ndarray, asked: int) -> tuple[Queries, Answers]:
    """Drawn queries, and the nearest of the other vectors by cosine, found exactly, less the mean."""
    order = np.random.default_rng(0).permutation(len(names))
    some, rest = order[:asked], order[asked:]
    centred = torch.from_numpy(vectors - vectors[rest].mean(0))
    _, best = best_keys(
        centred[torch.from_numpy(some)], centred[torch.from_numpy(rest)], NEAREST, "cosine"
    )
    documents = Documents(names[rest], vectors[rest])
    return Queries(vectors[some], documents), [names[rest][row] for row in best.numpy()]


def user_rows(data: Any, download: bool) -> tuple[Queries, Answers]:
    """The tables of a folder."""
    given = data if data is not None else os.environ.get(VARIABLE)
    if not given:
        raise DataError(
            "the set tables needs --data DIR, the folder of queries, documents and judgements"
        )
    return read_tables(Path(given))


DOCSTRINGS = Split(900, 200, 400)
DIGITS = Split(450, 150, 297)
WORDS = Split(5000, 500, 1000)
PICTURES = Split(2000, 300, 700)
EMBEDDED = ("docstrings", "digits")
SEARCH_SETS = {
    "docstrings": SearchSet(
        Text("docstrings of Python: the first line finds the rest", "Python 文档字符串：首行找正文"),
        "package", "PSF License, inside Python", "map", docstring_rows, DOCSTRINGS,
    ),
    "digits": SearchSet(
        Text("digits: images of the same digit", "手写数字：同类图像"),
        "package", "CC BY 4.0 (UCI), inside scikit-learn", "map", digit_rows, DIGITS,
    ),
    "cranfield": SearchSet(
        Text("Cranfield: 1,400 abstracts, 225 queries", "Cranfield：1,400 篇摘要，225 个查询"),
        "public", CRANFIELD.licence, "map", abstract_rows, None, False,
    ),
    "glove100": SearchSet(
        Text("GloVe: the 10 nearest of 50,331 words", "GloVe：50,331 个词中最近的 10 个"),
        "public", GLOVE.licence, "recall", word_rows, WORDS,
    ),
    "mnist": SearchSet(
        Text("MNIST: the 10 nearest of 7,000 images", "MNIST：7,000 张图像中最近的 10 张"),
        "public", MNIST.licence, "recall", image_rows, PICTURES,
    ),
    "tables": SearchSet(
        Text("your queries, documents and judgements", "您的查询、文档与评判"),
        "public", "yours", "map", user_rows, None, False,
    ),
}  # fmt: skip


@lru_cache(4)
def all_rows(name: str, data: str | None, download: bool) -> tuple[Queries, Answers]:
    """All rows of a set, which a comparison splits several times."""
    return SEARCH_SETS[name].rows(data, download)


def load(
    name: str = EMBEDDED[0],
    data: str | os.PathLike[str] | None = None,
    download: bool = False,
    limit: int | None = None,
    fold: int = 0,
) -> Dataset:
    """The set of that name.

    Args:
        name: one of `SEARCH_SETS`.
        data: the folder of public sets, or of the tables; None for `REGARD_DATA`.
        download: get a public set that is in no folder from its public address.
        limit: keep that many training queries.
        fold: of `cranfield` and `tables`: which fifth of the queries is for the test; the next one is for validation.

    Raises:
        DataError: the set is not there, or damaged.
        RecipeError: there is no set of that name.
    """
    if name not in SEARCH_SETS:
        raise RecipeError(f"there is no set {name!r}; the sets are {', '.join(SEARCH_SETS)}")
    known = SEARCH_SETS[name]
    queries, answers = all_rows(name, None if data is None else str(data), download)
    train, *others = parts(len(queries), known.split, fold)
    kept = [train[:limit], *others]
    three = [Part(queries.take(rows), [answers[n] for n in rows]) for rows in kept]
    return Dataset(
        name, known.title, known.origin, *three, licence=known.licence, show_rows=known.show_rows
    )


def parts(count: int, split: Split | None, fold: int) -> list[np.ndarray]:
    """Rows for training, validation and test: in order by the split, else by fold."""
    rows = np.arange(count)
    if split is not None:
        return np.split(rows, np.cumsum(split)[:2])
    test, held = fold % FOLDS, (fold + 1) % FOLDS
    return [
        rows[~np.isin(rows % FOLDS, (test, held))],
        rows[rows % FOLDS == held],
        rows[rows % FOLDS == test],
    ]


def refold(data: Dataset, fold: int) -> Dataset:
    """The same queries by another fold; a set with one split stays as it is."""
    if data.name not in SEARCH_SETS or SEARCH_SETS[data.name].split is not None:
        return data
    documents = data.train.x.documents
    content: Any = [
        one for part in (data.test, data.validation, data.train) for one in part.x.content
    ]
    answers = [one for part in (data.test, data.validation, data.train) for one in part.y]
    if isinstance(documents.content, np.ndarray):
        content = np.stack(content)
    # In an order of their own, so that the fold does not depend on how the rows were split before.
    order = np.array(sorted(range(len(answers)), key=lambda n: repr((content[n], answers[n]))))
    order = order[np.random.default_rng(0).permutation(len(order))]
    every = Queries(content, documents)
    three = [
        Part(every.take(order[rows]), [answers[n] for n in order[rows]])
        for rows in parts(len(order), None, fold)
    ]
    return Dataset(
        data.name, data.title, data.origin, *three, licence=data.licence, show_rows=data.show_rows
    )
