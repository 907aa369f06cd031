"""Frames of pandas, polars and others become tasks; what cannot be read is one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import regard
from regard.choosing.tasks.files import read_task
from regard.choosing.tasks.frames import is_data
from regard.choosing.tasks.roles import DataRoles
from regard.choosing.training.errors import ChooseError

from .test_table_data import BASE, ROWS, csv, dates, numbers, of


class ArrowOnly:
    """A frame of some library that has the Arrow interface, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class InterchangeOnly:
    """A frame of some library that has the dataframe interface, and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        return self.table.__dataframe__(nan_as_null, allow_copy)


def with_views(table: pa.Table, encoded: bool) -> pa.Table:
    """The table with words as polars gives them: views, or categories of views."""
    words = table["t"].combine_chunks().cast(pa.string_view())
    if encoded:
        codes = pa.array([0, 1] * 30)
        words = pa.DictionaryArray.from_arrays(codes, pa.array(["x", "y"]).cast(pa.string_view()))
    return table.set_column(table.column_names.index("t"), "t", words)


def test_frames_of_every_kind_are_the_same() -> None:
    pandas = pytest.importorskip("pandas")
    found = {"a": numbers(1), "b": [None, *numbers(2)[1:]], "t": ["x", "y"] * 30}
    nullable, table = pandas.DataFrame(found).convert_dtypes(), pa.table(found)
    kinds = [
        found,
        pandas.DataFrame(found),
        nullable,
        table,
        ArrowOnly(table),
        InterchangeOnly(table),
    ]
    kinds += [ArrowOnly(with_views(table, encoded)) for encoded in (False, True)]
    kinds += [pa.RecordBatchReader.from_batches(table.schema, table.to_batches())]
    wanted = of(found, target="t").data.parts
    for frame in kinds:
        assert is_data(frame)
        for part, same in zip(of(frame, target="t").data.parts, wanted, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(part, same, strict=True))
    assert not is_data(regard.nn.MultiheadAttention) and not is_data(lambda score: None)


def test_frames_of_polars() -> None:
    polars = pytest.importorskip("polars")
    found = {"x": [["a", "b"], ["c"]] * 30, "t": ["x", "y"] * 30}
    assert is_data(polars.DataFrame(found).lazy())
    with pytest.raises(ChooseError, match=r"a LazyFrame holds no rows yet; give frame.collect\(\)"):
        of(polars.DataFrame(found).lazy(), key="x", target="t")
    task = of(polars.DataFrame(found), key="x", target="t")
    for part, same in zip(task.data.parts, of(found, key="x", target="t").data.parts, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(part, same, strict=True))


def test_lists_of_words_as_pandas_reads_them(tmp_path: Path) -> None:
    """Arrays of objects, whose words were taken apart into letters."""
    pandas = pytest.importorskip("pandas")
    found = {"x": [["good", "bad"], ["c"]] * 30, "f": [[[1.0, 2.0]], [[3.0, 4.0], [1.0, 2.0]]] * 30}
    found |= {"t": ["x", "y"] * 30}
    pq.write_table(pa.table(found), tmp_path / "a.parquet")
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    for key in ("x", "f"):
        parts, wanted = (of(data, key=key, target="t").data.parts for data in (frame, found))
        for part, same in zip(parts, wanted, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(part, same, strict=True))
    frame["x"] = [["a", None]] * ROWS
    with pytest.raises(ChooseError, match="x: row 0 has missing entries inside its list"):
        of(frame, key="x", target="t")


class LazyOnly:
    """A frame of rows that are not computed yet."""

    def compute(self) -> None:
        raise AssertionError("computed")


class BrokenFrame:
    """A frame that cannot be read."""

    columns = ("a", "t")

    def __getitem__(self, name: str) -> None:
        raise RuntimeError("no session\nsecond line")


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (LazyOnly(), r"a LazyOnly holds no rows yet; give frame.compute\(\)"),
        (BrokenFrame(), "cannot read .*: no session; give a frame"),
        (pa.table([pa.array([1.0] * ROWS)] * 2, ["a", "a"]), "more than one column is named a"),
    ],
)  # fmt: skip
def test_frames_that_cannot_be_read_are_one_clear_error(frame: Any, said: str) -> None:
    assert is_data(frame)
    with pytest.raises(ChooseError, match=said):
        of(frame, target="t")


@pytest.mark.parametrize("how", ["csv", "parquet", "pandas", "arrow", "dict"])
def test_columns_are_dropped_whatever_the_data_is(how: str, tmp_path: Path) -> None:
    """Of Parquet only the columns that play a part are read, and the one to drop was then not found."""
    found = BASE | {"id": list(range(ROWS)), "other": numbers(9)}
    names = [name for name in BASE if name != "t"]
    roles: dict[str, Any] = {"target": "t", "drop": "id", "key": names}
    if how == "parquet":
        pq.write_table(pa.table(found), tmp_path / "a.parquet")
        task = read_task(tmp_path / "a.parquet", roles=DataRoles(**roles))
    elif how == "csv":
        task = read_task(csv(tmp_path / "a.csv", found), roles=DataRoles(**roles))
    else:
        pandas = pytest.importorskip("pandas")
        make = {"pandas": pandas.DataFrame, "arrow": pa.table, "dict": dict}[how]
        task = of(make(found), **roles)
        # A column that is dropped, or plays no part, may hold anything.
        strange = found | {"id": [{"deep": 1}] * ROWS}
        of(make(strange), **roles)
    assert "Columns that are not used: other." in [note.en for note in task.notes]


def test_frames_with_dates_and_odd_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(BASE)
    with pytest.raises(ChooseError, match="column names must be words, got 0"):
        of(pandas.DataFrame(frame.to_numpy()), target="t")
    frame["day"] = pandas.to_datetime(dates())
    for given in (frame, pa.Table.from_pandas(frame)):
        with pytest.raises(ChooseError, match="day holds dates"):
            of(given, target="t")
