"""`--data`: good files of every kind are learned from, bad ones are one clear error."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from regard.choosing.tasks.arrow import arrow_column, read_parquet
from regard.choosing.tasks.files import read_task
from regard.choosing.tasks.header import check_file, names_in
from regard.choosing.tasks.roles import DataRoles
from regard.choosing.training.errors import ChooseError
from regard.cli.app import group

ROWS, KEYS = 60, 4


def arrays(value: bool = False, target: str = "which") -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    found = {"query": draw.normal(size=(ROWS, 6)), "key": draw.normal(size=(ROWS, KEYS, 3))}
    if value:
        found["value"] = draw.normal(size=(ROWS, KEYS, 2))
    found["target"] = {
        "which": draw.integers(0, KEYS, ROWS),
        "relevance": draw.integers(0, 3, (ROWS, KEYS)).astype(float),
        "number": draw.normal(size=ROWS),
        "numbers": draw.normal(size=(ROWS, 2)),
    }[target]
    return found


def save(path: Path, found: dict[str, np.ndarray]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **found)
    elif path.suffix == ".safetensors":
        save_file({name: torch.as_tensor(x).contiguous() for name, x in found.items()}, path)
    else:
        pq.write_table(pa.table({name: pa.array(x.tolist()) for name, x in found.items()}), path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
@pytest.mark.parametrize(
    ("value", "target", "metric"),
    [
        (False, "which", "accuracy"),
        (False, "relevance", "ndcg"),
        (True, "which", "accuracy"),
        (True, "number", "r2"),
        (True, "numbers", "r2"),
    ],
)
def test_every_kind_of_task_from_every_kind_of_file(
    suffix: str, value: bool, target: str, metric: str, tmp_path: Path
) -> None:
    task = read_task(save(tmp_path / f"a{suffix}", arrays(value, target)))
    assert task.options["metric"] == metric and task.dims == (6, 3)
    train, validation, test = task.data.parts
    assert [len(part[0]) for part in (train, validation, test)] == [36, 12, 12]
    assert len(train) == 3 + value


def test_keys_may_be_shared_by_all_rows(tmp_path: Path) -> None:
    found = arrays()
    found["key"] = found["key"][0]
    task = read_task(save(tmp_path / "a.npz", found))
    assert task.data.parts[0][1].shape == (36, KEYS, 3)


def test_shared_keys_that_every_row_would_copy_are_counted_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 15 MB asked for 61 GB, and ended in a traceback."""
    found = changed(query=np.zeros((20000, 64), np.float32), key=np.zeros((20000, 64), np.float32))
    path = save(tmp_path / "a.npz", found | {"target": np.zeros(20000, int)})
    monkeypatch.setattr("regard.measuring.memory.available", lambda device: 2 * 10**11)
    said = r"95.4 GiB for key, 20000 x 20000 x 64 numbers when every row has it, of 186.3 GiB free"
    with pytest.raises(ChooseError, match=said):
        read_task(path)


def changed(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    found = arrays() | changes
    return {name: x for name, x in found.items() if x is not None}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (changed(key=None), "has no key; it has query, target"),
        (changed(key=None, target=None), "has no key and no target"),
        (changed(target=np.zeros(ROWS, int)), "one class only, 0"),
        (changed(target=np.full(ROWS, 7)), "one class only, 7"),
        (changed(target=np.arange(ROWS)), r"which of the 4 keys is right: 0 to 3, but it holds 0 to"),
        (changed(target=np.full(ROWS, 0.5)), "classes are whole numbers"),
        (changed(query=np.full((ROWS, 6), np.nan)), "query: 360 of 360 numbers are missing"),
        (changed(query=np.zeros((ROWS, 2, 6))), r"query must be \(rows, dim\)"),
        (changed(key=np.zeros((ROWS - 1, KEYS, 3))), r"key must be \(60, keys, dim\)"),
        (changed(key=np.zeros((ROWS, 1, 3))), "nothing to attend to"),
        (changed(value=np.zeros((ROWS, KEYS + 1, 3))), "4 keys but 5 values"),
        (changed(target=np.zeros(3, int)), "target must have 60 rows"),
        (changed(query=np.array([["a"]] * ROWS)), "query must be numbers"),
        (changed(query=np.ones((ROWS, 6)) + 1j), "query must be numbers, got complex128"),
        (changed(query=np.full((ROWS, 6), 1e300)), r"360 of 360 \(in fp32\)"),
        (changed(query=np.zeros((ROWS, 0))), r"query is empty: its shape is \(60, 0\)"),
        (changed(key=np.zeros((ROWS, KEYS, 0))), "key is empty"),
        (changed(target=np.full(ROWS, 2**63, np.uint64)), "too large for int64"),
        ({name: x[:9] for name, x in arrays().items()}, "9 rows are too few"),
    ],
)  # fmt: skip
def test_bad_contents_are_one_clear_error(found, said: str, tmp_path: Path) -> None:
    with pytest.raises(ChooseError, match=said):
        read_task(save(tmp_path / "a.npz", found))


def test_numbers_of_any_width_and_order_of_bytes(tmp_path: Path) -> None:
    found = changed(
        query=arrays()["query"].astype(">f8"), key=arrays()["key"].astype(np.longdouble)
    )
    found["target"] = found["target"].astype(">u2")
    task = read_task(save(tmp_path / "a.npz", found))
    plain = read_task(save(tmp_path / "b.npz", arrays()))
    for part, same in zip(task.data.parts, plain.data.parts, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(part, same, strict=True))


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(ChooseError, match="is a folder; give a file"):
        read_task(tmp_path / "folder.parquet")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(ChooseError, match="is not a file; give a file"):
        read_task(tmp_path / "pipe.npz")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.measuring.memory.available", lambda device: 4 * 10**6)
    np.savez_compressed(tmp_path / "a.npz", **changed(query=np.zeros((10**5, 6))))
    rows = {name: [[0.0] * 6] * 10**5 for name in ("query", "key")} | {"target": [0] * 10**5}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", use_dictionary=False)
    for name in ("a.npz", "a.parquet"):
        assert (tmp_path / name).stat().st_size < 8 * 10**5
        with pytest.raises(ChooseError, match="too large"):
            read_task(tmp_path / name)


def test_bad_files_are_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.npz", "a.safetensors", "a.parquet"):
        (tmp_path / name).write_bytes(b"not what it says")
        with pytest.raises(ChooseError, match=f"is not a valid .{name.partition('.')[2]} file"):
            read_task(tmp_path / name)
    with pytest.raises(ChooseError, match=r"files are .npz, .safetensors, .parquet, .csv, .tsv"):
        read_task(tmp_path / "a.txt")
    ragged = {"query": [[1.0], [1.0, 2.0]], "key": [[1.0]] * 2, "target": [0, 1]}
    pq.write_table(pa.table(ragged), tmp_path / "ragged.parquet")
    with pytest.raises(ChooseError, match="rows of different lengths"):
        read_task(tmp_path / "ragged.parquet")
    monkeypatch.setattr("regard.measuring.memory.available", lambda device: 100)
    with pytest.raises(ChooseError, match="too large"):
        read_task(save(tmp_path / "b.npz", arrays()))


def nested(*, large: bool = False, fixed: bool = False) -> dict[str, pa.Array]:
    """The same arrays in the types that writers of Parquet use."""
    found = arrays()
    query, key = found["query"].astype(np.float32), found["key"].astype(np.float32)
    a_list = (lambda kind, size: pa.list_(kind, size)) if fixed else lambda kind, _: pa.list_(kind)
    a_list = (lambda kind, _: pa.large_list(kind)) if large else a_list
    return {
        "query": pa.array(query.tolist(), a_list(pa.float32(), 6)),
        "key": pa.array(key.tolist(), a_list(a_list(pa.float32(), 3), KEYS)),
        "target": pa.array(found["target"]).cast(pa.int8()),
    }


@pytest.mark.parametrize("how", [{}, {"large": True}, {"fixed": True}], ids=str)
def test_lists_of_every_kind_in_many_chunks(how: dict, tmp_path: Path) -> None:
    pq.write_table(pa.table(nested(**how)), tmp_path / "a.parquet", row_group_size=7)
    task, same = read_task(tmp_path / "a.parquet"), read_task(save(tmp_path / "a.npz", arrays()))
    for part, wanted in zip(task.data.parts, same.data.parts, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(part, wanted, strict=True))


def test_columns_become_no_python_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists took twenty times the memory of their numbers, and the bytes in the file less than those."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(nested()), path)
    numbers = ROWS * (6 + KEYS * 3 + 1)
    monkeypatch.setattr("regard.measuring.memory.available", lambda device: 5 * 8 * numbers)
    assert set(read_parquet(path, DataRoles())) == {"query", "key", "target"}
    monkeypatch.setattr("regard.measuring.memory.available", lambda device: 5 * 8 * numbers - 5)
    with pytest.raises(ChooseError, match="too large"):
        read_parquet(path, DataRoles())
    monkeypatch.undo()
    table = pa.table(nested())
    for column in table.columns:
        assert arrow_column(column.chunk(0), "x", DataRoles()).values.dtype.kind in "fi"


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[1.0, None]] * ROWS), "query must be numbers, but 60 of 120 are missing"),
        (pa.array([[1.0], None] * (ROWS // 2)), "query has rows of different lengths, 0 to 1"),
        (pa.array(["a"] * ROWS), "query must be numbers, but it holds words"),
        (pa.array([{"a": 1}] * ROWS), "query must be numbers, got struct"),
        (pa.array([[[1.0], [1.0, 2.0]]] * ROWS), "rows of different lengths"),
        (pa.array([[[1.0]]] * ROWS), r"query must be \(rows, dim\), got \(60, 1, 1\)"),
    ],
)  # fmt: skip
def test_columns_that_are_no_arrays(column: pa.Array, said: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(nested() | {"query": column}), tmp_path / "a.parquet")
    with pytest.raises(ChooseError, match=said):
        read_task(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "content", [b"hello", b"", pickle.dumps([1])], ids=["text", "none", "pickle"]
)
def test_a_member_that_is_no_array_is_named(content: bytes, tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", changed(query=None))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("query.npy", content)
    result = CliRunner().invoke(group, ["choose", "--data", str(path)], prog_name="regard")
    assert result.exit_code == 2
    assert (
        result.stderr == f"Error: --data {path}: is not a valid .npz file: query is not an array\n"
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["key", "key.npy"])
def test_a_name_that_is_there_twice_is_refused(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", arrays())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"hello")
    with pytest.raises(ChooseError, match=r"is not a valid \.npz file: key appears twice"):
        read_task(path)


def test_objects_in_a_file_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **changed(query=np.array([{"a": 1}], dtype=object)))
    with pytest.raises(
        ChooseError, match="query is an array of Python objects, which are not loaded"
    ):
        read_task(tmp_path / "a.npz")


def test_a_kind_that_does_not_suit_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", arrays())
    with pytest.raises(ChooseError, match="regression does not go with its target"):
        read_task(path, "regression")


def test_the_command_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file to a recommendation, JSON and a report that names the score."""
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(200, 6, generator=draw), torch.randn(200, KEYS, 6, generator=draw)
    which = (key @ query.unsqueeze(-1)).squeeze(-1).argmax(-1)
    save_file({"query": query, "key": key, "target": which}, "mine.safetensors")
    arguments = ["choose", "--data", "mine.safetensors", "--steps", "20", "--seeds", "2"]
    result = CliRunner().invoke(group, [*arguments, "--jobs", "1"], prog_name="regard")
    assert result.exit_code == 0, result.output
    assert (
        "score = regard." in result.stdout and "Which score for mine.safetensors?" in result.stdout
    )
    found = json.loads(Path("regard-choose/choose.json").read_text(encoding="utf-8"))
    assert found["tasks"][0]["verdict"]["seeds"] == [1, 2]
    page = Path("regard-choose/choose.html").read_text(encoding="utf-8")
    assert found["tasks"][0]["verdict"]["code"].split("(")[0] in page
    assert (
        "<svg" in page
        and "Claims that explain it" in page
        and "src=" not in page
        and "解释这一结果的论断" in page
    )
    again = CliRunner().invoke(
        group, [*arguments, "--jobs", "1", "--resume", "--json", "--report", "r.html"],
        prog_name="regard",
    )  # fmt: skip
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["tasks"][0]["verdict"]["study"] == "mine.safetensors"
    assert Path("r.html").stat().st_size > 20000


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_what_does_not_begin_as_its_suffix_says_is_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"x{suffix}").write_bytes(b"hello, this is a text")
    with pytest.raises(ChooseError, match=f"is not a valid {suffix} file"):
        check_file(tmp_path / f"x{suffix}")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_missing_array_is_found_in_the_header(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torch is loaded, a device is picked or an array is read."""
    path = save(tmp_path / f"a{suffix}", changed(key=None))
    with pytest.raises(ChooseError, match="has no key; it has query, target"):
        check_file(path)
    monkeypatch.setattr("regard.cli.choose.pick_device", lambda name: pytest.fail("too late"))
    result = CliRunner().invoke(group, ["choose", "--data", str(path)], prog_name="regard")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: --data {path}: has no key; it has query, target\n"
    check_file(save(path, arrays(value=True)))


def test_a_missing_column_is_found_in_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "a.parquet", changed(target=None))
    monkeypatch.setattr(pq, "read_table", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(ChooseError, match="has no target; it has key, query"):
        read_task(path)


def test_a_header_that_is_broken_is_left_to_the_reader(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", arrays())
    path.write_bytes(path.read_bytes()[:-30])  # the list of the files is at the end
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 8 + b"{")  # far longer than the file
    (tmp_path / "b.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"{,")
    for name in ("a.npz", "a.safetensors", "b.safetensors"):
        assert names_in(tmp_path / name) is None
        with pytest.raises(ChooseError, match=r"is not a valid \.\w+ file"):
            read_task(tmp_path / name)


def test_names_in_a_strangers_file_stay_one_short_line(tmp_path: Path) -> None:
    names = ["\x1b[31m\n", "a" * 5000, *(f"layer{i:03}" for i in range(98))]
    path = save(tmp_path / "a.safetensors", {name: np.zeros(1) for name in names})
    with pytest.raises(ChooseError) as refused:
        check_file(path)
    assert str(refused.value).isprintable() and "layer009 and 88 more" in str(refused.value)
    assert f"{'a' * 40}..., layer000" in str(refused.value)


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_path_cannot_move_the_cursor(suffix: str, tmp_path: Path) -> None:
    """Names of files are a stranger's too."""
    path = tmp_path / f"\x1b[2J\n{suffix}"
    result = CliRunner().invoke(group, ["choose", "--data", str(path)], prog_name="regard")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr[:-1].isprintable() and r"/\x1b[2J\n." in result.stderr
    task = read_task(save(tmp_path / "\x1b[31m.npz", arrays()))
    assert task.name == r"'\x1b[31m.npz'"


def test_no_name_is_told_as_such() -> None:
    result = CliRunner().invoke(group, ["choose", "--data", ""], prog_name="regard")
    said = "Error: --data is empty; give a file, for example --data mine.npz\n"
    assert (result.exit_code, result.stderr) == (2, said)
