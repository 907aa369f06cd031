"""Bad input has one clear error or a defined result; pictures; the metric."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.text import Text as MplText
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

pytest.importorskip("rdkit")

from regard.measuring.statistics import Estimate
from regard.recipes.comparing.intervals import sample
from regard.recipes.estimator import RecipeError
from regard.recipes.molecules import KIT, MoleculePredictor, draw
from regard.recipes.molecules.drawing import ATOM_LEGEND, as_svg, bond_name, ranked, shades
from regard.recipes.molecules.features import (
    ATOM_WIDTH,
    BOND_WIDTH,
    canonical,
    descriptors,
    featurised,
    fingerprints,
)
from regard.recipes.molecules.packing import Packed
from regard.recipes.molecules.ranking import ROC_AUC
from regard.text import LANGUAGES

X = ["CCO", "C", "[Na+].[Cl-]", "c1ccccc1", "F/C=C/F", "CC(=O)O", "C#N", "CCC"]


def small(**more) -> MoleculePredictor:
    return MoleculePredictor(
        **{"width": 16, "heads": 2, "layers": 2, "epochs": 1, "device": "cpu"} | more
    )


@pytest.fixture(scope="module")
def model():
    return small().fit(X, np.arange(8.0))


@pytest.mark.parametrize(
    "bad", ["C1CC", "notasmiles", "C\udcff", "", "  ", None, 3.0, float("nan"), ["C"]]
)
def test_a_smiles_that_does_not_parse_is_named_with_its_row(model, bad):
    with pytest.raises(RecipeError, match="row 1"):
        model.predict(["C", bad])
    with pytest.raises(RecipeError, match="row 1"):
        small().fit(["C", bad], [0.0, 1.0])


def test_what_rdkit_says_is_not_printed(model, capfd):
    with pytest.raises(RecipeError, match="C1CC"):
        model.predict(["C1CC"])
    assert capfd.readouterr() == ("", "")


def test_empty_input(model):
    assert model.predict([]).shape == (0,)
    for x, y in (([], []), ("CCO", [1.0])):
        with pytest.raises(RecipeError, match="x"):
            small().fit(x, y)
    with pytest.raises(RecipeError, match="x is empty"):
        model.score([], [])
    with pytest.raises(RecipeError, match="the input is empty"):
        KIT.read(["", " "])


def test_a_molecule_without_bonds_is_predicted_drawn_and_trained_on(model, tmp_path):
    only = small().fit(["C", "[Na+]", "N", "O"], np.arange(4.0))
    for one in (model, only):
        assert np.isfinite(one.predict(["C", "[Na+].[Cl-]"])).all()
    found = draw(model, "C", tmp_path / "c.svg")
    assert found.bonds.shape == (0, 2) and found.weights.shape == (0,)
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")
    assert KIT.show(model, ["C"], "en") is not None


def test_a_molecule_of_a_thousand_atoms_is_predicted_and_drawn(model):
    chain = "C" * 1000
    assert np.isfinite(model.predict([chain, "C"])).all()
    found = model.attend(chain)
    assert len(found.bonds) == 999 and "<svg" in as_svg(found)


def test_descriptors_of_a_large_molecule_do_not_overflow():
    """Ipc, one of them, grows exponentially with the atoms."""
    model = small(descriptors=True).fit(X, np.arange(8.0))
    assert np.isfinite(model.predict(["C" * 150])).all()


def test_targets_are_checked():
    for y, text in (
        (None, "missing"),
        ([1.0], "one entry"),
        ([[1.0], [2.0]], "one entry"),
        ([1.0, float("nan")], "nan in row 1"),
        ([1.0, None], "None in row 1"),
        (["1.0", "2.0"], "number"),
    ):
        with pytest.raises(RecipeError, match=text):
            small().fit(["C", "CC"], y)
    with pytest.raises(RecipeError, match="None in row 1"):
        small(task="classification").fit(["C", "CC"], ["yes", None])
    with pytest.raises(RecipeError, match="two classes"):
        small(task="classification").fit(["C", "CC"], [1, 1])
    with pytest.raises(RecipeError, match="class 2"):
        small(task="classification").fit(X, [0, 1] * 4).score(["C"], [2])
    with pytest.raises(RecipeError, match="two different molecules"):
        small().fit(["CCO", "OCC"], [1.0, 2.0])


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([1e308, -1e308], r"y spans -1e\+308 to 1e\+308.*rescale y"),
        ([1e-320, 3e-320], "rescale y"),
        ([1e200, 0.0], "rescale y"),
        ([10**400, 1], "finite number in each row, got 1000"),
        ([[1.0], [1.0, 2.0]], "y must be"),
        (["a", 1], "words or all numbers, got 'a' in row 0 and 1 in row 1"),
    ],
)
def test_targets_that_cannot_be_standardised_are_refused(y, text):
    """Predictions were infinite, or had nothing to do with them."""
    with pytest.raises(RecipeError, match=text):
        small().fit(["C", "CC"], y, validation=(["C", "CC"], [1.0, 2.0]))


def test_targets_that_can_be_standardised_are_learned():
    for y in (np.full(8, 3.0), np.arange(8) * 1e-100, np.arange(8) * 1e100):
        assert np.isfinite(small().fit(X, y).predict(X)).all()


def test_sklearn_knows_what_it_is():
    assert is_regressor(small()) and not is_classifier(small())
    assert is_classifier(small(task="classification"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", "rank"),
        ("pooling", "max"),
        ("heads", 3),
        ("epochs", 0),
        ("width", 1.5),
        ("score", "scald_dot"),
    ],
)
def test_arguments_are_named_in_their_errors(name, value):
    with pytest.raises(RecipeError, match=name):
        small(**{name: value}).fit(X, np.arange(8.0))


def test_not_fitted_is_said():
    with pytest.raises(NotFittedError):
        small().predict(["C"])
    with pytest.raises(NotFittedError):
        small().attend("C")


def test_attended_bonds_are_those_of_the_molecule(model, tmp_path):
    found = model.attend("CC(=O)O")
    assert found.atoms == ["C", "C", "O", "O"]
    assert found.bonds.tolist() == [[0, 1], [1, 2], [1, 3]]
    assert found.by_layer.shape == (2, 6, 2)
    # Into an atom go the weights of its bonds and of itself, which sum to 1.
    assert (found.by_layer[:, ::2] > 0).all() and (found.by_layer < 1).all()
    assert found.atom_weights.sum() == pytest.approx(1, abs=1e-5)
    draw(model, "CC(=O)O", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == as_svg(found)
    assert len(KIT.show(model, None, "en").axes) == 2


def test_shades_start_at_an_equal_weight_and_end_at_a_fixed_one():
    np.testing.assert_allclose(shades(np.array([0.5, 1.0, 1.25, 1.5, 2.0])), [0, 0, 0.5, 1, 1])
    assert shades(np.zeros(0)).shape == (0,)


def test_equal_weights_are_drawn_without_colour_or_rank():
    """Shades relative to the greatest weight painted the rounding errors of the control in full orange."""
    equal = small(score="mean").fit(X, np.arange(8.0)).attend("CC(=O)O")
    assert ranked(equal) == []
    assert "#E69F00" not in as_svg(equal)
    loud = equal._replace(lift=np.array([1.0, 2.0, 1.2]))
    assert ranked(loud) == [1, 2] and "#E69F00" in as_svg(loud)
    assert [bond_name(loud, n) for n in range(3)] == ["C-C", "C=O", "C-O"]


@pytest.mark.parametrize("smiles", ["C", "CC(=O)O"])
def test_figures_have_a_legend_in_both_languages(model, smiles):
    for language in LANGUAGES:
        texts = {one.get_text() for one in KIT.show(model, [smiles], language).findobj(MplText)}
        assert ATOM_LEGEND.of(language) in texts


def test_features_have_their_widths_and_both_directions():
    for smiles in X:
        found = featurised(smiles)
        assert found.atoms.shape[1] == ATOM_WIDTH and found.bonds.shape[1] == BOND_WIDTH
        assert found.ends.shape == (2, len(found.bonds))
        np.testing.assert_array_equal(found.ends[:, ::2], found.ends[::-1, 1::2])
    assert np.isfinite(descriptors(X)).all() and fingerprints(X).shape == (8, 2048)
    assert not np.array_equal(featurised("F/C=C/F").bonds, featurised("F/C=C\\F").bonds)
    assert canonical("OCC") == canonical("CCO")


def test_predictions_see_what_only_bonds_tell(model):
    """The two forms of 1,2-difluoroethene differ in the stereo of a bond, and in no feature of an atom."""
    first, second = "F/C=C/F", "F/C=C\\F"
    np.testing.assert_array_equal(featurised(first).atoms, featurised(second).atoms)
    assert abs(np.subtract(*model.predict([first, second]))) > 1e-4


def test_a_selection_is_the_molecules_themselves():
    import torch

    found = [featurised(one) for one in X]
    packed = Packed(found, np.arange(8.0), None, torch.device("cpu"))
    batch = packed.select(np.array([3, 1, 4]))
    np.testing.assert_array_equal(batch.atoms, np.concatenate([found[n].atoms for n in (3, 1, 4)]))
    assert batch.owner.tolist() == [0] * 6 + [1] + [2] * 4
    assert batch.edge_index[:, -6:].tolist() == (found[4].ends + 7).tolist()
    assert batch.target.tolist() == [3, 1, 4]


def test_roc_auc_is_that_of_scikit_learn_and_nan_for_one_class():
    draw_from = np.random.default_rng(0)
    for _ in range(20):
        label = draw_from.integers(0, 2, 30)
        score = draw_from.integers(0, 6, 30) / 5  # with ties
        label[:2] = 0, 1
        expected = roc_auc_score(label, score)
        assert ROC_AUC.value(np.stack([label, score], 1)) == pytest.approx(expected)
    assert np.isnan(ROC_AUC.value(np.array([[1.0, 0.3], [1.0, 0.9]])))
    assert np.isnan(ROC_AUC.value(np.array([[0.0, 0.3]])))


def test_resamples_of_one_class_do_not_widen_an_interval():
    """One positive row in four is in no resample in a third of draws; these once counted as an area of 0.5."""
    rows = np.array([[1.0, 0.9], [0.0, 0.1], [0.0, 0.2], [0.0, 0.3]])
    found = sample({"perfect": [rows]}, ROC_AUC, draws=200)["perfect"]
    assert (found.draws == 1).all()
    assert found.interval(bounds=ROC_AUC.bounds) == Estimate(1.0, 1.0, 1.0)


def test_validation_rows_of_one_class_are_level():
    model = MoleculePredictor("classification", epochs=2, patience=1, device="cpu")
    model.fit(["C", "CC", "CCC", "CCO"], [0, 1, 0, 1], validation=(["CCN", "CN"], [1, 1]))
    assert [quality for _, quality in model.history_.validations] == [0.5, 0.5]


def test_read_and_write_of_the_kit():
    assert KIT.read(["CCO ethanol", "", "C"]) == ["CCO", "C"]
    with pytest.raises(RecipeError, match=r"^line 3: 'C1CC'"):
        KIT.read(["CCO", "", "C1CC broken"])
    with pytest.raises(RecipeError, match=r"^'C1CC' is not"):
        KIT.read(["C1CC"])
    assert KIT.write(["CCO", "C"], np.array([1.23456, -3])) == ["CCO\t1.235", "C\t-3"]
    assert KIT.write(["C"], np.array(["yes"])) == ["C\tyes"]
