"""Sets and splits: no molecule on two sides, checksums, and the comparison."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

pytest.importorskip("rdkit")

from regard.recipes.comparing import compare
from regard.recipes.datasets import Dataset, Part
from regard.recipes.estimator import RecipeError
from regard.recipes.molecules import KIT, MoleculePredictor, comparison, features
from regard.recipes.molecules.data import EMBEDDED, PUBLIC, load, resplit
from regard.recipes.molecules.features import canonical, scaffold
from regard.recipes.molecules.splits import grouped_split, scaffold_split
from regard.recipes.sources import DataError, find_folder

HERE = bool(os.environ.get("REGARD_DATA")) and find_folder(PUBLIC, None) is not None
needs_data = pytest.mark.skipif(not HERE, reason="REGARD_DATA names no folder with molecules/")


def parts(data: Dataset) -> tuple[Part, Part, Part]:
    return data.train, data.validation, data.test


def disjoint(data: Dataset, key) -> bool:
    sides = [{key(one) for one in part.x} for part in parts(data)]
    return sum(map(len, sides)) == len(set.union(*sides))


def test_the_embedded_set_is_whole():
    data = load()
    assert data.name == EMBEDDED and data.origin == "package"
    assert [len(part) for part in parts(data)] == [814, 102, 101]
    assert disjoint(data, canonical)
    assert len(load(limit=7).train) == 7


def test_groups_stay_together_whatever_the_order_of_rows():
    groups = [str(n // 3) for n in range(60)]
    found = grouped_split(groups, (0.8, 0.1, 0.1), 0)
    assert sorted(np.concatenate(found)) == list(range(60))
    assert [len(part) for part in found] == [48, 6, 6]
    names = [{groups[n] for n in part} for part in found]
    turned = grouped_split(groups[::-1], (0.8, 0.1, 0.1), 0)
    assert names == [{groups[::-1][n] for n in part} for part in turned]
    assert names != [
        {groups[n] for n in part} for part in grouped_split(groups, (0.8, 0.1, 0.1), 1)
    ]


def test_scaffold_split_gives_the_largest_groups_to_training():
    found = scaffold_split(list("aaaaaaaabc"), (0.8, 0.1, 0.1))
    assert [part.tolist() for part in found] == [list(range(8)), [9], [8]]


def test_splitting_again_gives_the_split_of_that_seed():
    again, wanted = resplit(load(), 3), load(split_seed=3)
    for one, other in zip(parts(again), parts(wanted), strict=True):
        assert one.x == other.x
        np.testing.assert_array_equal(one.y, other.y)
    assert again.test.x != load().test.x


def test_an_unknown_set_is_named_with_those_there_are():
    with pytest.raises(RecipeError, match="esol"):
        load("qm9")


def test_missing_data_say_address_checksum_and_argument(monkeypatch, tmp_path):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    for data in (None, tmp_path):
        with pytest.raises(DataError, match=r"(?s)chemprop.*887aa593.*--data"):
            load("esol", data)


def test_a_wrong_checksum_is_refused(tmp_path):
    (tmp_path / "esol.csv.gz").write_bytes(gzip.compress(b"smiles,logp\nCCO,1\n"))
    with pytest.raises(DataError, match="sha256"):
        load("esol", tmp_path)


@needs_data
@pytest.mark.parametrize("name", ["esol", "freesolv", "bbbp"])
def test_public_sets_are_split_by_molecule(name):
    data = load(name)
    assert disjoint(data, canonical)
    assert (
        sum(len(part) for part in parts(data))
        == {"esol": 1128, "freesolv": 642, "bbbp": 2039}[name]
    )


@needs_data
def test_bbbp_is_split_by_scaffold_with_both_classes_in_each_part():
    """Ties ordered the other way left only positive rows for validation and test."""
    data = load("bbbp")
    assert disjoint(data, scaffold)
    assert all(set(part.y) == {0, 1} for part in parts(data))
    assert resplit(data, 3) is data


@needs_data
def test_a_slice_of_esol_is_learned():
    data = load("esol", limit=300)
    model = MoleculePredictor(
        width=32, heads=2, layers=2, batch=16, epochs=9, rate=3e-3, average=0.95, device="cpu"
    )
    model.fit_dataset(data)
    trivial = np.sqrt(np.mean((data.test.y - data.train.y.mean()) ** 2))
    assert model.score_part(data.test) < 0.55 * trivial


def test_comparisons_have_equal_tuning_and_unique_names():
    for full in (True, False):
        found = KIT.comparison(load(), full, "cpu")
        names = [one.name for one in found.contenders]
        assert len(set(names)) == len(names) and found.reference in names
        assert {len(one.settings) for one in found.contenders} == {2 if full else 1}


def test_results_of_the_quick_comparison_are_not_taken_for_the_full_one():
    """Results are kept by setting: the number of epochs must be part of it."""
    quick, full = (
        [
            dict(one)
            for row in KIT.comparison(load(), kind, "cpu").contenders
            for one in row.settings
        ]
        for kind in (False, True)
    )
    assert not [one for one in quick if one in full]


def test_seeds_split_anew_unless_the_split_has_no_seed():
    data = load()
    assert not KIT.comparison(data, True, "cpu").same_test_rows
    scaffolds = Dataset("bbbp", data.title, data.origin, data.train, data.validation, data.test)
    assert KIT.comparison(scaffolds, True, "cpu").same_test_rows


def test_the_comparison_runs_and_draws_aspirin(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "QUICK_EPOCHS", 1)
    only = ["gatv2", "mean over neighbours", "forest descriptors"]
    found = compare(KIT.comparison(small_set(), False, "cpu"), tmp_path, only=only)
    assert not found.failed and {row.name for row in found.rows} == set(only)
    assert found.test_rows == (5, 5)
    (picture,) = found.pictures
    assert len(picture.svg) < 60_000 and "aspirin" in picture.caption.en
    assert "阿司匹林" in picture.caption.zh


def test_time_of_predicting_has_no_rdkit_in_it_whichever_row_is_first(monkeypatch):
    """What RDKit computes is kept, so that the first row once paid for the test molecules of all."""
    kept = (features.canonical_or_none, features.featurised, features.descriptors_of)
    for one in kept:
        one.cache_clear()
    statistics, misses = MoleculePredictor.statistics, []

    def counted(self, x, y):
        before = [one.cache_info().misses for one in kept]
        found = statistics(self, x, y)
        misses.append([one.cache_info().misses for one in kept] != before)
        return found

    monkeypatch.setattr(MoleculePredictor, "statistics", counted)
    monkeypatch.setattr(comparison, "QUICK_EPOCHS", 1)
    rows = KIT.comparison(small_set(), False, "cpu").contenders
    for row in rows:
        if row.name in ("gatv2", "gatv2 + descriptors"):
            row.run(row.settings[0], 1, lambda share: None)
    assert misses and not any(misses)


def small_set() -> Dataset:
    """Fifty rows of the embedded set."""
    whole = load(limit=40)
    held = [Part(part.x[:5], part.y[:5]) for part in (whole.validation, whole.test)]
    return Dataset(whole.name, whole.title, whole.origin, whole.train, *held)
