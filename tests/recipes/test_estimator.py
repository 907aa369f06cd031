"""Recipes as estimators of scikit-learn, and the files in which they are kept."""

from __future__ import annotations

import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from regard import Additive
from regard.recipes import estimator
from regard.recipes.estimator import RECIPE_ENTRY, RecipeError, own_score
from regard.recipes.fingerprint import fingerprint_of
from regard.recipes.metrics import WORD_ERRORS

from .fake_recipe import FakeRecipe, load


class OtherRecipe(FakeRecipe):
    """Another recipe with the same network."""

    name = "other"


class JudgedByErrors(FakeRecipe):
    """A recipe whose metric is an error, as the word error rate and RMSE are."""

    metric = WORD_ERRORS


@pytest.fixture(scope="module")
def trained() -> FakeRecipe:
    return FakeRecipe(score="additive", epochs=2, seed=3).fit_dataset(load("points"))


@pytest.fixture
def saved(trained: FakeRecipe, tmp_path: Path) -> Path:
    trained.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("score", [None, "additive", Additive(4)])
def test_clone_has_the_arguments_and_nothing_that_was_learned(score: Any) -> None:
    model = FakeRecipe(score=score, epochs=1, rate=0.5).fit_dataset(load("points"))
    twin = clone(model)
    assert repr(twin) == repr(model)
    assert (twin.rate, twin.epochs) == (0.5, 1)
    assert not hasattr(twin, "model_")
    if score is not None and not isinstance(score, str):
        assert twin.chosen_score is not score, "two models do not share weights"


def test_score_is_an_argument_and_a_method() -> None:
    model = FakeRecipe(score="additive")
    assert model.get_params()["score"] == "additive"
    assert model.set_params(score="cosine", rate=0.1).get_params()["score"] == "cosine"
    assert callable(model.score)
    with pytest.raises(ValueError, match="Invalid parameter 'scoer'"):
        model.set_params(scoer="cosine")


def test_score_object_is_copied_for_each_model() -> None:
    score = Additive(4)
    assert own_score(score) is not score
    assert own_score("additive") == "additive"


def test_grid_search_chooses_the_rate_that_learns() -> None:
    data = load("points")
    search = GridSearchCV(FakeRecipe(epochs=4), {"rate": [1e-6, 0.05]}, cv=2, error_score="raise")
    assert search.fit(data.train.x, data.train.y).best_params_ == {"rate": 0.05}
    assert search.score(data.test.x, data.test.y) > 80


def test_grid_search_by_an_error_chooses_the_least() -> None:
    """`score` was the error itself, of which sklearn took the greatest: the worst model won."""
    data = load("points")
    search = GridSearchCV(JudgedByErrors(epochs=4), {"rate": [1e-6, 0.05]}, cv=2)
    assert search.fit(data.train.x, data.train.y).best_params_ == {"rate": 0.05}
    model, test = search.best_estimator_, data.test
    wrong = 100 * np.mean(model.predict(test.x) != test.y)
    assert model.quality(test.x, test.y) == model.score_part(test) == pytest.approx(wrong)
    assert model.score(test.x, test.y) == pytest.approx(-wrong)


def test_score_is_the_metric_of_the_predictions(trained: FakeRecipe) -> None:
    test = load("points").test
    assert trained.score_part(test) == pytest.approx(
        100 * np.mean(trained.predict(test.x) == test.y)
    )


@pytest.mark.parametrize("act", [lambda x: x.predict(load("points").test.x), lambda x: x.save("x")])
def test_untrained_model_says_so(act: Any) -> None:
    with pytest.raises(NotFittedError, match=r"not trained: call fit or FakeRecipe\.load"):
        act(FakeRecipe())


def test_file_gives_the_same_model(trained: FakeRecipe, saved: Path) -> None:
    found = FakeRecipe.load(str(saved))
    assert found.arguments() == trained.arguments()
    assert (found.chosen_score, found.seed, found.device) == ("additive", 3, None)
    x = load("points").test.x
    assert not found.model_.training
    assert torch.equal(found.model_(torch.as_tensor(x)), trained.model_(torch.as_tensor(x)))
    assert FakeRecipe.load(saved, device="cpu").device == "cpu"
    found.save(saved)  # over the old one
    assert FakeRecipe.load(saved).arguments() == trained.arguments()


def test_score_object_cannot_be_saved_and_the_error_says_what_can(tmp_path: Path) -> None:
    model = FakeRecipe(score=Additive(4), epochs=1).fit_dataset(load("points"))
    with pytest.raises(RecipeError, match=r"score=Additive.* cannot be saved: give a name"):
        model.save(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def rewritten(path: Path, **facts: Any) -> None:
    """Write the file again with other facts in its header."""
    with safetensors.safe_open(path, "pt") as file:
        found = json.loads(file.metadata()[RECIPE_ENTRY]) | facts
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    safetensors.torch.save_file(weights, path, {RECIPE_ENTRY: json.dumps(found)})


@pytest.mark.parametrize(
    "facts",
    [
        {"arguments": {"nonsense": 1}},
        {"arguments": 3},
        {"learned": {}},
        {"learned": {"width": "x"}},
        {"learned": {"width": 9}},
        {"learned": {"width": -1}},
        {"learned": None},
    ],
)
def test_damaged_description_is_one_error(saved: Path, facts: dict[str, Any]) -> None:
    rewritten(saved, **facts)
    with pytest.raises(RecipeError, match=r"model\.safetensors is damaged, or does not fit"):
        FakeRecipe.load(saved)


def test_file_of_another_recipe_is_refused(saved: Path) -> None:
    with pytest.raises(RecipeError, match="saved by the recipe 'fake', not 'other'"):
        OtherRecipe.load(saved)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\xff" * 64, pickle.dumps({"a": 1}), b"\x08" + b"\0" * 7 + b"{}"]
)
def test_foreign_file_is_refused(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(RecipeError, match=r"model\.safetensors is not a model saved by a recipe"):
        FakeRecipe.load(saved)


def test_files_that_are_no_model_are_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-8])
    with pytest.raises(RecipeError, match="is not a model"):
        FakeRecipe.load(saved)
    for metadata in (
        None,
        {RECIPE_ENTRY: "[]"},
        {RECIPE_ENTRY: "{"},
        {RECIPE_ENTRY: "[" * 100_000},
    ):
        safetensors.torch.save_file({"a": torch.zeros(1)}, saved, metadata)
        with pytest.raises(RecipeError, match="is not a model"):
            FakeRecipe.load(saved)
    FakeRecipe(epochs=1).fit_dataset(load("points"), checkpoint=saved.with_name("c"))
    with pytest.raises(RecipeError, match="is not a model"):
        FakeRecipe.load(saved.with_name("c"))
    for absent in (tmp_path, tmp_path / "none"):
        with pytest.raises(RecipeError, match="there is no file"):
            FakeRecipe.load(absent)
    saved.write_bytes(whole)
    monkeypatch.setattr(estimator, "LARGEST_FILE", len(whole) - 1)
    with pytest.raises(RecipeError, match="is larger than"):
        FakeRecipe.load(saved)


def test_full_disk_keeps_the_model_that_was_there(
    trained: FakeRecipe, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        FakeRecipe(epochs=1).fit_dataset(load("points")).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_fingerprints_tell_values_apart() -> None:
    class Row:
        def __init__(self, x: int) -> None:
            self.x = x

    values: list[Any] = [
        None, 0, 0.0, "", "x", [], ["x"], [["x"]], ["x", "x"], {"x": 1}, {"x": 2},
        np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.float32), torch.ones(2, dtype=torch.bfloat16),
        torch.eye(3).to_sparse(), np.array(["a", None], dtype=object), object(),
    ]  # fmt: skip
    found = [fingerprint_of(one) for one in values]
    assert len(set(found)) == len(values)
    assert fingerprint_of(Row(1)) != fingerprint_of(Row(2))
    assert fingerprint_of(object()) == found[-1], "an address has no part in it"
    assert fingerprint_of(torch.eye(3)) == fingerprint_of(torch.eye(3).to_sparse())
    assert fingerprint_of(["ab", "c"]) != fingerprint_of(["a", "bc"])
