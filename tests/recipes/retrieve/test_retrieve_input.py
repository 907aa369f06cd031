"""What `DocumentFinder` is given wrongly, and the tables of a user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("faiss")

from regard.recipes.estimator import RecipeError
from regard.recipes.retrieve import DocumentFinder, Documents, Queries, load
from regard.recipes.retrieve.kit import read, write
from regard.recipes.sources import DataError

BODIES = Documents(["a", "b", "c"], ["red apple", "green pear", "blue plum"])
VECTORS = Documents(None, np.eye(3, dtype=np.float32))


def fit(x, y, documents=BODIES, **more):
    return DocumentFinder(epochs=1, device="cpu", **more).fit(x, y, documents=documents)


MISTAKES = {
    "x has no documents": lambda: DocumentFinder().fit(["apple"], ["a"]),
    "y is missing": lambda: fit(["apple"], None),
    "one entry for each of 2 queries, got 1": lambda: fit(["apple", "pear"], ["a"]),
    r"y\[1\]: there is no document 'z'": lambda: fit(["apple", "pear"], ["a", "z"]),
    r"y\[0\] is empty": lambda: fit(["apple"], [[]]),
    "x is empty": lambda: fit([], []),
    "got one text": lambda: fit("apple", ["a"]),
    r"queries\[0\] must be a text": lambda: fit([3], ["a"]),
    "documents are vectors and queries texts": lambda: fit(["apple"], [0], VECTORS),
    "documents are texts and queries vectors": lambda: fit(np.eye(3), ["a", "b", "c"]),
    "the documents' width 3, got 2": lambda: fit(np.ones((1, 2)), [0], VECTORS),
    "queries must be finite: row 1": lambda: fit(
        np.array([[1, 2, 3], [1, np.nan, 3]]), [0, 1], VECTORS
    ),
    "the document 'a' is there twice": lambda: Documents(["a", "a"], ["x", "y"]),
    "documents are empty": lambda: Documents([], []),
    "one entry for each of 2 rows, got 1": lambda: Documents(["a"], ["x", "y"]),
    "documents must be a Documents": lambda: Queries(["a"], ["b"]),
    "vectors must be one of own, glove, minilm": lambda: fit(["apple"], ["a"], vectors="bert"),
    "reading must be one of": lambda: fit(["apple"], ["a"], reading="later"),
    "measure must be one of map, recall": lambda: fit(["apple"], ["a"], measure="f1"),
    "negatives must be an integer of 1 or more": lambda: fit(["apple"], ["a"], negatives=0),
    "no document has a word": lambda: fit(["apple"], ["a"], Documents(["a"], ["the of and"])),
    "there is no set 'trec'": lambda: load("trec"),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_mistakes_are_one_clear_error(said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        MISTAKES[said]()


def test_mistakes_after_training_are_said_too() -> None:
    model = fit(["apple", "pear"], ["a", "b"])
    with pytest.raises(RecipeError, match="n_best must be an integer"):
        model.predict(["apple"], n_best=0)
    with pytest.raises(RecipeError, match="documents are texts and queries vectors"):
        model.predict(np.eye(3))
    with pytest.raises(RecipeError, match="there is no document 'q'"):
        model.quality(["apple"], ["q"])
    with pytest.raises(RecipeError, match="x is empty"):
        model.quality([], [])


def test_one_document_and_one_query_train() -> None:
    model = fit(["apple"], ["a"], Documents(["a"], ["red apple"]))
    assert model.predict(["apple"], 9).tolist() == [["a"]]


def test_documents_without_a_word_are_ranked_last() -> None:
    model = fit(
        ["apple", "pear"], ["a", "b"], Documents(["e", "a", "b"], ["", "red apple", "a pear"])
    )
    assert model.predict(["apple"], 3)[0, 0] == "a"


def test_queries_of_the_command_line() -> None:
    assert read([" open a file "]) == ["open a file"]
    vectors = read(["1, 2", "3 4"])
    assert isinstance(vectors, np.ndarray) and vectors.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(RecipeError, match="same number of numbers"):
        read(["1 2", "1 2 3"])
    assert write(["x"], np.array([["a", "b"]])) == ["x\ta\tb"]
    assert write(vectors, np.array([[7], [8]])) == ["1\t7", "2\t8"]


def tables(folder: Path, **changed: str) -> Path:
    given = {
        "queries.csv": "id,text\n" + "".join(f"q{n},word{n}\n" for n in range(10)),
        "documents.tsv": "id\ttext\n" + "".join(f"d{n}\tbody of word{n}\n" for n in range(10)),
        "judgements.csv": "query,document,grade\n" + "".join(f"q{n},d{n},1\n" for n in range(10)),
    }
    for name, content in (given | {k.replace("_", "."): v for k, v in changed.items()}).items():
        (folder / name).write_text(content)
    return folder


def test_three_tables_are_a_set(tmp_path: Path) -> None:
    more = "query,document,grade\nq1,d1,0\nq2,d2,1\nq3,d3,2\nq3,d4,1\nq5,d5,\nq6,d6,1\n"
    data = load("tables", tables(tmp_path, judgements_csv=more))
    parts = (data.train, data.validation, data.test)
    assert sum(map(len, parts)) == 4 and len(data.train.x.documents) == 10
    answers = {one: y for part in parts for one, y in zip(part.x.content, part.y, strict=True)}
    assert answers["word3"] == ["d3", "d4"] and "word1" not in answers


def test_tables_of_vectors(tmp_path: Path) -> None:
    rows = "".join(f"%s{n},{n},1\n" for n in range(10))
    folder = tables(tmp_path, queries_csv="id,x,y\n" + rows.replace("%s", "q"))
    (folder / "documents.tsv").unlink()
    (folder / "documents.csv").write_text("id,x,y\n" + rows.replace("%s", "d"))
    assert load("tables", folder).test.x.content.shape[1] == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"judgements_csv": "query,document\nq1,d99\n"},
            "judgements, line 2: there is no document 'd99'",
        ),
        (
            {"judgements_csv": "query,document\nq99,d1\n"},
            "judgements, line 2: there is no query 'q99'",
        ),
        (
            {"judgements_csv": "query,document\nq1,d1\n"},
            "1 queries with a relevant document: 3 are needed",
        ),
        (
            {"judgements_csv": "query,document,grade\nq1,d1,x\n"},
            "judgements, line 2: grade must be a number, got 'x'",
        ),
        ({"queries_csv": "name,text\nq1,x\n"}, "queries has no column 'id'"),
        ({"queries_csv": "id,text\n"}, "has no rows"),
        ({"queries_csv": "id\nq1\n"}, "neither a column 'text' nor columns of numbers"),
        ({"queries_csv": "id,x\nq1,one\n"}, "a cell is no number"),
        ({"queries_csv": "id,text\nq1,x\nq1,y\n"}, "the query 'q1' is there twice"),
        ({"documents_tsv": "id\ttext\nd1\tx\nd1\ty\n"}, "the document 'd1' is there twice"),
        ({"documents_tsv": "id\ttext\n\tx\n"}, "documents, line 2: id is empty"),
    ],
)
def test_mistakes_in_tables_name_the_line(tmp_path: Path, changed, said: str) -> None:
    with pytest.raises((DataError, RecipeError), match=said):
        load("tables", tables(tmp_path, **changed))


def test_a_missing_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"queries\.csv or queries\.tsv"):
        load("tables", tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    with pytest.raises(DataError, match="needs --data DIR"):
        load("tables")
    for name in ("cranfield", "glove100", "mnist"):
        with pytest.raises(DataError, match="is not on this machine"):
            load(name)
