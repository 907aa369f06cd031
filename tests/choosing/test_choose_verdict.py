"""The verdict from made-up qualities, the candidates, and the rules."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.choosing.rules import IN_SHORT, RULES
from regard.choosing.training.candidates import STABILIZERS, ScoreSizes, candidates
from regard.choosing.training.costs import Cost
from regard.choosing.training.intervals import lead
from regard.choosing.training.judging import judge
from regard.choosing.training.marks import use
from regard.choosing.training.metrics import GOALS, goal
from regard.choosing.training.rows import CandidateRow, Outcome
from regard.choosing.training.stages import LOOKS, Settings
from regard.choosing.training.trainer import evaluation_steps
from regard.choosing.training.verdict import Verdict
from regard.choosing.training.words import recommendation
from regard.claims import all_claims
from regard.measuring.statistics import difference

SIZES = ScoreSizes(12, 8, 8, True)
NAMES = ("scaled_dot", "cosine", "bilinear")


def rows(*qualities: list[float], costs: tuple[float, ...] = (1.0, 2.0, 3.0)) -> list[CandidateRow]:
    """Finalists with these qualities by seed; the first is the null."""
    known = {one.name: one for one in candidates(SIZES, NAMES, ("none",))}
    return [
        CandidateRow(known[name], Cost(cost, 1, 1), quality=dict(enumerate(values)))
        for name, values, cost in zip(NAMES, qualities, costs, strict=False)
    ]


@pytest.mark.parametrize(
    ("null", "other", "outcome", "winner"),
    [
        ([0.50, 0.51, 0.49, 0.50], [0.80, 0.79, 0.81, 0.80], Outcome.ALTERNATIVE, "cosine"),
        ([0.80, 0.79, 0.81, 0.80], [0.50, 0.51, 0.49, 0.50], Outcome.NULL, "scaled_dot"),
        ([0.800, 0.801, 0.799], [0.801, 0.802, 0.7995], Outcome.SAME, "scaled_dot"),
        ([0.80, 0.60, 0.70], [0.70, 0.80, 0.75], Outcome.UNDECIDED, "scaled_dot"),
        # Surely better, but by less than matters.
        ([0.800, 0.801, 0.799, 0.8], [0.804, 0.805, 0.803, 0.804], Outcome.SAME, "scaled_dot"),
    ],
)
def test_the_outcome_follows_from_the_numbers(null, other, outcome, winner) -> None:
    found = judge(rows(null, other), "scaled_dot", range(len(null)), 0.01)
    assert (found.outcome, found.winner) == (outcome, winner)


def test_a_poor_and_noisy_alternative_leaves_nothing_open() -> None:
    same, poor = [0.801, 0.802, 0.7995], [0.2, 0.9, 0.1]
    found = judge(rows([0.800, 0.801, 0.799], same, poor), "scaled_dot", range(3), 0.02)
    assert found.outcome is Outcome.SAME


def verdict_of(*qualities: list[float], metric: str = "accuracy") -> Verdict:
    """All of it, from made-up qualities."""
    final, seeds = rows(*qualities), list(range(len(qualities[0])))
    for row in final:
        row.status = "final"
    judged = judge(final, "scaled_dot", seeds, 0.01)
    facts = {"settings": {"candidates": list(NAMES), "steps": 100}}
    return Verdict(*judged, final, metric, 0.01, seeds, facts=facts)


def test_what_is_not_decided_says_so_first_and_how_to_decide() -> None:
    null, other = [0.80, 0.60, 0.70], [0.75, 0.80, 0.72]
    found = verdict_of(null, other)
    told = [str(found).splitlines()[:2], [text.zh for text in recommendation(found)[:2]]]
    assert told[0][0].startswith("Not decided: ") and told[1][0].startswith("未能判定")
    assert (
        "(1 point)" in told[0][0]
        and "Use scaled dot for now, since nothing is shown to be better. If" in told[0][1]
    )
    count = found.seeds_to_decide
    assert count is not None and all(f"seeds={count}" in text[1] for text in told)
    assert "steps=200" in told[0][1] and "winner" not in str(found)
    assert "null, not decided" in str(found) and use(found).en == "scaled dot, for now"
    assert found.as_dict()["decided"] is False and found.as_dict()["seeds_to_decide"] == count


def test_a_likely_lead_is_what_to_use_while_nothing_is_decided() -> None:
    found = verdict_of([0.80, 0.60, 0.70], [0.85, 0.80, 0.80])
    first, second = str(found).splitlines()[:2]
    assert found.outcome is Outcome.UNDECIDED and first.startswith("Not decided: ")
    assert (
        second.startswith("Use cosine for now: its lead over scaled dot") and "not sure" in second
    )
    assert use(found).en == "cosine, for now" and "winner" not in str(found)
    assert "暂时使用余弦" in recommendation(found)[1].zh


@pytest.mark.parametrize(
    ("ahead", "wide", "outcome"),
    [(0.02, 0.03, Outcome.ALTERNATIVE), (0.004, 0.02, Outcome.SAME)],
)
def test_as_many_seeds_as_it_says_decide_it(ahead: float, wide: float, outcome: Outcome) -> None:
    def with_seeds(count: int) -> Verdict:
        swing = [0.03 * (-1) ** seed for seed in range(count)]
        noise = (sum(x * x for x in swing) / (count - 1)) ** 0.5  # the same for every count
        other = [0.5 + ahead + x * wide / noise for x in swing]
        return verdict_of([0.5] * count, other)

    found = with_seeds(4)
    count = found.seeds_to_decide
    assert found.outcome is Outcome.UNDECIDED and count is not None
    even = count + count % 2
    assert with_seeds(even).outcome is outcome and with_seeds(even).seeds_to_decide is None
    assert with_seeds(even - 4).outcome is Outcome.UNDECIDED


def test_a_lead_that_no_seeds_decide() -> None:
    close = verdict_of([0.5] * 4, [0.40, 0.62, 0.40, 0.61])
    assert close.outcome is Outcome.UNDECIDED and close.seeds_to_decide is None
    assert "More than 50 seeds would be needed" in recommendation(close)[1].en
    assert "seeds=" not in str(close)


def test_more_than_noise_is_not_yet_enough_to_matter() -> None:
    found = verdict_of([0.800, 0.801, 0.799, 0.8], [0.804, 0.805, 0.803, 0.804])
    assert found.over_null is not None and found.over_null.low > 0
    assert "no difference that matters (1 point" in recommendation(found)[0].en
    assert "null, not beaten" in str(found) and "winner" not in str(found)


def test_r_squared_is_no_percentage() -> None:
    found = verdict_of([0.55, 0.54, 0.56], [0.999, 0.998, 0.999], metric="r2")
    assert "of R² over 3" in str(found) and "0.999 ±0.001" in str(found)
    assert not any(word in str(found) for word in ("r2", "%", "points"))


def test_one_seed_decides_nothing() -> None:
    assert judge(rows([0.1], [0.9]), "scaled_dot", [0], 0.01).outcome is Outcome.UNDECIDED


def test_intervals_widen_with_the_number_of_comparisons() -> None:
    first, second = [0.8, 0.82, 0.79, 0.81], [0.7, 0.71, 0.72, 0.69]
    null, other = rows(second, first)
    one, many = (lead(other, null, range(4)).estimate(several) for several in (1, 5))
    assert one == pytest.approx(difference(first, second))
    assert many.value == one.value and many.low < one.low and many.high > one.high


@pytest.mark.parametrize(
    ("other", "cheapest"),
    [
        ([0.80, 0.90, 0.70], "cosine"),  # not surely behind, since it is noisy
        ([0.8500, 0.8605, 0.8395], "bilinear"),  # hardly behind
        ([0.848, 0.858, 0.838], "bilinear"),  # surely behind, by less than matters
        ([0.830, 0.841, 0.819], "cosine"),  # surely behind, by more
    ],
)
def test_the_cheapest_that_is_not_behind_by_as_much_as_matters(other, cheapest) -> None:
    final = rows([0.3, 0.31, 0.32], [0.85, 0.86, 0.84], other, costs=(1.0, 3.0, 2.0))
    found = judge(final, "scaled_dot", range(3), 0.01)
    assert (found.winner, found.cheapest, found.runner_up) == ("cosine", cheapest, "bilinear")


def test_one_seed_shows_nobody_to_be_as_good() -> None:
    found = judge(rows([0.9], [0.9], costs=(2.0, 1.0)), "scaled_dot", [0], 0.01)
    assert found.winner == found.cheapest == "scaled_dot"


def test_what_is_cheaper_and_as_good_is_said_in_these_words() -> None:
    found = verdict_of([0.3, 0.31, 0.32], [0.85, 0.86, 0.84], [0.848, 0.858, 0.838])
    found.row("bilinear").cost = Cost(1.0, 1, 1)
    found.cheapest = "bilinear"
    told = recommendation(found)[1]
    assert "the cheapest that is not behind by as much as matters is bilinear" in told.en
    assert "落后幅度小于实质差异的候选中，最便宜的是双线性" in told.zh
    assert found.as_dict()["cheapest_as_good"] == "bilinear"


@pytest.mark.parametrize("projected", [True, False])
def test_every_candidate_is_built_from_the_code_that_is_shown(projected: bool) -> None:
    sizes = ScoreSizes(8, 8, 8, projected)
    every = [name for names in STABILIZERS.values() for name in names]
    made = candidates(sizes, list(STABILIZERS), list(dict.fromkeys(every)), (8, 16), (2,))
    assert made[0].name == "scaled_dot" and len({one.name for one in made}) == len(made) > 25
    for one in made:
        heads = 2
        inner = one.score in ("bilinear", "low_rank")
        shape = (1, 1 if projected or inner or "Projected" in one.code else heads, 3, 8)
        q, k = torch.randn(shape), torch.randn(shape)
        if not projected and not inner and one.hidden == 8:
            q, k = torch.randn(1, heads, 3, 8), torch.randn(1, heads, 3, 8)
        score = one.make()
        assert isinstance(score, regard.Score)
        assert regard.score(q, k, score).isfinite().all(), one.name


def test_unlike_dims_are_projected() -> None:
    for one in candidates(SIZES, list(STABILIZERS), ("none",)):
        found = regard.score(torch.randn(1, 1, 2, 12), torch.randn(1, 1, 3, 8), one.make())
        assert found.shape == (1, 1, 2, 3)


def test_scores_of_the_user_s_own() -> None:
    made = candidates(SIZES, {"mine": regard.Dot})
    assert [one.name for one in made] == ["scaled_dot", "mine"]


def test_if_time_runs_out_every_candidate_has_had_its_turn() -> None:
    settings = Settings(["a", "b"], [1.0, 2.0, 3.0], [1, 2], 10, 4, "accuracy", 1)
    assert [cell["rate"] for cell in settings.search_cells()[:2]] == [2.0, 2.0]
    order = [(c["seed"], c["candidate"]) for c in settings.final_cells({"a": 1.0, "b": 2.0})]
    assert order == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert evaluation_steps(20, LOOKS) == [5, 10, 15, 20]
    assert evaluation_steps(2, 4)[-1] == 2


def test_metrics_beside_their_definitions() -> None:
    output, classes = torch.eye(3), torch.tensor([0, 1, 0])
    assert float(GOALS["accuracy"].metric(output, classes)) == pytest.approx(2 / 3)
    x = torch.randn(50, 2)
    assert float(GOALS["r2"].metric(x, x)) == 1
    assert float(GOALS["r2"].metric(x.mean(0).expand(50, 2), x)) == pytest.approx(0, abs=1e-6)
    scores, gains = torch.randn(20, 6), torch.randint(0, 3, (20, 6)).float()
    from sklearn.metrics import ndcg_score

    assert float(GOALS["ndcg"].metric(scores, gains)) == pytest.approx(ndcg_score(gains, scores))
    assert goal(None, None, classes).name == "accuracy" and goal(None, None, x).name == "r2"


def test_every_rule_names_claims_and_scores_that_exist() -> None:
    known = all_claims()
    for rule in RULES:
        assert rule.claims and set(rule.claims) <= set(known), rule
        assert rule.score in IN_SHORT
    for topic in ("scarce", "modalities", "hostile norms", "small device", "differ in width"):
        assert any(topic in rule.condition.en for rule in RULES)
