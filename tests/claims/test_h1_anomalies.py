"""Claim H1: attention over points and windows of a series, and that its verdict can come out otherwise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from regard.claims import ClaimVerdict, Run
from regard.claims.experiments.h1_anomalies import ASKINGS, KINDS, RIVALS, SCORES, Anomalies
from regard.recipes.anomaly import planted
from regard.recipes.anomaly.sensitivity import PointAttention, sensitivity, taught, waves
from regard.recipes.datasets import Dataset, Part
from regard.text import Text

from .checking import check_figure, from_disk

SMALL = Anomalies(
    steps=(60, 60), seed_counts=(2, 2), series=(40, 40), amplitudes=(0.5, 1.0, 4.0, 128.0)
)
JOBS = [f"{kind}|{score}|{asking}" for kind in KINDS for score in SCORES for asking in ASKINGS]


@pytest.fixture
def few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of a set: two short waves for training, six with a spike."""
    draw = torch.Generator().manual_seed(0)
    base = waves(8, draw).repeat(1, 3).numpy()[:, :, None]
    rows = [planted(one, "spike", 4.0, 16, seed) for seed, one in enumerate(base[2:])]
    part = Part([x for x, _ in rows], [y for _, y in rows])
    calm = Part(list(base[:2]), [np.zeros(base.shape[1], np.int64)] * 2)
    data = Dataset("daphnet", Text("made", "造"), "generated", calm, part, part)
    monkeypatch.setattr(Anomalies, "data", lambda self, run: data)


def test_it_measures_every_case_and_draws(few_series):
    shares = []
    numbers = from_disk(SMALL.measure(Run(tell=shares.append)))
    assert shares[-1] == 1.0 and shares == sorted(shares)
    assert list(numbers["cases"]) == JOBS
    assert all(len(own["weight"]) == 2 for own in numbers["cases"].values())
    assert set(numbers["ranking"]["precision"]) == set(RIVALS)
    assert all(len(own) == 6 for own in numbers["ranking"]["precision"].values())
    check_figure(SMALL, numbers)
    spike = numbers["cases"]["spike|scaled dot|global"]
    assert min(spike["weight"]) > 90 and spike["uniform"] < 3
    assert max(own["error"] for own in numbers["cases"].values()) < 1e-9


def test_without_training_the_weight_does_not_find_it(few_series):
    untrained = replace(SMALL, steps=(1, 1), seed_counts=(3, 3))
    found = untrained.judge(untrained.measure(Run()))
    assert found.verdict != ClaimVerdict.HOLDS
    assert "most of the weight is on the anomaly" in found.because.en


def made_up(
    weight=99.0,
    dot_left=100.0,
    additive_left=0.1,
    weight_left=0.1,
    lead=0.1,
    error=1e-14,
    spread=0.05,
):
    """Numbers of five seeds and series, all near what is given."""
    near = np.linspace(-1, 1, 5) * spread
    cases = {
        job: {
            "weight": (weight + near).tolist(),
            "error": error,
            "uniform": 2.0,
            "score_left": ((dot_left if "scaled dot" in job else additive_left) + near).tolist(),
            "weight_left": (weight_left + near).tolist(),
            "score_slope": [50.0, 100.0],
            "weight_slope": [100.0, 0.1],
        }
        for job in JOBS
    }
    precision = {"gaussian": (0.5 + lead + near).tolist(), "Sub-PCA": (0.5 - near).tolist()}
    return {
        "amplitudes": [1.0, 128.0],
        "cases": cases,
        "ranking": {"set": "nab", "precision": precision},
    }


@pytest.mark.parametrize(
    ("given", "verdict", "said"),
    [
        ({}, ClaimVerdict.HOLDS, "ahead of Sub-PCA"),
        ({"weight": 20.0}, ClaimVerdict.FAILS, "most of the weight is on the anomaly (everywhere)"),
        (
            {"dot_left": 5.0},
            ClaimVerdict.FAILS,
            "the multiplicative score keeps rising (everywhere)",
        ),
        ({"additive_left": 60.0}, ClaimVerdict.FAILS, "the additive score flattens (everywhere)"),
        ({"weight_left": 60.0}, ClaimVerdict.FAILS, "the weight saturates for both (everywhere)"),
        (
            {"lead": -0.2},
            ClaimVerdict.CONDITIONS,
            "Except: attention between windows ranks points better",
        ),
        ({"error": 1e-3}, ClaimVerdict.CONDITIONS, "the derivatives are those of the formulas"),
        ({"lead": 0.0}, ClaimVerdict.UNDECIDED, "Not decided: attention between windows"),
        ({"weight": 50.0}, ClaimVerdict.UNDECIDED, "Not decided: most of the weight"),
    ],
)
def test_it_can_come_out_otherwise(given, verdict, said):
    found = Anomalies().judge(made_up(**given))
    assert found.verdict == verdict
    assert said in found.because.en


def test_one_case_alone_is_a_condition():
    numbers = made_up()
    numbers["cases"]["shift|additive|context"]["score_left"] = [60.0, 61.0, 59.0]
    found = Anomalies().judge(numbers)
    assert found.verdict == ClaimVerdict.CONDITIONS
    assert "the additive score flattens (level shift, additive, context query)" in found.because.en


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("asking", ASKINGS)
def test_formulas_are_the_derivatives(kind, score, asking):
    """Beside autograd, a central difference, which shares no code with either."""
    draw = torch.Generator().manual_seed(3)
    model, base, step = PointAttention(score, asking, 8, draw), waves(4, draw), 1e-5
    sizes = (2.0 - step, 2.0, 2.0 + step, 3.0)
    found = sensitivity(model, base, kind, 40, sizes)
    torch.testing.assert_close(found.score_slope, found.score_autograd, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.weight_slope, found.weight_autograd, rtol=1e-9, atol=1e-12)
    for value, slope in ((found.score, found.score_slope), (found.weight, found.weight_slope)):
        difference = (value[2] - value[0]) / (2 * step)
        torch.testing.assert_close(slope[1], difference, rtol=1e-4, atol=1e-7)


def test_a_formula_with_a_mistake_would_be_seen(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    model = PointAttention("additive", "global", 8, draw)
    real = PointAttention.slopes
    monkeypatch.setattr(
        PointAttention, "slopes", lambda *given: tuple(1.01 * x for x in real(*given))
    )
    found = sensitivity(model, waves(2, draw), "spike", 40, (1.0, 2.0))
    assert not torch.allclose(found.score_slope, found.score_autograd, rtol=1e-3)


def test_the_query_of_the_context_differs_from_series_to_series():
    draw = torch.Generator().manual_seed(0)
    series = waves(2, draw) + torch.tensor([[0.0], [3.0]])
    for asking, same in (("global", True), ("context", False)):
        query, _ = PointAttention("scaled dot", asking, 8, draw).sides(series)
        assert torch.equal(query[0], query[1]) == same


def test_training_lowers_the_loss():
    draw = torch.Generator().manual_seed(0)
    losses = list(taught(PointAttention("additive", "global", 8, draw), "shift", 30, 0.03, draw))
    assert losses[-1] < 0.5 * losses[0]


def test_the_public_set_is_for_full_runs_on_machines_that_have_it(monkeypatch):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    assert SMALL.data(Run(full=True)).name == "daphnet"
    monkeypatch.setattr("regard.recipes.sources.find_folder", lambda *_: True)
    monkeypatch.setattr("regard.recipes.anomaly.data.load", lambda name: name)
    assert SMALL.data(Run(full=True)) == "nab"
    assert SMALL.data(Run()) == "daphnet"
