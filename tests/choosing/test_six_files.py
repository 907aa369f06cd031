"""Files as people have them go to an answer by one command each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import regard
from regard.choosing.tasks import task
from regard.cli import choose as choose_command
from regard.cli.app import group

ROWS = 120
QUICK = ["--steps", "20", "--seeds", "3", "--minutes", "2", "--jobs", "1", "--json"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Runs `regard choose` in a folder, with few candidates, and gives the verdict."""
    monkeypatch.chdir(tmp_path)
    # The whole set of candidates takes ten times as long and is tested elsewhere.
    few = {"scores": ("cosine",), "stabilizers": ("none",), "rates": (1e-2,)}
    whole = task.choose
    monkeypatch.setattr(task, "choose", lambda *args, **more: whole(*args, **{**more, **few}))

    def run(line: str) -> dict[str, Any]:
        result = CliRunner().invoke(group, ["choose", *line.split(), *QUICK], prog_name="regard")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)["tasks"][0]["verdict"]

    return run


def draw() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_csv_with_columns(command) -> None:
    rng, lines = draw(), ["id,age,income,city,joined_member,label"]
    for row in range(ROWS):
        age, income = rng.normal(40, 10), rng.normal(5e4, 1e4)
        city, member = rng.choice(["Oslo", "Rome"]), rng.choice(["true", "false"])
        gone = "" if row % 10 == 0 else f"{income:.2f}"
        lines.append(f"{row},{age:.1f},{gone},{city},{member},{'high' if age > 40 else 'low'}")
    Path("mine.csv").write_text("\n".join(lines), encoding="utf-8")
    found = command("--data mine.csv --target label --drop id")
    assert found["metric"] == "accuracy" and len(found["seeds"]) == 3
    said = " ".join(found["notes"])
    assert "0 = high, 1 = low" in said and "missing" in said and "Oslo" in said


def test_a_ragged_parquet(command) -> None:
    rng = draw()
    query, keys, right = rng.normal(size=(ROWS, 6)), [], []
    for row in query:
        several = rng.normal(size=(rng.integers(2, 6), 6))
        keys.append(several.tolist())
        right.append(int((several @ row).argmax()))
    columns = {"query": query.tolist(), "key": keys, "target": right}
    pq.write_table(pa.table(columns), "mine.parquet")
    found = command("--data mine.parquet")
    # Guessing is one of the keys that are there, on average of 2 to 5.
    assert found["metric"] == "accuracy" and 0.25 < found["guessing"] < 0.45


def test_two_tables_with_judgements(command) -> None:
    rng = draw()
    queries, documents = rng.normal(size=(ROWS, 5)), rng.normal(size=(200, 5))
    names = ",".join(f"e{i}" for i in range(5))
    rows = [f"q{i}," + ",".join(f"{x:.4f}" for x in row) for i, row in enumerate(queries)]
    Path("q.csv").write_text("\n".join([f"query_id,{names}", *rows]), encoding="utf-8")
    table = {"doc_id": [f"d{i}" for i in range(200)], "embedding": documents.tolist()}
    pq.write_table(pa.table(table), "d.parquet")
    near = (queries @ documents.T).argsort(1)[:, ::-1]
    lines = [f"q{i} 0 d{d} {2 - place}" for i in range(ROWS) for place, d in enumerate(near[i, :3])]
    Path("qrels.txt").write_text("\n".join(lines), encoding="utf-8")
    found = command("--queries q.csv --documents d.parquet --judgements qrels.txt")
    assert found["metric"] == "ndcg"
    extras = next(row["extras"] for row in found["candidates"] if row["status"] == "final")
    assert set(extras) == {"mrr", "accuracy"}


def test_a_pandas_frame_with_words_for_labels(command, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rng = draw()
    frame = pandas.DataFrame(rng.normal(size=(ROWS, 4)), columns=["q_0", "q_1", "other", "speaker"])
    for key in range(3):
        frame[[f"k{key}_x", f"k{key}_y"]] = rng.normal(size=(ROWS, 2))
        frame[f"v{key}"] = rng.normal(size=ROWS)
    frame["speaker"] = [f"s{i % 12}" for i in range(ROWS)]
    frame["label"] = pandas.Categorical(np.where(frame["v0"] > 0, "cat", "dog"))
    verdict = regard.choose(
        frame, query=["q_0", "q_1"], key="k", value="v", target="label", group="speaker", steps=20,
        seeds=3, minutes=2, heads=1, scores=["cosine"], stabilizers=["none"], rates=[1e-2],
        progress=False, storage=tmp_path / "a.journal",
    )  # fmt: skip
    said = str(verdict)
    assert "0 = cat, 1 = dog" in said and "not used: other" in said


def test_sequences_of_tokens(command) -> None:
    rng = draw()
    tokens = [
        rng.choice(["good", "bad", "fine", "film"], rng.integers(3, 9)).tolist()
        for _ in range(ROWS)
    ]
    label = ["positive" if row.count("good") > row.count("bad") else "negative" for row in tokens]
    pq.write_table(pa.table({"tokens": tokens, "label": label, "n": range(ROWS)}), "mine.parquet")
    found = command("--data mine.parquet --key tokens --target label --heads 1,2")
    assert found["metric"] == "accuracy"
    assert any("heads=2" in row["name"] for row in found["candidates"])


def test_npz_with_lengths(command) -> None:
    rng = draw()
    lengths = rng.integers(2, 6, ROWS)
    query, key = rng.normal(size=(ROWS, 6)), rng.normal(size=(ROWS, 5, 6)) * 1e20
    key[np.arange(5) >= lengths[:, None]] = np.nan
    value = rng.normal(size=(ROWS, 5, 2))
    np.savez("mine.npz", query=query, key=key, value=value, lengths=lengths, target=value[:, 0, 0])
    assert command("--data mine.npz")["metric"] == "r2"


@pytest.mark.slow
def test_a_csv_with_every_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as a person types it, with two processes; the product of two columns is learned."""
    monkeypatch.chdir(tmp_path)
    rng = draw()
    table = rng.normal(size=(600, 4))
    words = np.where(table[:, 0] * table[:, 1] > 0, "same", "other")
    lines = [",".join([*map(str, row), word]) for row, word in zip(table, words, strict=True)]
    Path("mine.csv").write_text("\n".join(["a,b,c,d,label", *lines]), encoding="utf-8")
    line = [
        "choose",
        "--data",
        "mine.csv",
        "--target",
        "label",
        "--minutes",
        "2",
        "--jobs",
        "2",
        "--json",
    ]
    result = CliRunner().invoke(group, line, prog_name="regard")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["tasks"][0]["verdict"]
    finals = [row for row in found["candidates"] if row["status"] == "final"]
    assert len(finals) >= 2 and not any("error" in (row["vitals"] or {}) for row in finals)
    assert found["learned"] and max(row["interval"][0] for row in finals) > 0.8


def test_commands_in_the_documentation_have_options_that_exist() -> None:
    pages = [Path(__file__).parents[2] / "docs" / name for name in ("choose.md", "choosing.md")]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    commands = [
        line.partition("#")[0].split()[2:] for line in lines if line.startswith("regard choose")
    ]
    assert len(commands) > 8
    for arguments in commands:
        choose_command.choose.make_context("choose", arguments)
