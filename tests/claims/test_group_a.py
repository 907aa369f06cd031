"""Claims A1 to A6: what attention is. Each verdict can come out another way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import regard
from regard.claims import ClaimVerdict, Numbers, Run, find
from regard.claims.experiments.a1_three_steps import ThreeSteps, in_one_call
from regard.claims.experiments.a2_linear_in_values import LinearInValues
from regard.claims.experiments.a3_keys_address import KeysAddress
from regard.claims.experiments.a4_soft_lookup import SoftLookup, on_sphere
from regard.claims.experiments.a5_hard_is_brittle import HardIsBrittle
from regard.claims.experiments.a6_shifted_softmax import ShiftedSoftmax, naive, wide
from regard.claims.tools.learning import Budget
from regard.synthetic.lookup import Lookup

from .checking import check_figure, from_disk, verdict

LITTLE = Budget(steps=40, batch=32, rates=(3e-2,), held=256)


def trained(whole: float, address: float = 0.125, free: float = 0.99) -> Numbers:
    """Numbers of A3 as if these accuracies had come out, with a little spread over seeds."""

    def around(middle: float, spread: float = 0.002) -> Numbers:
        return {"quality": [middle - spread, middle, middle + spread], "parameters": 960}

    return {
        "free": {"8": around(free), "20": around(free)},
        "whole": {"8": around(0.7), "20": around(whole, -0.002)},
        "address": {"24": around(address)},
        "widths": [8, 20], "width": 20, "chance": 0.125, "steps": 1, "rates": [0.01],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["A1", "A2", "A4", "A5", "A6"])
def test_quick_run_decides_reports_and_draws(name: str) -> None:
    (claim,) = find([name])
    parts: list[float] = []
    numbers = claim.measure(Run(tell=parts.append))
    assert parts[-1] == 1.0
    numbers = from_disk(numbers)
    expected = ClaimVerdict.CONDITIONS if name in ("A4", "A6") else ClaimVerdict.HOLDS
    assert claim.judge(numbers).verdict is expected
    check_figure(claim, numbers)


@pytest.mark.parametrize("name", ["A1", "A2", "A4", "A5", "A6"])
def test_the_same_seed_gives_the_same_numbers(name: str) -> None:
    (claim,) = find([name])
    torch.manual_seed(1)
    first = claim.measure(Run(seed=3))
    torch.manual_seed(2)
    assert claim.measure(Run(seed=3)) == first


class TestA1:
    def test_numbers_of_the_statement(self) -> None:
        numbers = ThreeSteps().measure(Run())
        assert numbers["scores"] == pytest.approx([0.2, 0.4, 1.0], abs=1e-12)
        assert numbers["weights"] == pytest.approx([0.224874, 0.274661, 0.500465], abs=1e-6)
        assert numbers["output"] == pytest.approx(1.451608, abs=1e-6)

    def test_fails_where_another_item_dominates(self) -> None:
        assert verdict(replace(ThreeSteps(), keys=(0.5, 0.2, 0.1))) is ClaimVerdict.FAILS

    def test_fails_for_attention_that_weighs_in_another_way(self) -> None:
        cooler = lambda q, k, v, score: in_one_call(0.9 * q, k, v, score)  # noqa: E731
        assert verdict(replace(ThreeSteps(), attend=cooler)) is ClaimVerdict.FAILS


class TestA2:
    def test_fails_without_a_softmax(self) -> None:
        linear = lambda q, k, v, score: regard.score(q, k, "dot") @ v  # noqa: E731
        assert verdict(replace(LinearInValues(), attend=linear)) is ClaimVerdict.FAILS

    def test_fails_where_values_are_bent(self) -> None:
        bent = lambda q, k, v, score: regard.attention(q, k, v.tanh(), score)  # noqa: E731
        assert verdict(replace(LinearInValues(), attend=bent)) is ClaimVerdict.FAILS


@dataclass(frozen=True)
class ContentIsAddress(Lookup):
    """The label is the largest of the first components of the key: it can be read off the address."""

    def sample(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        key = torch.randn(count, self.keys, self.dim, generator=generator)
        right = torch.randint(self.keys, (count,), generator=generator)
        content = key[..., : self.labels].argmax(-1)
        rows = torch.arange(count)
        value = torch.nn.functional.one_hot(content, self.labels).to(key.dtype)
        return key[rows, right], key, value, content[rows, right]


class TestA3:
    def test_trained_a_little_v_equal_k_is_at_chance_and_draws(self) -> None:
        claim = replace(KeysAddress(), budget=LITTLE)
        numbers = from_disk(claim.measure(Run()))
        sizes = {own["parameters"] for own in numbers["address"].values()}
        assert sizes == {numbers[kind]["20"]["parameters"] for kind in ("free", "whole")}
        (address,) = numbers["address"].values()
        assert max(address["quality"]) < 0.3 < min(numbers["free"]["20"]["quality"])
        check_figure(claim, numbers)

    def test_fails_where_the_address_tells_the_content(self) -> None:
        claim = replace(KeysAddress(), budget=LITTLE, task=ContentIsAddress())
        assert verdict(claim) is ClaimVerdict.FAILS

    @pytest.mark.parametrize(
        ("numbers", "expected"),
        [
            (trained(whole=0.98), ClaimVerdict.CONDITIONS),
            (trained(whole=0.8), ClaimVerdict.HOLDS),
            (trained(whole=0.94), ClaimVerdict.UNDECIDED),
            (trained(whole=0.98, free=0.6), ClaimVerdict.FAILS),
            (trained(whole=0.98, address=0.175), ClaimVerdict.UNDECIDED),
        ],
    )
    def test_every_verdict_is_possible(self, numbers: Numbers, expected: ClaimVerdict) -> None:
        assert KeysAddress().judge(numbers).verdict is expected

    @pytest.mark.slow
    def test_quick_run(self) -> None:
        assert verdict(KeysAddress()) is ClaimVerdict.CONDITIONS


class TestA4:
    def test_fails_where_every_key_is_there_twice(self) -> None:
        def twice(count: int, generator: torch.Generator) -> torch.Tensor:
            half = on_sphere(count, generator)[:, ::2]
            return torch.cat([half, half], 1)

        assert verdict(replace(SoftLookup(), keys=twice)) is ClaimVerdict.FAILS

    def test_fails_where_it_stays_warm(self) -> None:
        assert verdict(replace(SoftLookup(), temperatures=(3.0, 1.0))) is ClaimVerdict.FAILS

    def test_holds_for_dot_on_the_sphere(self) -> None:
        assert verdict(replace(SoftLookup(), scores=("dot",), spread=0.0)) is ClaimVerdict.HOLDS


class TestA5:
    def test_fails_where_hard_is_soft(self) -> None:
        assert verdict(replace(HardIsBrittle(), hard=1.0)) is ClaimVerdict.FAILS

    def test_fails_where_the_slope_leaves_the_theory(self) -> None:
        numbers = HardIsBrittle().measure(Run())
        numbers["slopes"][0] *= 2
        assert HardIsBrittle().judge(numbers).verdict is ClaimVerdict.FAILS


class TestA6:
    def test_breaks_at_the_logarithm_of_the_largest_number(self) -> None:
        numbers = ShiftedSoftmax().measure(Run())
        assert numbers["fp16"]["over"][0]["last"] == pytest.approx(11.09, abs=0.01)
        assert numbers["fp32"]["over"][0]["last"] == pytest.approx(88.7228, abs=1e-3)
        assert not numbers["fp16"]["many"]["shifted"]
        assert all(numbers[name]["many"]["wide"] for name in ("fp16", "bf16", "fp32"))

    def test_fails_where_the_unshifted_one_never_breaks(self) -> None:
        assert verdict(replace(ShiftedSoftmax(), naive=wide)) is ClaimVerdict.FAILS

    def test_fails_where_the_shift_is_left_out(self) -> None:
        assert verdict(replace(ShiftedSoftmax(), shifted=naive)) is ClaimVerdict.FAILS

    def test_holds_for_fewer_keys_than_fp16_can_count(self) -> None:
        assert verdict(replace(ShiftedSoftmax(), many=60000)) is ClaimVerdict.HOLDS
