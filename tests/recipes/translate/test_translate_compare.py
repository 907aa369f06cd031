"""What is compared: contenders, settings, quarters, equal time, the narrow encoder and its costs."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest

from regard.measuring.statistics import Estimate
from regard.recipes.comparing import compare
from regard.recipes.comparing.results import Compared
from regard.recipes.datasets import Dataset, Part
from regard.recipes.sources import VARIABLE, find_folder
from regard.recipes.translate import (
    KIT,
    contenders,
    device_costs,
    measure_timing,
    small_device,
    timing,
)
from regard.recipes.translate.bleu import bleu_statistics, corpus_bleu
from regard.recipes.translate.contenders import CONSISTENCY, QUICK, by_length
from regard.recipes.translate.kit import load
from regard.recipes.translate.multi30k import MULTI30K
from regard.recipes.translate.picture import EXAMPLES
from regard.text import Text

HERE = bool(os.environ.get(VARIABLE)) and find_folder(MULTI30K, None) is not None
needs_data = pytest.mark.skipif(not HERE, reason=f"{VARIABLE} names no folder with multi30k/")
TINY = {"epochs": 1, "width": 8, "layers": 1, "vocabulary": 80, "batch_tokens": 512}


@pytest.fixture(scope="module")
def data():
    whole = load("dates", limit=40)
    held = [Part(part.x[:6], part.y[:6]) for part in (whole.validation, whole.test)]
    return dataclasses.replace(whole, validation=held[0], test=held[1])


@pytest.fixture
def tiny(monkeypatch):
    """Networks of any set as small as can be."""
    for module in (contenders, small_device):
        for name in ("arguments", "quick_arguments"):
            known = getattr(module, name)
            monkeypatch.setattr(
                module, name, lambda *given, known=known: known(*given) | TINY | {"beam": 2}
            )


def public(data: Dataset) -> Dataset:
    return dataclasses.replace(data, name="multi30k-de-en", origin="public")


def test_rows_have_unique_names_and_as_many_settings_each(data, monkeypatch):
    monkeypatch.setattr(timing, "seconds", dict)
    for kit in (KIT, small_device.KIT):
        for rows in (data, public(data)):
            for full in (True, False):
                found = kit.comparison(rows, full, "cpu")
                names = [one.name for one in found.contenders]
                assert len(set(names)) == len(names) and found.reference in names
                assert len({len(one.settings) for one in found.contenders}) == 1
    assert len(KIT.comparison(public(data), True, None).contenders[0].settings) == len(CONSISTENCY)
    full = [one.kind for one in KIT.comparison(data, True, "cpu").contenders]
    assert full.count("score") == 7 and full.count("control") == 1
    assert [one.name for one in KIT.comparison(data, False, "cpu").contenders if one.name in QUICK]


def test_results_of_the_quick_comparison_are_not_taken_for_the_full_one(data):
    """Results are kept by setting: what the two differ in must be part of it."""
    for kit in (KIT, small_device.KIT):
        quick, full = (
            {
                (row.name, json.dumps(one))
                for row in kit.comparison(data, kind, "cpu").contenders
                for one in row.settings
            }
            for kind in (False, True)
        )
        assert not quick & full


def test_slower_scores_get_fewer_epochs_at_equal_time(data, monkeypatch):
    known = {"scaled dot": 2.0, "additive": 4.0, "cosine": 2.05, "dot": 1.0}
    monkeypatch.setattr(timing, "seconds", lambda: known)
    found = {one.name: one for one in KIT.comparison(public(data), True, None).contenders}
    late = [name for name in found if name.endswith("at equal time")]
    assert late == ["additive at equal time"]
    whole, half = (found[name].settings[0]["epochs"] for name in ("additive", *late))
    assert half == whole / 2
    assert [dict(one) | {"epochs": whole} for one in found[late[0]].settings] == [
        dict(one) for one in found["additive"].settings
    ]
    assert f"{half} epochs" in found[late[0]].about.en
    said = [
        one.notes[0]
        for one in (KIT.comparison(public(data), True, None), KIT.comparison(data, True, None))
    ]
    assert ["equal time" in one.en for one in said] == [True, False], (
        "no row is at equal time there"
    )
    assert ["同等时间" in one.zh for one in said] == [True, False]
    assert not [
        one.name for one in KIT.comparison(data, True, None).contenders if "time" in one.name
    ]
    assert timing.epochs_in_time("bilinear", "scaled dot", 10) is None
    assert timing.epochs_in_time("additive", "scaled dot", 1) == 1


def test_an_epoch_is_timed_without_the_first(monkeypatch):
    clock, read = iter([3.0, 10.0, 11.0, 14.0, 16.0]), []
    monkeypatch.setattr(measure_timing.time, "perf_counter", lambda: next(clock))
    taken, epochs = measure_timing.EpochClock(), measure_timing.WARM + measure_timing.TIMED
    taken.start(3 * epochs, 0)
    for _ in range(3 * epochs):
        taken.step(lambda: read.append(1) or 0.0)
    assert taken.seconds() == pytest.approx((16.0 - 10.0) / measure_timing.TIMED)
    assert taken.first() == 10.0 - 3.0
    assert len(read) == epochs, "reading a loss makes a GPU wait"


def test_quarters_go_from_the_shortest_sentences_to_the_longest():
    x = ["a b c d", "a", "a b", "a b c"]
    y = ["one two three four five", "b", "c d", "e f g h i"]
    said = ["one two three four five", "x", "y", "z"]
    found = by_length(Part(x, y), bleu_statistics(said, y, True))
    assert [(one["from"], one["to"]) for one in found] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert found[-1]["bleu"] == pytest.approx(100) and found[0]["bleu"] < 1


def test_the_comparison_runs_and_says_what_pages_need(data, tiny, tmp_path):
    found = compare(KIT.comparison(data, False, "cpu"), tmp_path, dataset={"fingerprint": "x"})
    assert not found.failed and {row.name for row in found.rows} == set(QUICK)
    row = found.row("bahdanau")
    assert {"chrf", "bleu_greedy", "exact_percent", "bleu_quarter_1", "bleu_quarter_4"} <= set(
        row.extra
    )
    assert row.extra["signatures"]["BLEU"].startswith("nrefs:1|")
    assert all(one in found.notes[-1].en for one in row.extra["signatures"].values())
    assert len(found.pictures) == 2, "one of a recurrent network, one of a transformer"
    assert all(one.svg.startswith("<?xml") and "。" in one.caption.zh for one in found.pictures)
    assert found.row("bahdanau").parameters > 0
    shown = found.row("scaled dot").extra["bleu_by_length"]
    assert sum(part["sentences"] for part in shown) == 6


@needs_data
def test_no_sentence_of_multi30k_is_in_what_pages_are_made_of(tiny, tmp_path):
    whole = load("multi30k-de-en", limit=60)
    held = [Part(part.x[:8], part.y[:8]) for part in (whole.validation, whole.test)]
    rows = dataclasses.replace(whole, validation=held[0], test=held[1])
    found = compare(KIT.comparison(rows, False, "cpu"), tmp_path, only=["scaled dot"])
    found.save(tmp_path / "summary.json")
    text = "".join(path.read_text() for path in tmp_path.rglob("*.json")).lower()
    assert any(one.lower() in text for one in EXAMPLES), "the picture is of a sentence of ours"
    for part in (whole.train, *held):
        for one in (*part.x, *part.y):
            assert json.dumps(one.lower())[1:-1] not in text


def made_up_result() -> Compared:
    """A result of the narrow encoder with made-up BLEU."""
    rows = []
    for number, one in enumerate(small_device.comparison(load("dates", limit=4), True).contenders):
        value = Estimate(30.0 + number, 29.0, 32.0)
        rows.append(
            contenders_row(one.name, one.title, value, None if number == 3 else Estimate(0, -1, 1))
        )
    words = {"name": "bleu", "title": Text("BLEU", "BLEU")._asdict(), "greater": True, "digits": 1}
    return Compared.of_json(
        {
            "schema": "regard.recipes.compared/1", "name": "translate-small-device",
            "title": {"en": "a", "zh": "b"}, "metric": words, "reference": "scaled dot 512",
            "rows": rows, "against": None, "seeds": [0, 1], "test_rows": [4, 4], "notes": [],
            "failed": {}, "machine": {}, "dataset": {}, "full": True, "pictures": [],
        }
    )  # fmt: skip


def contenders_row(name, title, value, difference) -> dict:
    return {
        "name": name, "title": title._asdict(), "kind": "score", "setting": {}, "tried": 1,
        "validation": 1.0, "value": value, "difference": difference, "values": [1.0, 2.0],
        "parameters": 3, "train_seconds": 1.0, "predict_seconds": 1.0, "extra": {"chrf": 50.0},
        "about": None,
    }  # fmt: skip


def test_costs_are_measured_and_joined_to_the_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device_costs, "WIDTHS", (512, 32))
    monkeypatch.setattr(device_costs, "ROUNDS", 1)
    monkeypatch.setattr(device_costs, "WARM_UPS", 0)
    monkeypatch.setattr(device_costs, "LENGTH", 2)
    path, result = tmp_path / "costs.json", tmp_path / "result.json"
    made_up_result().save(result)
    monkeypatch.setattr(device_costs, "costs", lambda known=device_costs.costs: known(2))
    device_costs.main([str(path), "--join", str(result)])
    assert "additive 512" in capsys.readouterr().out
    costs = {row["name"]: row for row in json.loads(path.read_bytes())["rows"]}
    assert len(costs) == 8 and all(row["cpu_ms"] > 0 for row in costs.values())
    assert costs["scaled dot 512"]["relative"] == 1
    assert costs["additive 32"]["model_bytes"] < costs["additive 512"]["model_bytes"]
    # Keys of 512 projected to 256 are kept beside the values of 512; both for 2 pieces in fp32.
    assert costs["scaled dot 512"]["memory_bytes"] == 2 * 4 * (256 + 512)
    found = Compared.load(result)
    assert found.row("low rank 32").extra["cpu_ms"] == costs["low rank 32"]["cpu_ms"]
    assert found.row("low rank 32").extra["chrf"] == 50
    before = path.read_bytes()
    device_costs.main([str(path), "--join", str(result)])
    again = Compared.load(result)
    assert path.read_bytes() == before, "costs that are there are not measured again"
    assert len(again.notes) == len(found.notes) == 1 and len(again.pictures) == 1
    assert "additive 加性" in again.pictures[0].svg


def test_networks_of_the_costs_are_those_of_the_comparison(data, monkeypatch):
    rows = small_device.comparison(public(data), True, "cpu").contenders
    made = []
    monkeypatch.setattr(contenders, "trained", lambda model, *given: made.append(model))
    widths = np.repeat(small_device.WIDTHS, 4).tolist()
    for row in rows[::5]:
        row.run(row.settings[0], 1, lambda share: None)
    for model, width in zip(made, widths[::5], strict=True):
        ours = device_costs.network_of(model.chosen_score, width).state_dict()
        theirs = model.network_for(device_costs.VOCABULARY).state_dict()
        assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}


@pytest.mark.slow
def test_seconds_are_measured_for_every_score_and_read_back(tmp_path, monkeypatch):
    """On a few rows of the dates: the file is what `epochs_in_time` reads."""
    monkeypatch.setattr("regard.recipes.translate.sizes.DATES", KIT.arguments("dates") | TINY)
    path = tmp_path / "timing.json"
    measure_timing.main(["--set", "dates", "--limit", "12", "--device", "cpu", "--out", str(path)])
    monkeypatch.setattr(timing, "FILE", path)
    timing.seconds.cache_clear()
    try:
        assert set(timing.seconds()) == set(contenders.SCORES)
        assert all(one > 0 for one in timing.seconds().values())
    finally:
        timing.seconds.cache_clear()
    assert corpus_bleu(np.zeros((0, 10))) == 0
