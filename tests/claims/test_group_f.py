"""Claims F1 and F2: what heads do, and that the verdicts can come out otherwise."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from regard.claims import ClaimVerdict, Run
from regard.claims.experiments.f1_heads_specialise import HeadsSpecialise
from regard.claims.experiments.f2_sharp_heads_broad_mean import SharpHeadsBroadMean
from regard.claims.tools.heads import HeadedReader, scaled_dot, sensitivity
from regard.claims.tools.learning import Budget
from regard.synthetic.criteria import Criteria

from .checking import check_figure, from_disk, verdict

TINY = Budget(steps=2, batch=8, rates=(1e-2,), held=16)


def test_the_addresses_of_a_criterion_lie_in_its_space():
    task = Criteria(noise=0.0, world=3)
    query, key, _, target = task.sample(50, torch.Generator().manual_seed(0))
    assert target.shape == (50, 2)
    first = task.bases()[0]
    nearest = (query @ first.mT).unsqueeze(-2) - key @ first.mT
    assert torch.allclose(nearest.norm(dim=-1).amin(-1), torch.zeros(50), atol=1e-5)
    assert torch.allclose(
        task.bases().flatten(0, 1) @ task.bases().flatten(0, 1).mT, torch.eye(8), atol=1e-5
    )


def test_sensitivity_of_heads_that_see_one_space_each():
    task = Criteria(world=5)
    model = HeadedReader(scaled_dot(2, 8, 8), task)
    with torch.no_grad():
        model.score.key_weight.copy_(task.bases().flatten(0, 1))  # head c projects on space c
    query, key, _, _ = task.sample(20, torch.Generator().manual_seed(0))
    shares = sensitivity(model, query, key, task.bases())
    assert torch.allclose(shares, torch.eye(2), atol=1e-6)


def separated(apart, together):
    shares = {
        gap: [[0.5 - gap / 2 - e, 0.5 + gap / 2] for e in (0, 0.01, 0.02)]
        for gap in (apart, together, 0.1)
    }
    one = {"apart": {"before": shares[0.1], "after": shares[apart]},
           "together": {"before": shares[0.1], "after": shares[together]}}  # fmt: skip
    return {"scaled dot": one, "additive": deepcopy(one)}


@pytest.mark.parametrize(
    ("apart", "together", "expected"),
    [
        (0.95, 0.9, ClaimVerdict.HOLDS),
        (0.95, 0.2, ClaimVerdict.CONDITIONS),
        (0.3, 0.2, ClaimVerdict.FAILS),
        (0.79, 0.2, ClaimVerdict.UNDECIDED),
    ],
)
def test_f1_can_come_out_otherwise(apart, together, expected):
    assert HeadsSpecialise().judge(separated(apart, together)).verdict == expected


def test_f1_untrained_heads_have_not_specialised():
    claim = HeadsSpecialise(quick=TINY)
    numbers = from_disk(claim.measure(Run()))
    check_figure(claim, numbers)
    assert claim.judge(numbers).verdict == ClaimVerdict.FAILS


@pytest.mark.slow
def test_f1_holds_only_where_each_space_has_a_question():
    claim = HeadsSpecialise()
    assert verdict(claim) == ClaimVerdict.CONDITIONS
    joint = replace(claim, task=Criteria(together=True))
    assert verdict(joint) == ClaimVerdict.FAILS


def heads(head, mean, accuracy):
    scatter = (-0.01, 0.0, 0.01)
    one = {
        "accuracy": [[0.45 + s for s in scatter], [0.6 + s for s in scatter], [accuracy + s for s in scatter]],
        "apart": {"head": [head + s for s in scatter], "mean": [mean + s for s in scatter]},
        "agreeing": {"head": [1.5, 1.6, 1.7], "mean": [1.9, 2.0, 2.1]},
    }  # fmt: skip
    return {"heads": [1, 2, 4], "keys": 8, "scores": {"scaled dot": one}}


@pytest.mark.parametrize(
    ("head", "mean", "accuracy", "expected"),
    [
        (1.3, 4.5, 0.97, ClaimVerdict.HOLDS),
        (3.0, 7.0, 0.97, ClaimVerdict.CONDITIONS),
        (1.3, 4.5, 0.46, ClaimVerdict.CONDITIONS),
        (1.3, 1.5, 0.46, ClaimVerdict.FAILS),
        (1.3, 2.6, 0.97, ClaimVerdict.UNDECIDED),
    ],
)
def test_f2_can_come_out_otherwise(head, mean, accuracy, expected):
    assert SharpHeadsBroadMean().judge(heads(head, mean, accuracy)).verdict == expected


def test_f2_untrained_heads_are_not_sharp_and_no_better_at_equal_parameters():
    claim = SharpHeadsBroadMean(quick=TINY)
    numbers = from_disk(claim.measure(Run()))
    check_figure(claim, numbers)
    one = numbers["scores"]["scaled dot"]
    assert len(set(one["parameters"])) == 1
    assert claim.judge(numbers).verdict in (ClaimVerdict.FAILS, ClaimVerdict.UNDECIDED)
    for mean, head in zip(one["apart"]["mean"], one["apart"]["head"], strict=True):
        assert 1 <= mean / head <= 4  # exp of the Jensen-Shannon divergence of 4 heads


@pytest.mark.slow
def test_f2_fails_where_all_criteria_agree():
    claim = SharpHeadsBroadMean()
    assert verdict(claim) == ClaimVerdict.UNDECIDED  # a quick run leaves one score out
    claim = replace(claim, scores={"scaled dot": claim.scores["scaled dot"]})
    assert verdict(claim) == ClaimVerdict.HOLDS
    joint = replace(claim, task=Criteria(spaces=4, together=True))
    assert verdict(joint) == ClaimVerdict.FAILS
