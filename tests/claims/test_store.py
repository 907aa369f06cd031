"""Results on disk: read back as they were, never trusted, never half."""

# ruff: noqa: F811 - a fixture that is imported is named again where it is used
from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from regard.claims.claim import ClaimVerdict, Fact, Judgement
from regard.claims.running.store import (
    HALF_WRITTEN,
    LARGEST_FILE,
    LONGEST_REASON,
    Result,
    ResultStore,
    ResultStoreError,
    examine,
    figure_digests,
    load_results,
)
from regard.claims.running.version import code_version
from regard.text import Text

from .running import fake  # noqa: F401 - a fixture

POSIX = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")
FIGURES = {"svg": b"<svg/>", "png": b"png"}


def result_of(claim, value: float = 1.0, **fields) -> Result:
    numbers = {"value": value, "many": [[1, 2], [3, 4]], "name": "x"}
    made = Result(
        id=claim.id,
        full=False,
        seed=3,
        numbers=numbers,
        judgement=claim.judge(numbers),
        seconds=1.5,
        versions={"torch": "2"},
        hardware={"device": "cpu", "cores": 2},
        finished="2026-01-02T03:04:05+00:00",
        code=code_version(claim),
        figures=figure_digests(FIGURES, "en"),
    )
    return replace(made, said=made.judgement.verdict, **fields)


@pytest.fixture
def saved(fake, tmp_path: Path):
    """A folder with the result of A1, and the claim."""
    claim = fake()
    store = ResultStore(tmp_path / "out")
    with store.opened():
        store.save(claim, result_of(claim), FIGURES)
    return store, claim


def edit(store: ResultStore, **fields: object) -> None:
    path = store.path("A1", "json")
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_result_comes_back_as_it_was(saved) -> None:
    store, claim = saved
    assert load_results(store.folder, {"A1": claim}) == {"A1": result_of(claim)}
    assert store.path("A1", "svg").read_bytes() == FIGURES["svg"]
    names = {path.name for path in store.folder.iterdir()}
    assert names == {".lock", "A1.json", "A1.png", "A1.svg"}
    found = json.loads(store.path("A1", "json").read_text())
    assert found["statement"] == {"en": claim.statement.en, "zh": claim.statement.zh}
    assert (found["criterion"]["en"], found["size"], found["verdict"]) == (
        "It is above 0.",
        "quick",
        "holds",
    )
    assert found["facts"][0] == {
        "label": {"en": "value", "zh": "数值"},
        "value": 1.0,
        "low": 0.0,
        "high": 2.0,
        "unit": "m",
    }


def test_the_verdict_is_computed_again_not_believed(saved) -> None:
    store, claim = saved
    edit(store, verdict="does not hold here", because={"en": "lies", "zh": "谎"}, facts=[])
    (result,) = load_results(store.folder, {"A1": claim}).values()
    assert result.judgement == claim.judge(result.numbers)
    assert (result.judgement.verdict, result.said) == (ClaimVerdict.HOLDS, ClaimVerdict.FAILS)
    (unknown,) = load_results(store.folder, {}).values()
    assert unknown.judgement == Judgement(ClaimVerdict.FAILS, Text("lies", "谎"))


def test_an_interval_without_ends_is_written_without_them(fake, tmp_path: Path) -> None:
    claim, store = fake(), ResultStore(tmp_path)
    endless = Fact(Text("a", "甲"), 1.0, float("-inf"), float("inf"))
    judged = Judgement(ClaimVerdict.HOLDS, Text("b", "乙"), (endless,))
    store.save(claim, result_of(claim, judgement=judged), FIGURES)
    (result,) = load_results(tmp_path, {}).values()
    assert (result.judgement.facts[0].low, result.judgement.facts[0].high) == (None, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("\xff", "decode"),
        ("[1]", "schema is not"),
        ('{"schema": "regard.bench/2"}', "schema is not"),
        ('{"schema": "regard.claims/1"}', "it has no 'id'"),
        ("[" * 100_000, "recursion"),
        ("NaN", "NaN is not a number"),
    ],
)
def test_a_file_that_is_no_result_is_set_aside(saved, text: str, why: str) -> None:
    store, claim = saved
    store.path("A1", "json").write_bytes(text.encode("latin-1"))
    assert load_results(store.folder, {"A1": claim}) == {}
    assert store.path("A1", "json").exists()  # reading alone moves nothing
    results, (said,) = store.results({"A1": claim})
    assert results == {} and not store.path("A1", "json").exists()
    assert said.startswith("A1.json cannot be used (") and why in said
    assert said.endswith("set aside as A1.corrupt-1.json")
    assert (store.folder / "A1.corrupt-1.json").read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"id": "A2"}, "it is the result of 'A2'"),
        ({"size": "huge"}, "size 'huge'"),
        ({"seed": "3"}, "seed is '3'"),
        ({"seed": True}, "seed is True"),
        ({"verdict": "perhaps"}, "perhaps"),
        ({"numbers": [1]}, "numbers is [1]"),
        ({"numbers": {"value": "a word"}}, "cannot be judged"),
        ({"numbers": {}}, "cannot be judged: KeyError('value')"),
        ({"facts": ["x"]}, "indices"),
        ({"seconds": None}, "seconds is None"),
        ({"because": {"en": "x"}}, "it has no 'zh'"),
        ({"seconds": 10**400}, "too large to convert"),
        ({"hardware": {"name": "\ud800"}}, r"the character '\ud800'"),
        ({"versions": {"\x1b[31m": "1"}}, r"the character '\x1b'"),
        ({"finished": "yesterday"}, "yesterday"),
        ({"numbers": {"value": 1.0, "deep": eval("[" * 60 + "]" * 60)}}, "more than 50 levels"),  # noqa: S307
        ({"id": "x" * 10_000}, "it is the result of 'xxx"),
    ],
)
def test_a_field_that_is_wrong_is_seen(saved, fields: dict[str, object], why: str) -> None:
    store, claim = saved
    edit(store, **fields)
    results, corrupt = examine(store.folder, {"A1": claim})
    assert results == {} and why in str(corrupt["A1"])
    assert len(str(corrupt["A1"])) <= LONGEST_REASON


@POSIX
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.mkdir, "it is not a file"),
        (os.mkfifo, "it is not a file"),  # reading it would never end
        (lambda path: path.symlink_to("/dev/zero"), "it is not a file"),
        (lambda path: path.touch() or os.truncate(path, LARGEST_FILE + 1), "larger than 64 MiB"),
    ],
    ids=["folder", "pipe", "device", "huge"],
)
def test_what_is_no_file_is_set_aside(saved, make, why: str) -> None:
    store, claim = saved
    store.path("A1", "json").unlink()
    make(store.path("A1", "json"))
    results, (said,) = store.results({"A1": claim})
    assert results == {} and why in said
    store.save(claim, result_of(claim), FIGURES)
    assert set(load_results(store.folder, {"A1": claim})) == {"A1"}


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (Fact(Text("a", "甲"), float("nan")), "not a finite number"),
        (Fact(Text("a", "甲"), 1.0, 2.0, 0.0), "goes from 2.0 to 0.0"),
    ],
)
def test_numbers_that_give_no_facts_are_seen(
    saved, fact: Fact, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, claim = saved
    judged = Judgement(ClaimVerdict.HOLDS, Text("b", "乙"), (fact,))
    monkeypatch.setattr(type(claim), "judge", lambda self, numbers: judged)
    results, corrupt = examine(store.folder, {"A1": claim})
    assert results == {} and why in str(corrupt["A1"])


def test_a_number_beyond_all_numbers_is_seen(saved) -> None:
    store, claim = saved
    path = store.path("A1", "json")
    path.write_text(path.read_text().replace("[ 1, 2 ]", "[ 1, 1e999 ]"))
    assert "infinite or NaN" in str(examine(store.folder, {"A1": claim})[1]["A1"])


def test_numbers_of_other_code_are_left_out_but_not_set_aside(saved) -> None:
    store, claim = saved
    edit(store, numbers={"older": 1}, code="0123")
    assert store.results({"A1": claim}) == ({}, [])
    assert store.path("A1", "json").exists()


def test_other_files_are_let_be(saved) -> None:
    store, claim = saved
    for name in ("notes.json", "A1.corrupt-1.json", "A2.svg", "report.html"):
        (store.folder / name).write_text("x")
    assert set(store.results({"A1": claim})[0]) == {"A1"}
    assert load_results(store.folder / "nowhere", {}) == {}


@pytest.mark.parametrize("name", [".A1.json.x1y2z3", ".report.html.x1y2_z3"])
def test_what_a_killed_run_left_half_is_removed(saved, name: str) -> None:
    store, _ = saved
    half = store.folder / name
    half.write_text("{")
    (store.folder / ".mine").write_text("")
    assert HALF_WRITTEN.fullmatch(half.name)
    with store.opened():
        assert not half.exists() and (store.folder / ".mine").exists()


def test_two_runs_do_not_write_to_one_folder(saved) -> None:
    store, _ = saved
    with (
        store.opened(),
        pytest.raises(ResultStoreError, match="another run is writing to"),
        ResultStore(store.folder).opened(),
    ):
        pass
    with store.opened():  # the first let go of it
        pass


def test_a_full_disk_leaves_the_folder_whole(saved, fake, monkeypatch: pytest.MonkeyPatch) -> None:
    store, claim = saved
    second = fake("A2")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        ResultStoreError, match=r"No space left on device\. Finished claims are kept"
    ):
        store.save(second, result_of(second), FIGURES)
    names = {path.name for path in store.folder.iterdir()}
    assert names == {".lock", "A1.json", "A1.png", "A1.svg"}
    assert set(load_results(store.folder, {"A1": claim})) == {"A1"}


@pytest.mark.parametrize("under", ["", "deeper"])
def test_a_folder_that_is_a_file_is_one_error(tmp_path: Path, under: str) -> None:
    (tmp_path / "taken").write_text("mine")
    with (
        pytest.raises(ResultStoreError, match="cannot write to"),
        ResultStore(tmp_path / "taken" / under).opened(),
    ):
        pass
    assert (tmp_path / "taken").read_text() == "mine"


@POSIX
def test_a_folder_in_the_way_of_a_figure_is_named(saved) -> None:
    store, claim = saved
    store.path("A1", "png").unlink()
    store.path("A1", "png").mkdir()
    with pytest.raises(ResultStoreError, match=r"cannot write to .*A1\.png: Is a directory"):
        store.save(claim, result_of(claim), FIGURES)


def test_figures_that_are_missing_changed_or_in_another_language_are_seen(saved) -> None:
    store, claim = saved
    result = result_of(claim)
    assert store.has_figures(result, "en") and not store.has_figures(result, "zh")
    store.path("A1", "svg").write_bytes(b"other")
    assert not store.has_figures(result, "en")
    store.path("A1", "svg").unlink()
    assert not store.has_figures(result, "en")
