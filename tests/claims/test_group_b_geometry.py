"""Claims B1 and B2: norms and parity. Each verdict can come out another way."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from regard import Score
from regard.claims import ClaimVerdict, Numbers, Run
from regard.claims.experiments.b1_norms_and_cosine import NormsAndCosine
from regard.claims.experiments.b2_parity import Parity, additive

from .checking import check_figure, from_disk, verdict

# Small enough for a test, large enough to decide.
SMALL = replace(Parity(), dims=(2,), widths=(8, 32, 128), pairs=(400, 400))


@pytest.fixture(scope="module")
def small() -> Numbers:
    return from_disk(SMALL.measure(Run()))


class TestB1:
    def test_quick_run_holds(self) -> None:
        claim = NormsAndCosine()
        parts: list[float] = []
        numbers = claim.measure(Run(tell=parts.append))
        assert parts[-1] == 1.0 and claim.measure(Run()) == numbers
        assert claim.judge(numbers).verdict is ClaimVerdict.HOLDS
        check_figure(claim, from_disk(numbers))

    @pytest.mark.parametrize("score", ["gaussian", "scaled dot", "cosine"])
    def test_fails_for_a_score_that_is_not_the_product(self, score: str) -> None:
        assert verdict(replace(NormsAndCosine(), product=score)) is ClaimVerdict.FAILS

    def test_fails_where_the_other_score_scales_too(self) -> None:
        assert verdict(replace(NormsAndCosine(), other="bilinear")) is ClaimVerdict.FAILS


class TestB2:
    def test_small_run_holds_with_conditions(self, small: Numbers) -> None:
        assert SMALL.judge(small).verdict is ClaimVerdict.CONDITIONS
        check_figure(SMALL, small)

    def test_without_a_bias_everything_is_left_at_every_width(self, small: Numbers) -> None:
        left = torch.tensor(small["left"]["without 2"])
        assert (left > 0.999).all() and (left < 1.03).all()
        assert small["parity"] < 1e-12

    def test_fails_for_a_target_of_the_same_parity(self) -> None:
        def odd(dim: int, generator: torch.Generator) -> Score:
            return additive(dim, False, generator)

        assert verdict(replace(SMALL, target=odd)) is ClaimVerdict.FAILS

    def test_holds_as_far_as_few_hidden_units_can_tell(self) -> None:
        assert verdict(replace(SMALL, widths=(2, 4, 8))) is ClaimVerdict.HOLDS

    def test_not_decided_where_the_widest_leaves_about_half(self, small: Numbers) -> None:
        numbers = deepcopy(small)
        numbers["left"]["with 2"][-1] = [0.3, 0.5, 0.6, 0.55]
        assert SMALL.judge(numbers).verdict is ClaimVerdict.UNDECIDED

    @pytest.mark.slow
    def test_quick_run(self) -> None:
        assert verdict(Parity()) is ClaimVerdict.CONDITIONS
