"""Results on disk: whole, read back as they were, never lost."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from regard.bench.settings import bars, shapes
from regard.bench.store import COLUMNS, BenchStore, StoreError, load, to_csv

from .made import GPU, made_up

SETTINGS = [*bars("cuda"), *shapes("cuda")[:1]]


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    results, store = made_up(SETTINGS), BenchStore(tmp_path, "h200")
    store.save(results)
    assert load(store.json).as_dict() == results.as_dict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h200.csv", "h200.json"]
    found = json.loads(store.json.read_text())
    assert found["machine"]["name"] == "NVIDIA H200" and found["seed"] == 0
    over = found["settings"][0]["rows"][0]["passes"]["forward"]["over"]
    assert over["dot"]["of"] == "dot cuDNN" and over["textbook"]["of"] == "textbook compiled"


def test_csv_has_a_line_for_each_setting_candidate_and_pass() -> None:
    results = made_up(SETTINGS)
    lines = list(csv.DictReader(io.StringIO(to_csv(results))))
    assert len(lines) == sum(2 * len(m.rows) for m in results.measured.values())
    assert tuple(lines[0]) == COLUMNS
    first = results.measured[SETTINGS[0].key].rows[0].passes["forward"]
    assert float(lines[0]["median_s"]) == first.times.median
    assert lines[0]["dot"] == "dot cuDNN"
    exact = next(x for x in lines if x["candidate"] == "exact")
    assert float(exact["over_dot"]) > 1
    flex = next(x for x in lines if x["candidate"] == "FlexAttention" and x["hidden"] == "64")
    assert flex["median_s"] == "" and flex["reason"]


@pytest.mark.parametrize(
    "text", ["", '{"schema": "regard', "[]", "{}", '{"schema": "regard.bench/0", "settings": []}']
)
def test_a_corrupt_file_is_set_aside(tmp_path: Path, text: str) -> None:
    store = BenchStore(tmp_path, "h200")
    for number in (1, 2):
        store.json.write_text(text)
        results, said = store.open(GPU, 0, resume=True)
        assert not results.measured
        assert "cannot be read" in said and f"h200.corrupt-{number}.json" in said
        assert (tmp_path / f"h200.corrupt-{number}.json").read_text() == text
        assert not store.json.exists()


def test_old_results_are_kept_unless_gone_on_with(tmp_path: Path) -> None:
    store = BenchStore(tmp_path, "h200")
    store.save(made_up(SETTINGS))
    again, said = store.open(GPU, 0, resume=True)
    assert len(again.measured) == 3 and said == "going on after 3 settings of h200.json"
    fresh, said = store.open(GPU, 0, resume=False)
    assert not fresh.measured and "kept as h200.previous-1.json" in said
    assert len(load(tmp_path / "h200.previous-1.json").measured) == 3


@pytest.mark.parametrize(
    ("change", "seed", "message"),
    [
        ({"name": "NVIDIA A100"}, 0, "with name 'NVIDIA H200', this is 'NVIDIA A100'"),
        ({}, 1, "seed 0"),
    ],
)
def test_another_machine_or_seed_cannot_go_on(tmp_path: Path, change, seed, message) -> None:
    store = BenchStore(tmp_path, "h200")
    store.save(made_up(SETTINGS))
    with pytest.raises(StoreError, match=message):
        store.open(GPU | change, seed, resume=True)
    assert store.json.exists()
