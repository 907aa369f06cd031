"""Claims that rest on training: C10, C11, E2, E3, E5, E6. Each verdict can come out another way."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from regard import Bilinear, ScaledDot
from regard.claims import Claim, ClaimVerdict, Numbers, Run, find
from regard.claims.experiments.c10_unscaled_at_large_d import UnscaledAtLargeD
from regard.claims.experiments.c11_bridge import LENGTHS, Bridge
from regard.claims.experiments.e2_low_rank import LowRankMatches
from regard.claims.experiments.e3_unlike_dims import UnlikeDims
from regard.claims.experiments.e5_data_size import DataSize
from regard.claims.experiments.e6_overfitting import Overfitting
from regard.claims.tools.outcome import surely
from regard.claims.tools.recurrent import Recaller, decay, log_gradient
from regard.measuring.statistics import Estimate
from regard.synthetic.recall import Recall
from regard.synthetic.views import Views

from .checking import check_figure, from_disk, verdict


def around(middle: float, *, spread: float = 0.002, train: float = 1.0, **more: object) -> Numbers:
    """One competitor as if this accuracy had come out."""
    quality = [middle - spread, middle, middle + spread]
    return {"quality": quality, "train": [train] * 3, "parameters": 100, "rate": 0.01, **more}


def lines(**middles: list[float]) -> dict[str, list[Numbers]]:
    """Several competitors by name, `_` for a space, with an accuracy at each point.

    The seeds of additive come in the other order, so that differences have a spread too.
    """
    return {
        name.replace("_", " "): [
            around(x, spread=-0.002 if name == "additive" else 0.002) for x in own
        ]
        for name, own in middles.items()
    }


def c10(dot: list[float], scaled: list[float]) -> Numbers:
    scores = lines(dot=dot, scaled_dot=scaled, additive=[0.99, 0.99, 0.99])
    return {"dims": [16, 64, 256], "steps": 1, "scores": scores}


def c11(
    fade: float = -0.6, flat: float = 0.0, thin: float = -1.0, alone: float = 0.4, read: float = 1.0
) -> Numbers:
    def seeds(step: float) -> list[list[float]]:
        return [[start + step * t for t in range(LENGTHS[-1])] for start in (0.0, 0.1, 0.2)]

    length = torch.tensor(LENGTHS).log()
    by_length = [(start + thin * length).tolist() for start in (0.0, 0.1, 0.2)]
    return {
        "by_distance": {"control": seeds(fade), "dot": seeds(flat), "additive": seeds(flat)},
        "by_length": dict.fromkeys(("control", "dot", "additive"), by_length),
        "theory": [fade] * 3,
        "lengths": [4, 64],
        "recall": lines(control=[1.0, alone], dot=[1.0, read], additive=[1.0, read]),
    }


def e2(on_low: float, on_full: float, spread: float = 0.002) -> Numbers:
    def relation(rank: int, low: float) -> Numbers:
        count = {"parameters": 128, "formula": 128}
        return {
            "rank": rank, "ceiling": 0.95, "scores": [
                around(0.9, score="bilinear") | {"parameters": 256, "formula": 256},
                around(low, spread=spread, score="low rank") | count,
                around(0.5, score="additive") | count,
            ],
        }  # fmt: skip

    return {"dim": 16, "relations": [relation(4, on_low), relation(16, on_full)]}


def e3(
    additive: float,
    others: float = 0.9,
    clear: bool = True,
    small: float = 0.9,
    cosine: float = 0.9,
) -> Numbers:
    """Accuracies at keys of 4 dims; `small` is additive's with the parameters of the full matrix."""

    def own(low: float, spread: float = 0.002) -> list[Numbers]:
        return [
            around(x, spread=spread, key_dim=dim, best=[0.95] * 3)
            for dim, x in ((4, low), (32, 0.9))
        ]

    sized = {"low rank": own(others), "cosine": own(cosine)}
    return {
        "query_dim": 32,
        "refusal": {"message": "no", "clear": clear},
        "scores": {"bilinear": own(others), **sized, "additive": own(additive, -0.002)},
        "matrix_size": {**sized, "additive": own(small, -0.002)},
    }


def e5(little: tuple[float, float], scale: float) -> Numbers:
    """Accuracies of additive where dot has 0.5: both unlike kinds with little data, all with much."""
    first = {"like": 0.4, "unlike": little[0], "folded": little[1]}
    pairs = {kind: lines(scaled_dot=[0.5, 0.5], additive=[x, scale]) for kind, x in first.items()}
    return {"sizes": [64, 8192], "pairs": pairs}


def e6(small: float, large: float, train: float = 1.0) -> Numbers:
    scores = {name: [around(0.8)] * 2 for name in ("scaled dot", "low rank", "bilinear")}
    own = [around(x, spread=-0.002, train=y) for x, y in ((small, train), (large, large))]
    return {"sizes": [64, 8192], "scores": scores | {"additive": [x | {"parameters": 999} for x in own]}}  # fmt: skip


CASES = [
    ("C10", c10([0.99, 0.9, 0.8], [0.99, 0.99, 0.99]), ClaimVerdict.HOLDS),
    ("C10", c10([0.99, 0.99, 0.8], [0.99, 0.99, 0.99]), ClaimVerdict.CONDITIONS),
    ("C10", c10([0.99, 0.9, 0.99], [0.99, 0.99, 0.99]), ClaimVerdict.FAILS),
    ("C10", c10([0.99, 0.9, 0.8], [0.99, 0.99, 0.9]), ClaimVerdict.FAILS),
    ("C10", c10([0.99, 0.9, 0.98], [0.99, 0.99, 0.99]), ClaimVerdict.UNDECIDED),
    ("C11", c11(), ClaimVerdict.CONDITIONS),
    ("C11", c11(thin=0.0), ClaimVerdict.HOLDS),
    ("C11", c11(fade=0.0), ClaimVerdict.FAILS),
    ("C11", c11(flat=-0.1), ClaimVerdict.FAILS),
    ("C11", c11(alone=0.99), ClaimVerdict.FAILS),
    ("C11", c11(read=0.5), ClaimVerdict.FAILS),
    ("C11", c11(read=0.95), ClaimVerdict.UNDECIDED),
    ("E2", e2(0.9, 0.9), ClaimVerdict.HOLDS),
    ("E2", e2(0.9, 0.5), ClaimVerdict.CONDITIONS),
    ("E2", e2(0.5, 0.5), ClaimVerdict.FAILS),
    ("E2", e2(0.9, 0.5, spread=0.1), ClaimVerdict.UNDECIDED),
    ("E3", e3(0.9), ClaimVerdict.HOLDS),
    ("E3", e3(0.3), ClaimVerdict.CONDITIONS),
    ("E3", e3(0.76), ClaimVerdict.UNDECIDED),
    ("E3", e3(0.9, clear=False), ClaimVerdict.FAILS),
    ("E5", e5((0.6, 0.6), 0.4), ClaimVerdict.HOLDS),
    ("E5", e5((0.4, 0.6), 0.6), ClaimVerdict.CONDITIONS),
    ("E5", e5((0.4, 0.4), 0.6), ClaimVerdict.FAILS),
    ("E5", e5((0.51, 0.51), 0.4), ClaimVerdict.UNDECIDED),
    ("E6", e6(0.4, 0.6), ClaimVerdict.HOLDS),
    ("E6", e6(0.4, 0.9), ClaimVerdict.CONDITIONS),
    ("E6", e6(0.9, 0.9), ClaimVerdict.FAILS),
    ("E6", e6(0.4, 0.4, train=0.42), ClaimVerdict.FAILS),
    ("E6", e6(0.79, 0.9), ClaimVerdict.UNDECIDED),
]


@pytest.mark.parametrize(("name", "numbers", "expected"), CASES)
def test_the_verdict_follows_the_numbers(
    name: str, numbers: Numbers, expected: ClaimVerdict
) -> None:
    (claim,) = find([name])
    assert claim.judge(numbers).verdict is expected


@pytest.mark.parametrize("name", sorted({name for name, *_ in CASES}))
def test_draws_in_both_languages(name: str) -> None:
    (claim,) = find([name])
    check_figure(claim, next(numbers for known, numbers, _ in CASES if known == name))


# As small as an experiment can be: the whole way, not the verdict.
TINY: dict[str, Claim] = {
    "C10": UnscaledAtLargeD(dims=(4, 8), steps=4),
    "E2": LowRankMatches(dim=8, low=2, ranks=(1, 2), steps=(4, 4)),
    "E3": UnlikeDims(query_dim=8, key_dims=(8, 4), steps=(4, 4)),
    "E5": DataSize(sizes=(32, 64), steps=(4, 4)),
    "E6": Overfitting(sizes=(32, 64), steps=(4, 4)),
}


@pytest.mark.parametrize("name", TINY)
def test_measures_judges_and_tells_how_far(name: str) -> None:
    claim, parts = TINY[name], []
    numbers = claim.measure(Run(tell=parts.append))
    assert parts[-1] == 1.0
    assert parts == sorted(parts)
    claim.judge(from_disk(numbers))


def test_rank_one_does_not_match_a_relation_of_rank_four() -> None:
    assert verdict(LowRankMatches(dim=8, low=4, ranks=(1,), steps=(30, 30))) is ClaimVerdict.FAILS


def test_additive_overfits_little_data_and_not_much() -> None:
    assert verdict(Overfitting(sizes=(32,), steps=(20, 20))) is ClaimVerdict.HOLDS
    assert verdict(Overfitting(sizes=(4096,), steps=(10, 10))) is ClaimVerdict.FAILS


def test_a_score_that_takes_unlike_dims_is_no_refusal() -> None:
    assert UnlikeDims().refusal()["clear"]
    claim = UnlikeDims(refuses=Bilinear(32, 4))
    numbers = e3(0.9) | {"refusal": claim.refusal()}
    assert claim.judge(numbers).verdict is ClaimVerdict.FAILS


def test_the_comparison_at_equal_parameters_follows_the_numbers() -> None:
    """Ahead with the parameters of low rank, behind with those of the matrix, and the reverse."""
    claim = UnlikeDims()
    good = claim.judge(e3(0.94, others=0.8, small=0.5))
    assert "With the parameters of low rank, additive is ahead of low rank by 14.0 points (keys of 4 dims)" in good.because.en  # fmt: skip
    assert (
        "full matrix, additive is behind bilinear by 30.0 points (keys of 4 dims)"
        in good.because.en
    )
    assert "参数量与低秩相同时，加性与低秩相比领先 14.0 个百分点（键 4 维）" in good.because.zh
    bad = claim.judge(e3(0.77, others=0.9, small=0.94))
    assert "additive is behind low rank by 13.0 points" in bad.because.en
    assert "additive is ahead of bilinear by 4.0 points" in bad.because.en
    same = claim.judge(e3(0.9))
    assert "additive is not surely different from low rank (keys of 4, 32 dims)" in same.because.en
    labels = [fact.label.en for fact in same.facts]
    assert len(set(labels)) == len(labels) and "additive over low rank, keys of 4 dims" in labels


def test_scores_of_unlike_dims_get_no_more_parameters_than_they_may_have() -> None:
    claim = UnlikeDims()
    for dim in (4, 8, 16, 32):
        for _, size, name in claim.cells(dim):
            allowed = claim.parameters(dim, size)
            count = sum(x.numel() for x in claim.build(name, dim, allowed)().parameters())
            # At most one column of both projections is left over.
            assert name == "bilinear" or allowed - (claim.query_dim + dim + 2) < count <= allowed


def test_a_recurrence_that_keeps_everything_needs_no_bridge() -> None:
    found = {
        fading: c11() | Bridge(fading=fading, hidden=8).measure_gradients(Run())
        for fading in (True, False)
    }
    verdicts = {fading: Bridge().judge(numbers).verdict for fading, numbers in found.items()}
    assert verdicts == {True: ClaimVerdict.CONDITIONS, False: ClaimVerdict.FAILS}
    json.dumps(found[True], allow_nan=False)


@pytest.mark.slow
def test_a_dot_that_is_scaled_does_not_train_worse() -> None:
    claim = UnscaledAtLargeD(dims=(256,))
    assert claim.judge(claim.measure(Run())).verdict is not ClaimVerdict.FAILS
    scaled = replace(claim, scores=claim.scores | {"dot": lambda width: ScaledDot()})
    assert scaled.judge(scaled.measure(Run())).verdict is ClaimVerdict.FAILS


def test_no_score_answers_better_than_the_log_odds() -> None:
    task = Views(shared=4, query_dim=12, key_dim=8, noise=0.7)
    query, key, right = task.sample(4000, torch.Generator().manual_seed(5))
    of_query, of_key = task.views
    exact = float(task.quality(task.log_odds(query, key), right))
    linear = torch.einsum("bi,ij,bnj->bn", query, of_query @ of_key.T, key)
    assert exact > float(task.quality(linear, right)) > 0.5
    # The posterior is calibrated: the right keys have as much of it as it says.
    sure = task.log_odds(query, key).softmax(-1).amax(-1).mean()
    assert abs(float(sure) - exact) < 0.03


def test_bending_a_query_loses_nothing_and_folding_it_breaks_correlation() -> None:
    plain, bent, folded = (Views(shown=how, noise=0.5) for how in ("plain", "bent", "folded"))
    assert bent.ceiling() == plain.ceiling()
    query, key, right = folded.sample(8000, torch.Generator().manual_seed(5))
    shown = key[torch.arange(8000), right]
    assert float((query.T @ shown / 8000).abs().max()) < 0.1
    with pytest.raises(ValueError, match="no closed form"):
        folded.ceiling()


def test_gradients_fall_as_the_theory_says() -> None:
    torch.manual_seed(0)
    net = Recaller(5, 256, 4, None).double()
    tokens = Recall(40).sample(16, torch.Generator().manual_seed(0))[0].double()
    found = log_gradient(net, tokens)
    assert float(found[39] - found[9]) / 30 == pytest.approx(decay(net, tokens), rel=0.1)


def test_an_interval_on_the_bar_decides_nothing() -> None:
    assert surely(Estimate(2.0, 1.5, 2.5), 1.0) is True
    assert surely(Estimate(0.0, -0.5, 0.5), 1.0) is False
    assert surely(Estimate(1.0, 0.5, 1.5), 1.0) is None
