"""The predictor learns, saves, loads, resumes to the bit, and works with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

pytest.importorskip("rdkit")

from regard import Additive
from regard.recipes import training
from regard.recipes.estimator import RecipeError
from regard.recipes.molecules import KIT, MoleculePredictor
from regard.recipes.molecules.data import EMBEDDED, load
from regard.recipes.molecules.features import canonical
from regard.recipes.molecules.predictor import held_apart
from regard.scores.lookup import SIZED

from ..killing import KillAtStep, Killed, same_weights

SMALL = {"width": 32, "heads": 2, "layers": 2, "batch": 16, "device": "cpu"}
# A few hundred steps are enough at this rate, with an average that forgets the first ones.
FAST = SMALL | {"rate": 3e-3, "average": 0.95}
FEW = ["CCO", "c1ccccc1", "CC(=O)O", "C", "CCN", "C1CC1", "CCCl", "C#N", "CO", "CCCC"]


@pytest.fixture(scope="module")
def data():
    return load(EMBEDDED, limit=400)


@pytest.fixture(scope="module")
def trained(data):
    return MoleculePredictor(epochs=9, **FAST).fit_dataset(data)


def test_learns_well_above_the_mean(data, trained):
    y = np.concatenate([data.validation.y, data.test.y])
    x = data.validation.x + data.test.x
    trivial = np.sqrt(np.mean((y - data.train.y.mean()) ** 2))
    assert trained.quality(x, y) < 0.85 * trivial
    assert trained.history_.losses[-1] < trained.history_.losses[0]


def test_validations_of_the_training_are_in_the_unit_of_the_targets(data, trained):
    """They were in standardised units, so that the last line of a training named another RMSE than its bar."""
    assert -trained.history_.best == pytest.approx(trained.score_part(data.validation), rel=1e-5)


def test_molecules_that_occur_twice_are_kept_on_one_side_when_rows_are_held_apart():
    spellings = 6 * ["CCO", "OCC", "C(O)C"] + 4 * ["c1ccccc1", "C1=CC=CC=C1"] + FEW
    for seed in range(5):
        kept, y, held, held_y = held_apart(spellings, np.arange(36.0), seed)
        assert len(kept) == len(y) and len(held) == len(held_y) and len(kept) + len(held) == 36
        assert not {canonical(one) for one in kept} & {canonical(one) for one in held}


def test_predictions_do_not_depend_on_the_batch_or_the_spelling(trained):
    alone = np.concatenate([trained.predict([one]) for one in FEW])
    np.testing.assert_allclose(trained.predict(FEW), alone, atol=1e-4)
    np.testing.assert_allclose(*(trained.predict([one]) for one in ("OCC", "CCO")), atol=1e-5)


def test_saved_and_loaded_predicts_the_same(trained, tmp_path):
    trained.save(tmp_path / "model.safetensors")
    again = MoleculePredictor.load(tmp_path / "model.safetensors", device="cpu")
    np.testing.assert_array_equal(again.predict(FEW), trained.predict(FEW))


def test_a_file_with_arguments_that_cannot_work_is_refused(trained):
    with pytest.raises(RecipeError, match="heads must be an integer of 1 or more, got 0"):
        MoleculePredictor(heads=0).restore(trained.learned())
    for scale in ([1.0], [[], 1.0], 1.0):
        with pytest.raises((TypeError, ValueError)):
            MoleculePredictor().restore(trained.learned() | {"scale": scale})


def test_a_killed_training_resumes_to_the_same_weights(data, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_PAUSE", 0.0)
    options = {"validation": (data.validation.x[:20], data.validation.y[:20])}
    x, y = data.train.x[:48], data.train.y[:48]
    model = MoleculePredictor(epochs=4, descriptors=True, ensemble=2, **SMALL)
    whole = clone(model).fit(x, y, **options)
    path = tmp_path / "checkpoint"
    with pytest.raises(Killed):
        clone(model).fit(x, y, checkpoint=path, progress=KillAtStep(8), **options)
    assert path.exists()
    resumed = clone(model).fit(x, y, checkpoint=path, **options)
    assert same_weights(whole, resumed)
    assert len(whole.history_.losses) == len(resumed.history_.losses) == 4


def test_clone_keeps_every_argument():
    model = MoleculePredictor(score="additive", width=48, ensemble=3, average=None)
    assert clone(model).get_params() == model.get_params()


def test_descriptors_and_classes_survive_saving(tmp_path):
    y = ["ring" if "1" in one else "chain" for one in 3 * FEW]
    model = MoleculePredictor("classification", descriptors=True, epochs=2, **SMALL)
    model.fit(3 * FEW, y, validation=(FEW, y[: len(FEW)]))
    assert set(model.predict(FEW)) <= {"ring", "chain"}
    np.testing.assert_allclose(model.predict_proba(FEW).sum(1), 1)
    assert model.statistics(FEW, y[: len(FEW)]).shape == (len(FEW), 2)
    model.save(tmp_path / "model")
    again = MoleculePredictor.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(FEW), model.predict_proba(FEW))


@pytest.mark.parametrize("score", [*SIZED, None, "mean", Additive(16, 2)], ids=str)
def test_every_score_trains(score):
    x, y = 2 * FEW, np.arange(20.0)
    model = MoleculePredictor(score=score, epochs=1, **SMALL).fit(x, y)
    assert np.isfinite(model.predict(FEW)).all()


@pytest.mark.parametrize("pooling", ["attention", "sum", "mean"])
def test_every_pooling_trains_and_attends(pooling):
    model = MoleculePredictor(pooling=pooling, epochs=1, **SMALL).fit(FEW, np.arange(10.0))
    found = model.attend("CCO")
    assert found.atom_weights.sum() == pytest.approx(1, abs=1e-5)


def test_equal_weights_are_equal():
    model = MoleculePredictor(score="mean", epochs=1, **SMALL).fit(FEW, np.arange(10.0))
    found = model.attend("CC(C)C(=O)O")
    np.testing.assert_allclose(found.lift, 1, rtol=1e-5)
    np.testing.assert_allclose(found.atom_weights, 1 / len(found.atoms), rtol=1e-5)


def test_a_score_object_is_refused_by_save_with_a_reason(tmp_path):
    model = MoleculePredictor(score=Additive(16, 2), epochs=1, **SMALL).fit(FEW, np.arange(10.0))
    with pytest.raises(RecipeError, match="score="):
        model.save(tmp_path / "model")


def test_kit_arguments_build_for_every_set():
    for name in KIT.sets:
        KIT.estimator(**KIT.arguments(name)).check_arguments()  # type: ignore[attr-defined]
