"""Groups that stay together, split columns that are obeyed, and leaks that are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.choosing.api import ChooseError
from regard.choosing.tasks.models import Match
from regard.choosing.training.data import DataParts, as_split
from regard.choosing.training.splits import leaks, split_rows

from .known import small

ROWS = 200
X, Y = torch.arange(float(ROWS)).unsqueeze(1), torch.arange(ROWS) % 3


def rows_in(split, part: int) -> set[int]:
    return {int(x) for x in split[part][0].flatten()}


def test_rows_are_split_once_and_the_same_each_time() -> None:
    split = split_rows((X, Y))
    parts = [rows_in(split, part) for part in range(3)]
    assert [len(x) for x in parts] == [120, 40, 40]
    assert set.union(*parts) == set(range(ROWS))
    assert [rows_in(split_rows((X, Y)), part) for part in range(3)] == parts
    assert all(bool((x.flatten() % 3 == y).all()) for x, y in split)


@pytest.mark.parametrize(
    "names", [np.arange(ROWS) // 7, [f"speaker {i // 7}" for i in range(ROWS)]]
)
def test_a_group_stays_in_one_part(names) -> None:
    split = split_rows((X, Y), group=names)
    groups = [{i // 7 for i in rows_in(split, part)} for part in range(3)]
    assert not (groups[0] & groups[1] or groups[0] & groups[2] or groups[1] & groups[2])
    assert [abs(len(split[part][0]) - n) < 10 for part, n in enumerate((120, 40, 40))] == [True] * 3
    assert split.groups is not None and len(split.groups[2]) == len(split[2][0])
    parts = DataParts(split)
    assert parts.test_groups is not None and len(parts.test_groups.unique()) == len(groups[2])


def test_few_groups_leave_no_part_empty() -> None:
    split = split_rows((X, Y), group=[0] * 180 + [1] * 10 + [2] * 10)
    assert sorted(len(split[part][0]) for part in range(3)) == [10, 10, 180]
    with pytest.raises(ChooseError, match="2 groups cannot be split into 3 parts"):
        split_rows((X, Y), group=[0] * 100 + [1] * 100)


def test_a_split_column_is_obeyed() -> None:
    said = ["train"] * 100 + ["VAL "] * 60 + ["test"] * 40
    split = split_rows((X, Y), split=said)
    assert rows_in(split, 0) == set(range(100)) and rows_in(split, 2) == set(range(160, 200))
    # Without a validation part a quarter of the training rows is it; without a test part, half of it.
    split = split_rows((X, Y), split=np.array(["train"] * 160 + ["test"] * 40))
    assert len(split[1][0]) == 40 and rows_in(split, 2) == set(range(160, 200))
    split = split_rows((X, Y), split=["train"] * 160 + ["dev"] * 40, group=np.arange(ROWS) // 4)
    assert [len(split[part][0]) for part in range(3)] == [160, 20, 20]
    assert not {i // 4 for i in rows_in(split, 1)} & {i // 4 for i in rows_in(split, 2)}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"split": ["train"] * 150 + ["later"] * 50},
            "holds 'later'; it must say train, validation",
        ),
        ({"split": ["train"] * ROWS}, "200 train, 0 validation, 0 test"),
        ({"split": ["test"] * ROWS}, "rows to train on"),
        ({"split": ["train"]}, "one entry for each of the 200 rows, got shape"),
        ({"group": [1, 2]}, "group= must have one entry for each of the 200 rows"),
        ({"group": np.array([None, "a"] * 100, dtype=object)}, "some are missing or differ"),
        (
            {"split": ["train", "test"] * 100, "group": np.arange(ROWS) // 2},
            "one group into different parts, for 100 of the groups",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, said: str) -> None:
    with pytest.raises(ChooseError, match=said):
        split_rows((X, Y), **columns)


def test_data_in_parts_takes_no_columns() -> None:
    with pytest.raises(ChooseError, match="data in parts is split already"):
        as_split([(X, Y), (X, Y)], group=Y)
    assert len(as_split((X.numpy(), Y.numpy()))) == 3
    with pytest.raises(ChooseError, match=r"same number of rows, got \[200, 199\]"):
        as_split((X, Y[1:]))
    parts = [(X, Y), (X, Y)]
    assert as_split(parts) is parts


def test_rows_on_both_sides_are_told() -> None:
    query, key = torch.randn(100, 3), torch.randn(100, 4, 3)
    again = key[:, [2, 0, 3, 1]]  # the same keys in another order
    assert leaks((query, key, Y[:100]), (torch.randn(50, 3), torch.randn(50, 4, 3), Y[:50])) == []
    told = leaks((query, key, Y[:100]), (query[:50], torch.randn(50, 4, 3), Y[:50]))
    assert told[0].en.startswith("100% of the test rows have a query that is in the training rows")
    told = leaks((query, key, Y[:100]), (torch.randn(50, 3), again[:50], Y[:50]))
    assert "100% of the test rows have a set of keys" in told[0].en and "group=" in told[0].en
    shared = torch.randn(1, 4, 3)  # keys that all rows share tell nothing apart
    parts = [(torch.randn(n, 3), shared.expand(n, 4, 3), Y[:n]) for n in (100, 50)]
    assert leaks(*parts) == []
    tokens = torch.randint(1000, (100, 6))
    assert "first input" in leaks((tokens, Y[:100]), (tokens, Y[:100]))[0].en


def leaky(items: int = 60, repeats: int = 8, dim: int = 16) -> tuple[torch.Tensor, ...]:
    """Rows of an item have nearly one query and one right place, which no other item's tells."""
    generator = torch.Generator().manual_seed(0)
    item = torch.arange(items).repeat_interleave(repeats)
    query = torch.randn(items, dim, generator=generator)[item]
    # The key says which item it is right for, by a vector that has no relation to the query.
    sign = torch.randn(items, dim, generator=generator)
    key = torch.randn(len(item), 4, dim, generator=generator)
    right = torch.randint(4, (len(item),), generator=generator)
    key[torch.arange(len(item)), right] = sign[item]
    return query, key, right, item


def test_a_planted_leak_vanishes_with_groups(tmp_path: Path) -> None:
    """What is remembered of an item helps on its other rows, and not on new items."""
    *data, item = leaky()
    options = {
        "build": Match, "data": tuple(data), "scores": (), "steps": 150, "seeds": 2, "rates": (3e-2,),
        "dims": 16, "width": 16, "heads": 1, "baselines": False, "control": False,
    }  # fmt: skip
    mixed = small(tmp_path / "a", **options)
    apart = small(tmp_path / "b", **options, group=item)
    levels = [one.row("scaled_dot").mean().value for one in (mixed, apart)]
    assert levels[0] > 0.6 and levels[1] < 0.45, levels
    assert "query that is in the training rows too" in mixed.facts["notes"][0].en
    assert not any("group=" in note.en for note in apart.facts["notes"])
    with pytest.raises(ChooseError, match="it differs in data"):
        small(tmp_path / "b", **options, resume=True)
