"""Claims I1 and I2: gain of a neuron and gates of genes, and that the verdicts can come out otherwise."""

from dataclasses import replace

import pytest
import torch

from regard.claims import ClaimVerdict, Run
from regard.claims.experiments.i1_neuron_gain import NEURON, NeuronGain
from regard.claims.experiments.i2_gates import GATES, Gate, Gates, competitors
from regard.claims.tools.learning import Budget
from regard.claims.tools.neuron import Neuron

from .checking import check_figure, from_disk, verdict

FEW = {"AND": GATES["AND"], "OR": GATES["OR"]}
SHORT = Budget(steps=100, batch=64, rates=(0.3,), held=256)


SMALL = NeuronGain(quick=(3, 12), contexts=(0.0, 400.0))


def test_i1_holds_at_the_dendrite():
    numbers = from_disk(SMALL.measure(Run()))
    check_figure(SMALL, numbers)
    found = SMALL.judge(numbers)
    assert found.verdict == ClaimVerdict.HOLDS
    assert found.facts[-1].low > 0  # in the control a shift explains more


def test_i1_fails_where_the_context_is_a_current_into_the_soma():
    claim = replace(SMALL, place="soma", neuron=replace(NEURON, lasting=500.0))
    assert verdict(claim) == ClaimVerdict.FAILS


def test_a_shift_and_a_slope_are_told_apart_exactly():
    currents = torch.tensor(SMALL.currents).double()
    curve = lambda x: (x + 500).clamp(min=0).square() / 1e5  # noqa: E731
    shifted = torch.stack([curve(currents), curve(currents + 200)])
    steeper = torch.stack([curve(currents), 1.5 * curve(currents)])
    assert SMALL.explained(shifted, "shift") > 0.999 > 0.99 > SMALL.explained(shifted, "slope")
    assert SMALL.explained(steeper, "slope") > 0.999 > 0.99 > SMALL.explained(steeper, "shift")


def test_a_neuron_without_input_is_silent_and_with_more_fires_more():
    quiet = Neuron(noise=0.0, lasting=400.0)
    currents, context = torch.tensor([0.0, 600.0, 1200.0]), torch.tensor([0.0])
    found = quiet.rates(currents, context, "soma", 1, 1, torch.Generator(), Run())[0, 0]
    assert found[0] == 0
    assert 0 < found[1] < found[2]


def test_a_gate_follows_its_truth_table():
    x, y, target = Gate(GATES["x∧¬y"]).sample(200, torch.Generator().manual_seed(0))
    assert torch.equal(target > 0.5, ((x > 0.5) & (y < 0.5)).squeeze(-1))
    assert float(x.min()) >= 0
    assert float(Gate(signed=True).sample(200, torch.Generator().manual_seed(0))[0].min()) < -0.9


def pair(first, second):
    """Product and sum, made of these."""
    builds = competitors()
    return {"product": builds[first], "sum": builds[second]}


def test_i2_holds_with_conditions_because_a_sum_is_and_as_well():
    claim = Gates(builds=pair("product", "sum"), gates=FEW, quick=SHORT)
    numbers = from_disk(claim.measure(Run()))
    check_figure(claim, numbers)
    found = claim.judge(numbers)
    assert found.verdict == ClaimVerdict.CONDITIONS
    assert "sum x + y learns all" in found.because.en
    assert "product x·y learns AND" in found.because.en


def test_i2_fails_where_the_product_is_a_sum_of_nothing():
    untrained = replace(SHORT, rates=(1e-6,))
    claim = Gates(builds=pair("product", "sum"), gates=FEW, quick=untrained)
    assert verdict(claim) == ClaimVerdict.FAILS


def learned(product, total):
    row = lambda known: {gate: [1.0 if gate in known else 0.8] * 3 for gate in FEW}  # noqa: E731
    one = {"product": row(product), "sum": row(total)}
    return {"accuracy": {"concentration": one, "signed": one}}


@pytest.mark.parametrize(
    ("product", "total", "expected"),
    [
        (["AND"], ["OR"], ClaimVerdict.HOLDS),
        (["AND"], ["AND", "OR"], ClaimVerdict.CONDITIONS),
        (["OR"], ["AND"], ClaimVerdict.FAILS),
        ([], ["OR"], ClaimVerdict.FAILS),
    ],
)
def test_i2_can_come_out_otherwise(product, total, expected):
    assert Gates().judge(learned(product, total)).verdict == expected
