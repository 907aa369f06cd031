"""`DocumentFinder` learns, saves, resumes, predicts, and is an estimator of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

pytest.importorskip("faiss")

import regard
from regard.recipes.checkpoint import CheckpointError
from regard.recipes.retrieve import DocumentFinder, Documents, Queries, load
from regard.recipes.retrieve.picture import best_match, show

from ..killing import KillAtStep, Killed, same_weights

TOPICS = (
    "wing lift drag",
    "bread flour oven",
    "court judge law",
    "rain cloud storm",
    "piano violin song",
)


def texts() -> tuple[Documents, list[str], list[str]]:
    """40 documents of five topics, and for each a query of two of its words and a word of its own."""
    random = np.random.default_rng(0)
    bodies, queries = [], []
    for n in range(40):
        words = TOPICS[n % 5].split()
        own = [f"item{n}", f"thing{n}"]
        bodies.append(" ".join(random.permutation([*words, *own, *random.choice(words, 3)])))
        queries.append(f"the {words[n % 3]}s of {own[0]}")
    names = [f"d{n}" for n in range(40)]
    return Documents(names, bodies), queries, names


def small(**more: object) -> DocumentFinder:
    return DocumentFinder(**{"epochs": 2, "batch": 8, "device": "cpu", **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained() -> DocumentFinder:
    documents, queries, names = texts()
    return small().fit(queries, names, documents=documents)


@pytest.mark.parametrize("reading", ["late+hop", "hop", "late", "mean"])
@pytest.mark.parametrize("score", ["cosine", "additive"])
def test_every_reading_trains_and_its_loss_falls(reading: str, score: str) -> None:
    documents, queries, names = texts()
    model = small(reading=reading, score=score, epochs=5, rate=1e-2)
    model.fit(queries, names, documents=documents)
    assert model.history_.losses[-1] < model.history_.losses[0]
    assert 0 <= model.score(queries, names) <= 1


def test_a_text_is_found_by_its_rare_word(trained: DocumentFinder) -> None:
    _, queries, names = texts()
    found = trained.predict(queries, n_best=3)
    assert found.shape == (40, 3) and found.dtype.kind == "U"
    assert (found[:, 0] == np.array(names)).mean() > 0.9
    assert trained.predict([]).shape == (0, 1)


def test_a_query_of_unknown_words_still_has_a_ranking(trained: DocumentFinder) -> None:
    found = trained.predict(["zzz", ""], n_best=100)
    assert found.shape == (2, 40) and len(set(found[0])) == 40
    assert trained.statistics(["zzz"], ["d3"]).shape == (1, 3)


@pytest.mark.parametrize("score", ["cosine", "low_rank", "bilinear", None])
def test_digits_are_learned_from_judgements(score: str | None) -> None:
    data = load("digits")
    model = DocumentFinder(score, width=32, epochs=6, rate=3e-3, device="cpu")
    before = clone(model).set_params(epochs=1, rate=1e-9).fit_dataset(data)
    assert model.fit_dataset(data).score_part(data.test) > before.score_part(data.test) + 0.02


def test_a_score_object_is_taken_as_it_is() -> None:
    data = load("digits", limit=40)
    torch.manual_seed(0)
    score = regard.Bilinear(64, 64)
    model = DocumentFinder(score, epochs=1, device="cpu").fit_dataset(data)
    assert isinstance(model.matcher.score, regard.Bilinear) and model.matcher.score is not score


def test_drawn_negatives_are_enough_to_learn() -> None:
    data = load("digits")
    model = DocumentFinder("cosine", width=32, epochs=6, rate=3e-3, negatives=100, device="cpu")
    assert model.fit_dataset(data).score_part(data.test) > 0.72


def test_saved_model_finds_documents_on_its_own(trained: DocumentFinder, tmp_path: Path) -> None:
    _, queries, names = texts()
    trained.save(tmp_path / "m")
    found = DocumentFinder.load(tmp_path / "m", device="cpu")
    assert (found.predict(queries, 5) == trained.predict(queries, 5)).all()
    np.testing.assert_allclose(found.statistics(queries, names), trained.statistics(queries, names))


def test_saved_model_of_vectors_keeps_numbers_as_ids(tmp_path: Path) -> None:
    data = load("digits", limit=30)
    model = DocumentFinder(width=16, epochs=1, device="cpu").fit_dataset(data)
    model.save(tmp_path / "m")
    found = DocumentFinder.load(tmp_path / "m", device="cpu").predict(data.test.x, 4)
    assert found.dtype.kind == "i" and (found == model.predict(data.test.x, 4)).all()


def test_killed_training_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("regard.recipes.training.CHECKPOINT_PAUSE", 0.0)
    documents, queries, names = texts()
    whole = small(epochs=3).fit(queries, names, documents=documents)
    path = tmp_path / "c"
    with pytest.raises(Killed):
        small(epochs=3).fit(
            queries, names, documents=documents, checkpoint=path, progress=KillAtStep(7)
        )
    again = small(epochs=3).fit(queries, names, documents=documents, checkpoint=path)
    assert same_weights(again, whole)
    changed = Documents(documents.names, ["other words", *documents.content[1:]])
    with pytest.raises(CheckpointError):
        small(epochs=3).fit(queries, names, documents=changed, checkpoint=path)


def test_it_is_an_estimator_of_scikit_learn(trained: DocumentFinder) -> None:
    model = clone(trained)
    assert model.get_params()["score"] == "cosine" and not hasattr(model, "model_")
    assert model.set_params(score="dot").chosen_score == "dot"


def test_two_trainings_from_one_seed_are_the_same(trained: DocumentFinder) -> None:
    documents, queries, names = texts()
    assert same_weights(trained, small().fit(queries, names, documents=documents))


def test_validation_rows_and_several_answers() -> None:
    documents, queries, names = texts()
    both = [[name, names[(n + 5) % 40]] for n, name in enumerate(names)]
    x, held = Queries(queries[:30], documents), Queries(queries[30:], documents)
    model = small().fit(x, both[:30], validation=(held, both[30:]))
    assert model.quality(held, both[30:]) > 0.5


def test_attention_in_the_picture_is_that_of_the_network(trained: DocumentFinder) -> None:
    match = best_match(trained, "the wings of item5")
    assert match.name == "d5" and sorted(match.asked) == ["item5", "wing"]
    assert (match.weights >= 0).all() and (match.weights.sum(1) < 1).all()
    row = match.weights[match.asked.index("item5")]
    assert match.found[int(row.argmax())] == "item5"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pictures_are_drawn(trained: DocumentFinder, language) -> None:
    assert show(trained, ["the wings of item5"], language).axes
    hop = small(reading="hop").fit(*texts()[1:], documents=texts()[0])
    assert len(show(hop, ["wing"], language).axes) == 1
    digits = DocumentFinder(width=16, epochs=1, device="cpu").fit_dataset(load("digits", limit=30))
    assert show(digits, None, language).axes[0].child_axes
