"""Models without attention beside the scores: which apply, what they reach, and that they are kept."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from regard.choosing.tasks.models import Match, ReadValue
from regard.choosing.training.baselines import baseline_rows
from regard.choosing.training.features import HIDDEN, tabular
from regard.choosing.training.metrics import GOALS, IGNORED
from regard.choosing.training.splits import split_rows
from regard.choosing.training.stages import Settings

from .known import SMALL, small

SETTINGS = Settings(["scaled_dot"], [1e-2], [1, 2], 10, 8, "accuracy", 1)


def found(data, metric: str, build, until: float = 1e12) -> dict[str, dict]:
    rows = baseline_rows(data, GOALS[metric], build, SETTINGS, until)
    return {row["name"][0]: row for row in rows}


def linear(rows: int = 400) -> tuple[torch.Tensor, ...]:
    """A class that the query alone tells, by a line; keys and values are noise."""
    query, key, value = torch.randn(rows, 6), torch.randn(rows, 4, 6), torch.randn(rows, 4, 2)
    return query, key, value, (query[:, 0] + query[:, 1] > 0).long()


def test_a_linear_task_is_the_linear_model_s(tmp_path: Path) -> None:
    """The model of the scores reads values alone, which say nothing here; the verdict shows both."""
    torch.manual_seed(0)
    options = {
        "build": partial(ReadValue, value_dim=2, outputs=2), "data": linear(), "dims": 6, "width": 6,
        "scores": (), "rates": (1e-2,), "control": False,
    }  # fmt: skip
    verdict = small(tmp_path / "a", **options)
    levels = {row.name.en: row.mean().value for row in verdict.baselines}
    assert set(levels) == {"nearest neighbours", "logistic regression", "gradient boosting"}
    assert levels["logistic regression"] > 0.9 > 0.7 > verdict.row("scaled_dot").mean().value
    row = verdict.baselines[0]
    assert list(row.quality) == verdict.seeds and len(row.replicates[1]) == 200 and row.seconds > 0
    began = time.perf_counter()
    again = small(tmp_path / "a", **options, resume=True)
    assert [x.quality for x in again.baselines] == [x.quality for x in verdict.baselines]
    assert time.perf_counter() - began < 20


def test_the_nearest_key_and_hidden_keys() -> None:
    torch.manual_seed(0)
    key, right = torch.randn(300, 5, 4), torch.randint(4, (300,))
    query = key[torch.arange(300), right] * 3  # the same direction, another length
    mask = torch.ones(300, 5, dtype=torch.bool)
    mask[:, 4] = False
    key[:, 4] = query  # a hidden key that would be the nearest
    rows = found(split_rows((query, key, mask, right)), "accuracy", Match)
    assert rows["nearest key"]["quality"] == {"1": 1.0, "2": 1.0}
    assert set(rows) == {"nearest key", "logistic regression on each key", "gradient boosting"}
    table = tabular([(query, key, mask, right)] * 3, match=True)
    assert table is not None and (table[0].by_key(torch.zeros(1500).numpy())[:, 4] == HIDDEN).all()


@pytest.mark.parametrize("kind", ["tokens", "frames"])
def test_tags_by_the_neighbours_of_a_position(kind: str) -> None:
    """The tag of a position is told by the token before it; hidden tokens and tags count for nothing."""
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (300, 7))
    mask = torch.arange(7) < torch.randint(3, 8, (300, 1))
    before = torch.cat([torch.zeros(300, 1, dtype=torch.long), ids[:, :-1]], 1)
    tags = (before % 2).masked_fill(~mask, IGNORED)
    x = ids.masked_fill(~mask, 0)
    if kind == "frames":
        x = torch.nn.functional.one_hot(x, 9).float()
    rows = found(split_rows((x, mask, tags)), "accuracy", SMALL)
    name = "logistic regression on each position and its neighbours"
    assert set(rows) == ({name} if kind == "tokens" else {name, "gradient boosting"})
    assert rows[name]["quality"]["1"] > 0.99 and len(rows[name]["replicates"]["1"]) == 200
    table = tabular([(x, mask, tags)] * 3, match=False)
    assert table is not None and table[0].features.shape == (
        int(mask.sum()), 5 if kind == "tokens" else 45
    )  # fmt: skip
    told = table[0].by_position(torch.ones(int(mask.sum()), 2).numpy())
    assert torch.equal(told[..., 0] == 1, mask)
    hidden = x.clone()
    hidden[~mask] = 5
    other = tabular([(hidden, mask, tags)] * 3, match=False)
    assert other is not None and (other[0].features == table[0].features).all()


def test_ranking_regression_and_unlike_widths() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(200, 3), torch.randn(200, 4, 5)
    relevance = (key[..., 0] > 0).float()
    rows = found(split_rows((query, key, relevance)), "ndcg", Match)
    assert "nearest key" not in rows  # the widths differ
    assert rows["ridge regression on each key"]["quality"]["1"] > 0.95
    target = 100 + 5 * query[:, :1]
    rows = found(split_rows((query, key, target)), "r2", ReadValue)
    assert rows["ridge regression"]["quality"]["1"] > 0.99


def test_tokens_are_counted_and_answers_of_other_shapes_are_no_table() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(1, 50, (300, 12))
    target = (tokens == 7).any(1).long()
    rows = found(split_rows((tokens, target)), "accuracy", ReadValue)
    assert rows["logistic regression"]["quality"]["1"] > 0.9
    assert found(split_rows((tokens, tokens[:, :5])), "accuracy", ReadValue) == {}


def test_drawn_data_has_a_result_for_each_seed_and_time_is_kept() -> None:
    rows = found(SMALL, "accuracy", Match)
    quality = rows["logistic regression on each key"]["quality"]
    assert set(quality) == {"1", "2"} and quality["1"] != quality["2"]
    assert found(SMALL, "accuracy", Match, until=0.0) == {}


@pytest.mark.parametrize("missing", [True, False])
def test_without_scikit_learn_there_are_none(missing: bool, monkeypatch) -> None:
    if missing:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert bool(found(split_rows(linear(80)), "accuracy", ReadValue)) is not missing
