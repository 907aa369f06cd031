"""Sets: what is in them, checksums, missing files, packing of the public files, and the comparison."""

from __future__ import annotations

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("torch_geometric")

from regard.recipes.comparing import compare
from regard.recipes.datasets import Dataset
from regard.recipes.fingerprint import fingerprint
from regard.recipes.graph import KIT, NodeClassifier, contenders
from regard.recipes.graph.data import (
    ARRAYS,
    EMBEDDED,
    PLANETOID,
    PUBLIC,
    flat,
    load,
    look_up,
    read_arrays,
)
from regard.recipes.sources import DataError, find_folder

from .test_graph_fit import needs_data

PACKER = Path(__file__).parents[3] / "benchmarks" / "pack_planetoid.py"


def parts(data: Dataset):
    return data.train, data.validation, data.test


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_sets_are_whole_and_the_same_every_time(name):
    data = load(name)
    assert data.name == name and fingerprint(data) == fingerprint(load(name))
    classes = set(data.train.y.tolist())
    for part in parts(data):
        assert len(part.x) == len(part.y) > 0
        assert set(part.y.tolist()) <= classes
    if name != "dictionary":
        rows = np.concatenate([part.x.index.numpy() for part in parts(data)])
        assert sorted(rows) == list(range(data.train.x.graph.num_nodes))
    assert len(load(name, limit=3).train) == 3
    NodeClassifier(**KIT.arguments(name)).check_arguments()


def test_labels_of_a_dictionary_are_the_values_of_the_keys():
    part = look_up(4, (3, 1, 1), seed=2).train
    graph = part.x.graph
    for asker, label in zip(part.x.index, part.y, strict=True):
        sources = graph.edge_index[0][graph.edge_index[1] == asker]
        key = int(graph.x[asker, :4].argmax())
        right = [s for s in sources if int(graph.x[s, :4].argmax()) == key]
        assert len(sources) == 4 and len(right) == 1
        assert int(graph.x[right[0], 4:].argmax()) == label
    assert graph.x[part.x.index, 4:].abs().max() == 0, "an asker does not hold its answer"


def test_unknown_sets_and_limits_are_refused():
    with pytest.raises(
        DataError, match=r"no set 'pubmed' of graphs; the sets are karate, .*citeseer"
    ):
        load("pubmed")
    with pytest.raises(DataError, match="limit must be 1 or more, got 0"):
        load("karate", limit=0)


@pytest.mark.parametrize("name", PUBLIC)
def test_missing_data_say_how_they_are_made_and_which_argument_names_them(
    name, monkeypatch, tmp_path
):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    for options in ({}, {"download": True}, {"data": tmp_path}):
        with pytest.raises(DataError, match=r"(?s)tkipf/gcn.*pack_planetoid.*--data"):
            load(name, **options)


def packer():
    """The script that packs the public files."""
    spec = importlib.util.spec_from_file_location("pack_planetoid", PACKER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_parts(folder: Path, **changed) -> None:
    """Files of a set with 4 known nodes, 2 others and 3 for testing, of which one, node 7, is in no file."""
    draw = np.random.default_rng(0)
    rows = sp.csr_matrix(draw.integers(0, 2, (8, 5)).astype(np.float32))
    labels = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 1, 0, 1, 0]]
    edges = {n: [(n + 1) % 6, 8] for n in range(6)} | {6: [6, 0], 8: [6]}
    content = {"y": labels[:4], "ally": labels[:6], "ty": labels[6:], "allx": rows[:6],
               "tx": rows[6:], "graph": edges} | changed  # fmt: skip
    for part, value in content.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(value, protocol=3))
    (folder / "ind.cora.test.index").write_text("8\n6\n")


def test_packing_puts_test_nodes_where_they_belong_and_leaves_gaps_unlabelled(tmp_path):
    write_parts(tmp_path)
    found = packer().packed(tmp_path, "cora")
    assert set(found) == set(ARRAYS)
    assert found["y"].tolist() == [0, 1, 0, 1, 1, 0, 0, -1, 1]
    assert found["test_idx"].tolist() == [6, 8] and found["train_idx"].tolist() == [0, 1, 2, 3]
    assert found["x_shape"].tolist() == [9, 5]
    assert found["x_indptr"][7] == found["x_indptr"][8], "node 7 has no features"
    pairs = set(map(tuple, found["edge_index"].T.tolist()))
    assert (0, 8) in pairs and (8, 0) in pairs and (6, 6) not in pairs
    assert pairs == {(b, a) for a, b in pairs} and len(pairs) == found["edge_index"].shape[1]


class Harmful:
    def __reduce__(self):
        return print, ("harm",)


def test_packing_builds_nothing_but_arrays_and_dicts(tmp_path, capsys):
    write_parts(tmp_path, graph=Harmful())
    with pytest.raises(pickle.UnpicklingError, match="print is not expected"):
        packer().packed(tmp_path, "cora")
    assert capsys.readouterr().out == ""


def test_a_wrong_checksum_and_a_damaged_file_are_refused(tmp_path):
    write_parts(tmp_path)
    path = tmp_path / "cora_clean.npz"
    arrays = packer().packed(tmp_path, "cora")
    np.savez_compressed(path, **arrays)
    with pytest.raises(DataError, match="sha256"):
        load("cora", tmp_path)
    np.savez(path, **{key: arrays[key] for key in ARRAYS[1:]})
    with pytest.raises(DataError, match=r"cora_clean\.npz is damaged"):
        load("cora", tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"cora_clean\.npz is damaged"):
        load("cora", tmp_path)
    (tmp_path / "citeseer_clean.npz").write_bytes(b"")
    path.unlink()
    with pytest.raises(DataError, match=r"cora_clean\.npz is missing"):
        load("cora", tmp_path)


def test_the_checksum_is_of_the_arrays_and_not_of_their_packing(tmp_path):
    write_parts(tmp_path)
    arrays = packer().packed(tmp_path, "cora")
    assert flat(arrays) == flat({key: arrays[key].copy(order="F") for key in reversed(ARRAYS)})
    other = arrays | {"y": arrays["y"].astype(np.int32)}
    assert flat(arrays) != flat(other)


@needs_data
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "known"), [("cora", 2708, 10556, 140), ("citeseer", 3327, 9104, 120)]
)
def test_public_sets_have_their_sizes(name, nodes, edges, known):
    data = load(name)
    graph = data.train.x.graph
    assert (graph.num_nodes, graph.edge_index.shape[1]) == (nodes, edges)
    assert [len(part) for part in parts(data)] == [known, 500, 1000]
    total = graph.x.sum(1)
    assert ((total - 1).abs() < 1e-5).logical_or(total == 0).all()
    assert all(part.y.min() >= 0 for part in parts(data)), "no unlabelled node is a row"


@needs_data
def test_unlabelled_nodes_of_citeseer_stay_in_the_graph():
    y = read_arrays(find_folder(PLANETOID, None) / "citeseer_clean.npz")["y"]
    graph = load("citeseer").train.x.graph
    unlabelled = np.flatnonzero(y == -1)
    assert len(unlabelled) == 15 and graph.x[unlabelled].abs().max() == 0
    assert np.isin(unlabelled, graph.edge_index.numpy()).all(), "they are cited"
    model = NodeClassifier(epochs=1, device="cpu").fit_dataset(load("citeseer", limit=30))
    assert np.isfinite(model.predict_proba(graph)).all()


def test_comparisons_have_equal_tuning_and_unique_names():
    for name in ("karate", "dictionary"):
        for full, settings, seeds in ((True, 3, 10), (False, 2, 3)):
            found = KIT.comparison(load(name), full, "cpu")
            names = [one.name for one in found.contenders]
            assert len(set(names)) == len(names) and found.reference in names
            assert {len(one.settings) for one in found.contenders} == {settings}
            assert len(found.seeds) == seeds


def test_results_of_the_quick_comparison_are_not_taken_for_the_full_one():
    """Results are kept by setting: the number of epochs must be part of it."""
    quick, full = (
        [
            dict(one)
            for row in KIT.comparison(load("karate"), kind, "cpu").contenders
            for one in row.settings
            if row.name != "logistic regression"  # which has no epochs
        ]
        for kind in (False, True)
    )
    assert not [one for one in quick if one in full]


def test_the_comparison_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(contenders, "QUICK_EPOCHS", 2)
    found = compare(KIT.comparison(load("karate"), False, "cpu"), tmp_path, seeds=1)
    assert not found.failed and len(found.rows) == 13
    assert found.test_rows == (20,)


def test_rows_of_the_dictionary_run_too(tmp_path, monkeypatch):
    monkeypatch.setattr(contenders, "QUICK_EPOCHS", 1)
    small = replace(look_up(3, (2, 2, 2), seed=0), name="dictionary")
    found = compare(KIT.comparison(small, False, "cpu"), tmp_path, seeds=1)
    assert not found.failed and len(found.rows) == 12
