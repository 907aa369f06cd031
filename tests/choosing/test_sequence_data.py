"""Sequences, rows of different length, and two tables with judgements become tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import regard
from regard.choosing.tasks.files import read_task
from regard.choosing.tasks.judged import judged_task
from regard.choosing.tasks.models import Match
from regard.choosing.tasks.roles import DataRoles
from regard.choosing.tasks.sequence_model import SequenceModel
from regard.choosing.training.chance import chance_of
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.metrics import IGNORED

from .test_table_data import ROWS, csv, first_step, numbers, of


def draw() -> np.random.Generator:
    return np.random.default_rng(0)


def ragged(kind: str) -> list:
    rng = draw()
    sizes = rng.integers(2, 7, ROWS)
    if kind == "tokens":
        return [rng.integers(5, 50, n).tolist() for n in sizes]
    if kind == "words":
        return [rng.choice(["a", "b", "c"], n).tolist() for n in sizes]
    return [rng.normal(size=(n, 3)).tolist() for n in sizes]


@pytest.mark.parametrize("kind", ["tokens", "words", "frames"])
def test_sequences_of_different_length(kind: str, tmp_path: Path) -> None:
    found = {"x": ragged(kind), "y": [i % 3 for i in range(ROWS)]}
    task = of(found)
    pq.write_table(pa.table(found), tmp_path / "a.parquet")
    for part, same in zip(
        read_task(tmp_path / "a.parquet").data.parts, task.data.parts, strict=True
    ):
        assert all(torch.equal(x, y) for x, y in zip(part, same, strict=True))
    x, mask, _ = task.data.parts[0]
    assert x.shape[:2] == mask.shape and not x[~mask].any()
    first_step(task)


def test_sequences_of_one_length_need_no_mask(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=draw().normal(size=(ROWS, 5, 3)), y=numbers())
    task = read_task(tmp_path / "a.npz")
    assert len(task.data.parts[0]) == 2 and task.options["metric"] == "r2"
    first_step(task)


def test_tags_are_asked_for_real_positions_only(tmp_path: Path) -> None:
    tokens = ragged("tokens")
    tags = [["odd" if t % 2 else "even" for t in row] for row in tokens]
    task = of({"tokens": tokens, "tags": tags}, key="tokens", target="tags")
    _, mask, target = task.data.parts[0]
    assert torch.equal(target == IGNORED, ~mask)
    first_step(task)
    batch = [(*task.data.parts[2],)]
    share = chance_of("accuracy", task.build, batch, 1).value
    real = target[mask]
    assert abs(share - 0.5) < 0.2 and set(real.tolist()) == {0, 1}
    short = next(i for i, row in enumerate(tokens) if len(row) < max(map(len, tokens)))
    tags[short].append("odd")
    with pytest.raises(ChooseError, match=f"row {short} has .* positions but"):
        of({"tokens": tokens, "tags": tags}, key="tokens", target="tags")


def test_padding_changes_no_answer() -> None:
    torch.manual_seed(0)
    score = regard.Projected(regard.ScaledDot(), 32, 32, width=8, heads=2)
    model = SequenceModel(score, "tokens", 9, 3).eval()
    x = torch.randint(0, 9, (4, 5))
    longer = torch.cat([x, torch.randint(0, 9, (4, 3))], 1)
    mask = (torch.arange(8) < 5).expand(4, 8)
    torch.testing.assert_close(model(x), model(longer, mask))
    tags = SequenceModel(score, "tokens", 9, 3, tags=True).eval()
    torch.testing.assert_close(tags(x), tags(longer, mask)[:, :5])


def test_order_of_tokens_matters() -> None:
    """Without positions no self-attention could tell an order."""
    torch.manual_seed(0)
    model = SequenceModel(
        regard.Projected(regard.ScaledDot(), 32, 32, width=8), "tokens", 9, 3
    ).eval()
    x = torch.randint(0, 9, (4, 5))
    assert not torch.allclose(model(x), model(x.flip(1)))


def test_hidden_keys_are_never_picked() -> None:
    score = regard.Projected(regard.ScaledDot(), 4, 4, width=4)
    query, key = torch.randn(6, 4), torch.randn(6, 5, 4)
    mask = torch.rand(6, 5) > 0.4
    mask[:, 0] = True
    logits = Match(score)(query, key, mask)
    assert bool(mask.gather(1, logits.argmax(1, keepdim=True)).all())
    torch.testing.assert_close(logits[mask], Match(score)(query, key)[mask])


def test_guessing_knows_how_many_keys_there_are() -> None:
    mask = torch.tensor([[True, True, False, False]] * 10)
    batch = (torch.zeros(10, 2), torch.zeros(10, 4, 2), mask, torch.zeros(10, dtype=torch.long))
    assert chance_of("accuracy", Match, [batch], 1).value == 0.5
    relevance = torch.tensor([[1.0, 0, 0, 0]] * 10)
    seen = chance_of("ndcg", Match, [(*batch[:3], relevance)], 1).value
    assert seen == pytest.approx((1 + 1 / np.log2(3)) / 2, abs=0.02)


@pytest.mark.parametrize("how", ["lengths", "mask"])
def test_padded_keys_with_lengths_or_a_mask(how: str, tmp_path: Path) -> None:
    rng = draw()
    lengths = rng.integers(2, 5, ROWS)
    real = np.arange(5) < lengths[:, None]
    found: dict[str, Any] = {
        "query": rng.normal(size=(ROWS, 4)),
        "key": rng.normal(size=(ROWS, 5, 4)),
    }
    found |= {"target": np.arange(ROWS) % 2, how: lengths if how == "lengths" else real}
    np.savez(tmp_path / "a.npz", **found)
    masks = torch.cat([part[2] for part in read_task(tmp_path / "a.npz").data.parts])
    assert sorted(masks.sum(1).tolist()) == sorted(lengths.tolist())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": np.full(ROWS, 9)}, r"lengths must be 60 whole numbers from 0 to 5"),
        ({"lengths": np.zeros(ROWS, int)}, "60 rows have no key that is real"),
        ({"mask": np.full((ROWS, 5), 2)}, r"mask must be \(60, 5\) of true and false"),
        ({"lengths": np.full(ROWS, 2), "target": np.arange(ROWS) % 5}, "the right key is one that is hidden"),
    ],
)  # fmt: skip
def test_bad_masks_are_one_clear_error(change: dict, said: str) -> None:
    rng = draw()
    found = {"query": rng.normal(size=(ROWS, 4)), "key": rng.normal(size=(ROWS, 5, 4))}
    with pytest.raises(ChooseError, match=said):
        of(found | {"target": np.arange(ROWS) % 2} | change)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"x": [[1, 2], [3]] * 30, "y": [1] * 60}, "one class only"),
        ({"x": [[-1, 2], [3, 4]] * 30, "y": [0, 1] * 30}, r"tokens are 0 or more, but there is -1.*lengths ="),
        ({"x": [[[1.0], [1.0, 2.0]]] * 60, "y": [0, 1] * 30}, "row 0 is neither a list of numbers nor"),
        ({"x": numbers(), "y": [0, 1] * 30}, "one column, x, leaves nothing to attend to"),
        ({"x": np.zeros((60, 2, 2, 2)), "y": [0, 1] * 30}, r"must be tokens \(rows, length\)"),
        ({"x": np.zeros((60, 4, 2)), "y": np.zeros((50, 2))}, r"target must be \(60,\)"),
        ({"x": np.zeros((60, 4, 2))}, "has no y; it has x"),
    ],
)  # fmt: skip
def test_bad_sequences_are_one_clear_error(found: dict, said: str) -> None:
    with pytest.raises(ChooseError, match=said):
        of(found)


def test_one_long_row_is_counted_before_all_are_padded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[1, 2]] * (ROWS - 1) + [[1] * 50_000]
    pq.write_table(pa.table({"x": rows, "y": [0, 1] * 30}), tmp_path / "a.parquet")
    monkeypatch.setattr("regard.measuring.memory.available", lambda device: 10**7)
    with pytest.raises(ChooseError, match="when every row is as long as the longest"):
        read_task(tmp_path / "a.parquet")


def tables(folder: Path) -> tuple[dict, dict, list[tuple]]:
    rng = draw()
    queries = {"qid": [f"q{i}" for i in range(ROWS)], "a": numbers(1), "b": numbers(2)}
    documents = {"docid": list(range(90)), "emb": rng.normal(size=(90, 3)).tolist()}
    judged = [
        (f"q{i}", int(d), int(rel))
        for i in range(ROWS)
        for d, rel in zip(rng.choice(90, 3, False), (2, 1, 0), strict=True)
    ]
    return queries, documents, judged


def test_judgements_as_a_table_and_as_trec_writes_them(tmp_path: Path) -> None:
    queries, documents, judged = tables(tmp_path)
    lines = "\n".join(f"{q} 0 {d} {r}" for q, d, r in judged)
    (tmp_path / "qrels").write_text(lines, encoding="utf-8")
    (tmp_path / "a.tsv").write_text(lines.replace(" ", "\t"), encoding="utf-8")
    q, d, r = zip(*judged, strict=True)
    table = {"query": list(q), "document": list(d), "relevance": list(r)}
    csv(tmp_path / "b.csv", table)
    wanted = judged_task(queries, documents, table, False).data.parts
    for given in (tmp_path / "qrels", str(tmp_path / "a.tsv"), tmp_path / "b.csv", pa.table(table)):
        found = judged_task(queries, documents, given, False).data.parts
        assert all(torch.equal(x, y) for x, y in zip(found[0], wanted[0], strict=True))


def test_judgements_that_contradict_one_another_are_told_of(tmp_path: Path) -> None:
    queries, documents, judged = tables(tmp_path)
    query, document, relevance = judged[0]
    q, d, r = map(list, zip(*judged, (query, document, relevance + 1), strict=True))
    task = judged_task(queries, documents, {"query": q, "document": d, "relevance": r}, False)
    assert any(note.en.startswith("1 of the judgements contradicts") for note in task.notes)


def test_rows_of_judgements_hold_what_was_judged(tmp_path: Path) -> None:
    queries, documents, judged = tables(tmp_path)
    table = dict(
        zip(("query", "document", "relevance"), map(list, zip(*judged, strict=True)), strict=True)
    )
    task = judged_task(queries, documents, table, False)
    query, key, target = (torch.cat(x) for x in zip(*task.data.parts, strict=True))
    assert key.shape == (ROWS, 16, 3) and task.options["metric"] == "ndcg" and task.dims == (2, 3)
    assert target.sum(1).tolist() == [3.0] * ROWS
    # Each relevance belongs to its document, and no document is there twice.
    numbers_of = torch.tensor(documents["emb"])
    by_query = {round(a, 4): i for i, a in enumerate(queries["a"])}
    relevant = {(q, d): r for q, d, r in judged}
    for row in range(ROWS):
        name = f"q{by_query[round(float(query[row, 0]), 4)]}"
        which = torch.cdist(key[row], numbers_of).argmin(1).tolist()
        assert len(set(which)) == 16
        assert target[row].tolist() == [float(relevant.get((name, d), 0)) for d in which]
    # Positions tell nothing: relevant documents are not always first.
    assert len(target.argmax(1).unique()) > 5
    first_step(task)


def test_queries_of_a_group_stay_in_one_part_and_columns_are_left_out(tmp_path: Path) -> None:
    """A column of users was refused as words, with the advice to drop it, which the tables refused too."""
    queries, documents, judged = tables(tmp_path)
    table = dict(
        zip(("query", "document", "relevance"), map(list, zip(*judged, strict=True)), strict=True)
    )
    user = [f"u{i // 4}" for i in range(ROWS)]
    more = queries | {"user": user, "title": [f"title {i}" for i in range(ROWS)]}
    task = judged_task(more, documents, table, False, group="user", drop="title")
    assert task.dims == (2, 3)
    groups = [set(part.tolist()) for part in task.data.groups]
    assert sum(map(len, groups)) == len(set(user)) == len(set.union(*groups))
    named = {round(a, 4): one for a, one in zip(queries["a"], user, strict=True)}
    for part, ids in zip(task.data.parts, task.data.groups, strict=True):
        pairs = {
            (named[round(float(a), 4)], one)
            for a, one in zip(part[0][:, 0], ids.tolist(), strict=True)
        }
        assert len(pairs) == len(set(ids.tolist()))
    place = ["train"] * 40 + ["test"] * 20
    told = judged_task(queries | {"part": place}, documents, table, False, split="part")
    assert len(told.data.parts[2][0]) == 20
    plain = judged_task(queries, documents, table, False)
    assert plain.data.groups is None
    with pytest.raises(ChooseError, match=r"nope.*no column"):
        judged_task(more, documents, table, False, drop="nope")
    with pytest.raises(ChooseError, match="no column has that name"):
        judged_task(queries, documents, table, False, group="nope")
    with pytest.raises(ChooseError, match=r"query= names columns of a frame"):
        regard.choose(queries=queries, documents=documents, judgements=table, query="a")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"queries": {"qid": ["q0", "q0"] * 30, "a": numbers()}}, "must be unique, but 'q0' is there twice"),
        ({"queries": {"qid": list(range(60)), "text": [f"what is {i}" for i in range(60)]}}, "text becomes numbers"),
        ({"documents": {"docid": [f"x{i}" for i in range(90)], "a": [1.0] * 90}}, "no judgement is about a query"),
        ({"judgements": {"query": ["q0"] * 3, "document": [1, 2, 3], "relevance": ["a", "b", "c"]}}, "relevance must be numbers"),
        ({"judgements": {"a": [1], "b": [2], "c": [3], "d": [4]}}, "which columns are query, document and relevance"),
        ({"queries": {"qid": [f"q{i}" for i in range(9)], "a": numbers()[:9]}}, "9 rows are too few"),
        ({"judgements": {"query": ["q0"], "document": [1], "relevance": [0]}}, "no query has a document of relevance above 0"),
        ({"judgements": {"query": [], "document": [], "relevance": []}}, "has no judgements"),
    ],
)  # fmt: skip
def test_bad_judgements_are_one_clear_error(change: dict, said: str, tmp_path: Path) -> None:
    queries, documents, judged = tables(tmp_path)
    q, d, r = map(list, zip(*judged, strict=True))
    given = {"queries": queries, "documents": documents}
    given["judgements"] = {"query": q, "document": d, "relevance": r}
    with pytest.raises(ChooseError, match=said):
        judged_task(*(given | change).values(), False)


def test_roles_of_a_file_are_checked_before_torch(tmp_path: Path, monkeypatch) -> None:
    from click.testing import CliRunner

    from regard.cli.app import group

    csv(tmp_path / "a.csv", {"a": numbers(), "b": numbers(), "t": numbers()})
    monkeypatch.setattr("regard.cli.choose.pick_device", lambda name: pytest.fail("too late"))
    for line, said in {
        f"--data {tmp_path / 'a.csv'} --target lable": "--target lable: no column is named",
        f"--data {tmp_path / 'a.csv'}": "Name it: --target t, for example regard choose --data",
        f"--queries {tmp_path / 'a.csv'}": "--documents is missing",
        "--target t": "--target names columns of --data; give the file",
        f"--data {tmp_path / 'a.csv'} --queries q.csv": "give a file with queries and keys, or three",
        f"--data {tmp_path / 'a.csv'} --heads 0": "must be numbers of 1 or more",
    }.items():
        result = CliRunner().invoke(group, ["choose", *line.split()], prog_name="regard")
        assert result.exit_code == 2 and said in result.stderr, result.stderr
        assert result.stderr.count("\n") == 1
    assert DataRoles(by_flag=True).option("key", "k_") == "--key k_"
