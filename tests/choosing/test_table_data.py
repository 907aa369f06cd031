"""Columns of tables become queries, keys, values and targets; what cannot is one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import regard
from regard.choosing.tasks.columns import Column
from regard.choosing.tasks.delimited import typed
from regard.choosing.tasks.files import read_task, task_of
from regard.choosing.tasks.frames import source_of
from regard.choosing.tasks.roles import DataRoles, key_blocks, layout
from regard.choosing.tasks.task import Task
from regard.choosing.training.errors import ChooseError
from regard.choosing.training.metrics import goal

ROWS = 60


def csv(path: Path, columns: dict[str, list], delimiter: str = ",") -> Path:
    lines = [delimiter.join(columns)]
    lines += [delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def numbers(seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(size=ROWS).round(4).tolist()


def pairs(keys: int = 3) -> dict[str, list]:
    found = {"q_0": numbers(1), "q_1": numbers(2)}
    for key in range(keys):
        found |= {f"k{key}_x": numbers(10 + key), f"k{key}_y": numbers(20 + key)}
    return found | {"right": [i % keys for i in range(ROWS)]}


def of(data: Any, kind: str = "auto", **roles: Any) -> Task:
    return task_of(source_of(data, DataRoles(**roles)), kind, "mine")


def first_step(task: Task) -> torch.Tensor:
    """The loss of the untrained model on the training part: finite, with gradients."""
    score = regard.Projected(regard.ScaledDot(), *task.dims, width=4, heads=2)
    *inputs, target = task.data.parts[0]
    aim = goal(task.options["metric"], None, target)
    output = task.build(score)(*inputs)
    loss = aim.loss(output, target)
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for p in score.parameters())
    assert np.isfinite(float(aim.metric(output.detach(), target)))
    return loss.detach()


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".csv", ";"), (".tsv", "\t")])
def test_a_text_of_each_kind_is_read(suffix: str, delimiter: str, tmp_path: Path) -> None:
    path = csv(tmp_path / f"a{suffix}", pairs(), delimiter)
    task = read_task(path, roles=DataRoles(query="q_", key="k", target="right"))
    query, key, target = task.data.parts[0]
    assert (query.shape[1:], key.shape[1:], target.dtype) == ((2,), (3, 2), torch.int64)
    assert task.dims == (2, 2) and task.options["metric"] == "accuracy"
    first_step(task)


def test_columns_by_list_prefix_and_range_are_the_same() -> None:
    found = pairs()
    listed = of(found, query=["q_0", "q_1"], key=[n for n in found if n[0] == "k"], target="right")
    for query, key in (("q_", "k"), ("q_0..q_1", "k0_x..k2_y")):
        other = of(found, query=query, key=key, target="right")
        for x, y in zip(listed.data.parts[0], other.data.parts[0], strict=True):
            assert torch.equal(x, y)


def test_numbers_in_names_sort_as_numbers() -> None:
    names = [f"k_{i}_{j}" for i in range(11) for j in range(2)]
    blocks = key_blocks(sorted(names), "key", DataRoles())
    assert blocks[2] == ["k_2_0", "k_2_1"] and blocks[10] == ["k_10_0", "k_10_1"]


def test_a_key_whose_numbers_are_missing_is_hidden() -> None:
    found = pairs()
    found["k2_x"] = [float("nan")] * 5 + found["k2_x"][5:]
    found["k2_y"] = [None] * 5 + found["k2_y"][5:]
    found["right"] = [i % 2 for i in range(ROWS)]
    task = of(found, query="q_", key="k", target="right")
    masks = torch.cat([part[2] for part in task.data.parts])
    assert masks.dtype == torch.bool and int((~masks).sum()) == 5
    first_step(task)
    found["k2_y"] = numbers(3)
    with pytest.raises(ChooseError, match="5 have some numbers missing and others not"):
        of(found, query="q_", key="k", target="right")


def test_a_plain_table_has_a_token_for_each_column() -> None:
    found = {"a": numbers(1), "b": [1e20 * x for x in numbers(2)], "sure": [True, False] * 30}
    task = of(found | {"label": ["x", "y", "z"] * 20}, target="label")
    (x, target), notes = task.data.parts[0], [note.en for note in task.notes]
    assert x.shape[1:] == (3, 1) and task.data.positional == (0,) and int(target.max()) == 2
    assert notes == ["The 3 classes are 0 = x, 1 = y, 2 = z."]
    assert (
        float(first_step(of({**found, "b": numbers(2), "label": numbers(4)}, target="label"))) < 10
    )


def test_missing_numbers_of_a_table_are_hidden_not_zero() -> None:
    found = {"a": numbers(1), "b": [None, 0.0] * 30, "label": [0, 1] * 30}
    x, mask, _ = of(found, target="label").data.parts[0]
    assert torch.equal(mask[:, 0], torch.ones(len(x), dtype=torch.bool))
    assert 0 < int((~mask[:, 1]).sum()) < len(x)


@pytest.mark.parametrize(
    ("target", "kind", "metric"),
    [
        ([0, 1] * 30, "auto", "accuracy"), ([1.0, 2.0] * 30, "auto", "accuracy"),
        ([1.0, 2.0] * 30, "regression", "r2"), ([10, 30] * 30, "auto", "accuracy"),
        (["no", "yes"] * 30, "auto", "accuracy"), ([True, False] * 30, "auto", "accuracy"),
        (numbers(), "auto", "r2"), (list(range(60)), "regression", "r2"),
    ],
)  # fmt: skip
def test_kinds_of_targets(target: list, kind: str, metric: str) -> None:
    task = of({"a": numbers(1), "b": numbers(2), "t": target}, kind, target="t")
    assert task.options["metric"] == metric
    classes = task.data.parts[0][-1]
    assert metric == "r2" or (classes.dtype == torch.int64 and int(classes.min()) == 0)


def dates() -> list[str]:
    return [f"2024-01-{1 + i % 28:02}" for i in range(ROWS)]


BASE = {"a": numbers(1), "b": numbers(2), "t": [0, 1] * 30}


@pytest.mark.parametrize(
    ("change", "roles", "said"),
    [
        ({}, {"target": "label"}, r"no column is named or begins like that; it has a, b, t"),
        ({}, {}, r"which column is the answer\? It has a, b, t. Name it: target=\"t\""),
        ({"a": dates()}, {"target": "t"}, r"a holds dates; .*\.dt\.days; or leave it out: drop=\"a\""),
        ({"a": [f"w{i}" for i in range(ROWS)]}, {"target": "t"}, r"60 different ones .*get_dummies"),
        ({"t": [None, 1] * 30}, {"target": "t"}, r"30 of 60 targets are missing.*dropna"),
        ({"t": list(range(100, 160))}, {"target": "t"}, r"kind=\"regression\""),
        ({"t": [3] * ROWS}, {"target": "t"}, "one class only, 3"),
        ({"a": list(range(ROWS))}, {"target": "t"}, r"column a counts the rows .*drop=\"a\""),
        ({"a": [2**53 + i % 7 for i in range(ROWS)]}, {"target": "t"}, "which fp32 cannot tell apart"),
        ({"a": [1e300] * ROWS}, {"target": "t"}, "infinite numbers, 60 of 60"),
        ({"a": [{"x": 1}] * ROWS}, {"target": "t"}, "must be numbers, words or lists of them, but holds dict"),
        ({}, {"query": "a", "target": "t"}, r"the queries need keys to attend to"),
        ({}, {"query": "a", "key": "b", "target": "t"}, "column 'b' has no number that says which key"),
        ({}, {"query": "a", "key": ["t", "b"], "target": "t"}, "t is both an input and the target"),
        ({}, {"key": "a", "target": "t"}, "one column, a, leaves nothing to attend to"),
        ({"a": ["some text"] * ROWS}, {"key": "a", "target": "t"}, r"a holds text.*split\(\)"),
        ({"a": [None, *numbers()[1:]]}, {"query": "a", "key": ["b"], "target": "t"}, "1 of 60 numbers are missing"),
        ({"s": ["train", "later"] * 30}, {"target": "t", "split": "s"}, "'later'; it must say train"),
    ],
)  # fmt: skip
def test_bad_tables_are_one_clear_error(change: dict, roles: dict, said: str) -> None:
    with pytest.raises(ChooseError, match=said) as refused:
        of(BASE | change, **roles)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k2_y": None}, "key 2 has no column like 'k0_y'"),
        ({"right": ["left"] * ROWS}, "which of the 3 keys is right, 0 to 2, but it holds words such as 'left'"),
        ({"right": [7, 8] * 30}, "0 to 2, but it holds 7 to 8"),
        ({"right": [0.5, 1] * 30}, "the right key of 3, but target holds 0.5"),
    ],
)  # fmt: skip
def test_bad_keys_are_one_clear_error(change: dict, said: str) -> None:
    found = {name: x for name, x in (pairs() | change).items() if x is not None}
    with pytest.raises(ChooseError, match=said):
        of(found, query="q_", key="k", target="right")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,t\n1,2,3\n1,2\n", "line 3 has 2 cells, but there are 3 columns"),
        ("1.5,2.5,0\n1,2,1\n", r"its first line is 1.5, 2.5, 0; it must name the columns"),
        ("a,a,t\n1,2,3\n", "more than one column is named a"),
        ("a,b,t\n", "rows are too few"),
    ],
)
def test_bad_texts_are_one_clear_error(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ChooseError, match=said):
        read_task(tmp_path / "a.csv", roles=DataRoles(target="t" if "t" in text else "0"))


def test_a_text_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,b,t\n\xe9,1,2\n".encode("latin-1"))
    with pytest.raises(ChooseError, match=r"no text in UTF-8 .*encoding=\"latin-1\""):
        read_task(tmp_path / "a.csv", roles=DataRoles(target="t"))


def test_lists_in_cells_of_a_text(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f'"{draw.normal(size=3).tolist()}",{i % 2}' for i in range(ROWS)]
    (tmp_path / "a.csv").write_text("\n".join(["emb,t", *rows]), encoding="utf-8")
    x, _ = read_task(tmp_path / "a.csv", roles=DataRoles(target="t")).data.parts[0]
    assert x.shape[1:] == (3, 1)


def test_cells_become_what_they_say() -> None:
    kinds = {
        "iu": ["1", " 2", "-3"], "f": ["1", "", "2.5e3"], "b": ["True", "false"], "O": ["1_0", "2_0"],
    }  # fmt: skip
    for kind, cells in kinds.items():
        assert typed(cells, "x", DataRoles()).values.dtype.kind in kind
    assert np.isnan(typed(["1", "?", "NA"], "x", DataRoles()).values).tolist() == [
        False,
        True,
        True,
    ]
    assert typed(["a", "", "null"], "x", DataRoles()).values.tolist() == ["a", None, None]
    assert typed(["9" * 30, "1"], "x", DataRoles()).values.dtype.kind == "f"


def test_arrays_that_are_not_understood_are_named(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    found = {"query": draw.normal(size=(ROWS, 4)), "key": draw.normal(size=(ROWS, 3, 4))}
    found |= {"target": np.arange(ROWS) % 3, "weights": np.ones(ROWS)}
    np.savez(tmp_path / "a.npz", **found)
    with pytest.raises(ChooseError, match=r"does not understand weights; .*drop=\"weights\""):
        read_task(tmp_path / "a.npz")
    assert read_task(tmp_path / "a.npz", roles=DataRoles(drop="weights")).dims == (4, 4)


def test_groups_and_parts_by_column() -> None:
    found = BASE | {"who": [f"p{i // 6}" for i in range(ROWS)]}
    data = of(found, target="t", group="who").data
    groups = [set(part.tolist()) for part in data.groups]
    assert (
        not groups[0] & groups[2] and not groups[0] & groups[1] and len(set().union(*groups)) == 10
    )
    found = BASE | {"part": ["train"] * 40 + ["validation"] * 10 + ["test"] * 10}
    assert [len(p[-1]) for p in of(found, target="t", split="part").data.parts] == [40, 10, 10]


def test_columns_that_nobody_needs_are_not_read(tmp_path: Path) -> None:
    found = pairs() | {"notes": [{"deep": [1]}] * ROWS}
    pq.write_table(pa.table(found), tmp_path / "a.parquet")
    task = read_task(tmp_path / "a.parquet", roles=DataRoles(query="q_", key="k", target="right"))
    assert task.dims == (2, 2)


def test_arguments_that_do_not_go_together() -> None:
    with pytest.raises(
        ValueError, match=r"target= names columns of a frame, which is the first argument"
    ):
        regard.choose(lambda score: None, [], dims=4, target="t")
    with pytest.raises(ValueError, match="dims= goes with a model of your own"):
        regard.choose(BASE, target="t", dims=4)
    with pytest.raises(ChooseError, match="data came twice"):
        regard.choose(BASE, BASE, target="t")
    with pytest.raises(ChooseError, match="judgements= is missing"):
        regard.choose(queries=BASE, documents=BASE)


def test_layout_by_names_alone() -> None:
    plan = layout(["q", "k_0", "k_1", "t"], DataRoles(query="q", key="k_", target="t"), table=True)
    assert plan.columns == {"query": ["q"], "key": ["k_0", "k_1"], "target": ["t"]}
    flat = layout(["x", "y", "label"], DataRoles(target="label"), table=True)
    assert flat.flat and flat.columns["key"] == ["x", "y"]
    assert layout(["x", "y", "lengths"], DataRoles(), table=False).one("lengths") == "lengths"
    assert Column(np.zeros(3, bool)).is_whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({5: '"open'}, "a quote that opens on line 7 is never closed"),
        ({5: "foo"}, r"a holds 'foo' among numbers, in row 6 of the data, and 1 such entry in all"),
    ],
)
def test_one_bad_cell_is_named(tmp_path: Path, change: dict[int, str], said: str) -> None:
    """The rest of a file vanished in a quote, and one word made of a column "120 different words"."""
    cells = [change.get(row, f"{row}.5") for row in range(ROWS)]
    lines = ["b,t,a", *(f"{row},{row % 2},{cell}" for row, cell in enumerate(cells))]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ChooseError, match=said):
        read_task(tmp_path / "a.csv", roles=DataRoles(target="t"))


def test_decimal_commas_and_other_encodings_have_advice_of_their_own(tmp_path: Path) -> None:
    lines = ["b;t;a", *(f"{row};{row % 2};{row},25" for row in range(ROWS))]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ChooseError, match="a has decimal commas, such as '0,25'"):
        read_task(tmp_path / "a.csv", roles=DataRoles(target="t"))
    (tmp_path / "b.csv").write_text("\n".join(lines), encoding="utf-16")
    with pytest.raises(ChooseError, match='encoding="utf-16"'):
        read_task(tmp_path / "b.csv", roles=DataRoles(target="t"))


@pytest.mark.parametrize("role", ["lengths", "mask"])
def test_a_plain_table_has_every_column_in_every_row(tmp_path: Path, role: str) -> None:
    """`--lengths n` was ignored where every column is a key."""
    csv(
        tmp_path / "a.csv",
        {"a": numbers(), "b": numbers(1), "n": [1, 2] * (ROWS // 2), "t": [0, 1] * (ROWS // 2)},
    )
    with pytest.raises(
        ChooseError, match=f"{role}= says which keys of a row are real, but here every column"
    ):
        read_task(tmp_path / "a.csv", roles=DataRoles(target="t", **{role: "n"}))
