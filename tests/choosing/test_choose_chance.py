"""Where nothing was learned, the answer says so first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.choosing.report import save_verdict
from regard.choosing.report.overview import summary
from regard.choosing.suite import Answer, Suite
from regard.choosing.tasks.embedded import MADE
from regard.choosing.tasks.models import Match
from regard.choosing.training.chance import Chance, chance_of
from regard.choosing.training.marks import margin
from regard.choosing.training.metrics import mrr, ndcg
from regard.choosing.training.words import recommendation

from .known import small
from .test_choose_verdict import verdict_of

SAID = (
    "No recommendation: no score is shown to have learned more than guessing: the best has 13.1%, guessing gives "
    "12.5%. "
    "Check that each target belongs to the inputs of its row."
)


def unlearned():
    """One that is no better than guessing among eight keys."""
    found = verdict_of([0.12, 0.13, 0.125], [0.131, 0.135, 0.127])
    return replace(found, chance=Chance(0.125, 0.01))


def batch(target: torch.Tensor, keys: int = 5) -> list[tuple[torch.Tensor, ...]]:
    return [(torch.randn(len(target), 4), torch.randn(len(target), keys, 4), target)]


def test_it_is_said_first_in_text_and_record() -> None:
    found = unlearned()
    assert not found.learned and str(found).splitlines()[0] == SAID
    record = found.as_dict()
    assert record["recommendation"][0] == SAID
    assert (record["learned"], record["guessing"]) == (False, 0.125)
    assert recommendation(found)[0].zh.startswith(
        "无法推荐：没有任何打分函数被证实比瞎猜学得更多：最好的是 13.1%，瞎猜是 12.5%"
    )
    assert margin(found).en.startswith("nothing learned")


def test_guesses_get_no_advice_on_seeds() -> None:
    found = verdict_of([0.05, 0.13, 0.12], [0.20, 0.12, 0.15])
    assert "seeds=" in str(found)
    found = replace(found, chance=Chance(0.125, 0.02))
    assert found.seeds_to_decide is None and "seeds=" not in str(found)
    assert "longer trainings (steps=200) may help" in str(found)


def test_it_is_said_first_in_the_report_of_one_task_and_of_many(tmp_path: Path) -> None:
    found = small(tmp_path / "study.journal")
    found = replace(found, chance=Chance(0.999, 0.0))
    page = save_verdict(found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert (
        "No recommendation: no score is shown to have learned" in page and "nothing learned" in page
    )
    assert "没有任何打分函数被证实比瞎猜学得更多" in page and "Nothing cheaper" not in page
    task = next(iter(MADE.values()))()
    many = summary(Suite([Answer(task, found), Answer(task, found)]))
    assert many[0].en.startswith(f"No recommendation for {task.name}") and len(many) == 1


@pytest.mark.parametrize(
    ("values", "chance", "learned"),
    [
        ([0.30, 0.31, 0.29], Chance(0.125, 0.01), True),
        ([0.30, 0.10, 0.29], Chance(0.125, 0.01), False),  # its interval reaches guessing
        ([0.126, 0.127, 0.125], Chance(0.125, 0.01), False),  # as good as guessing
        (
            [0.140, 0.141, 0.139],
            Chance(0.125, 0.01),
            None,
        ),  # lucky on the same rows, or too few rows
        ([1.0, 0.7, 1.0], Chance(0.5, 0.01), None),  # far better, and too noisy to show it
        ([0.140, 0.141, 0.139], Chance(0.125, 0.001), True),
        ([0.9], Chance(0.125, 0.01), True),  # one seed has no interval
        ([0.1], None, True),
    ],
)
def test_what_counts_as_learned(values, chance, learned) -> None:
    found = verdict_of([0.12] * len(values), values)
    found = replace(found, chance=chance)
    assert found.learned is learned and found.recommended is bool(learned)
    assert ("learned" in str(found)) is (learned is False)


def test_r_squared_of_guessing_is_zero() -> None:
    found = verdict_of([-0.1, -0.2, -0.1], [-0.01, 0.0, -0.02], metric="r2")
    found = replace(found, chance=chance_of("r2", Match, batch(torch.randn(9, 1)), 1))
    assert "the best has R² -0.010, guessing gives 0." in str(found)


class TestGuessing:
    def test_names_one_of_the_keys_however_targets_are_spread(self) -> None:
        found = chance_of("accuracy", Match, batch(torch.tensor([0, 0, 0, 1])), 1)
        assert found is not None and found.value == pytest.approx(1 / 5)

    def test_names_the_largest_class(self) -> None:
        two = torch.tensor([[0, 1], [0, 2], [0, 1], [3, 1]])
        for target, share in ((torch.tensor([2, 2, 2, 1]), 3 / 4), (two, 3 / 4)):
            found = chance_of("accuracy", nn.Linear, batch(target), 1)
            assert found is not None and found.value == share

    def test_orders_keys_at_random(self) -> None:
        gains = torch.randint(0, 3, (200, 6), generator=torch.Generator().manual_seed(1)).float()
        for name, metric in (("ndcg", ndcg), ("mrr", mrr)):
            found = chance_of(name, Match, batch(gains, 6), 1)
            assert found is not None and 0 < found.error < 0.03
            assert found.value == pytest.approx(float(metric(torch.rand(200, 6), gains)), abs=0.08)

    def test_is_not_known_of_a_metric_of_ones_own(self, tmp_path: Path) -> None:
        assert chance_of("share", Match, batch(torch.tensor([0, 1])), 1) is None
        assert small(tmp_path / "study.journal").chance == Chance(
            0.25, pytest.approx((0.25 * 0.75 / 128) ** 0.5)
        )
