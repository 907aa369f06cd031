"""c50 beside planting: a key is really made longer, and the captured queries are counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard.doctor.seen import Seen
from regard.doctor.vitals import Level, measure, pick_rows
from regard.doctor.vitals.c50 import NEVER, loudest_key
from regard.doctor.vitals.logits import size_of
from regard.doctor.vitals.weights import read_rows

from .vitals_tools import randn, vital

LENGTH, DIM, HEADS = 64, 16, 2


def queries_with_a_mean(size: float) -> Tensor:
    return randn(1, HEADS, LENGTH, DIM) + size * randn(1, HEADS, 1, DIM, seed=1)


def captured(seen: Seen, place: Tensor, factor: Tensor, **options) -> Tensor:
    """(H,): share of queries that give more than half of their weight to a key made longer."""
    key = seen.key.clone()
    for h in range(HEADS):
        key[0, h, place[0, h]] *= factor[h]
    found = regard.attend(
        seen.query * seen.scale,
        key,
        key,
        "dot",
        want=("weights",),
        engine="reference",
        bias=seen.bias,
        softcap=seen.softcap,
        mask=regard.Mask.causal() if seen.causal else None,
        **options,
    )
    weight = torch.stack([found.weights[0, h, :, place[0, h]] for h in range(HEADS)])
    return (weight > 0.5).double().mean(-1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"bias": randn(LENGTH, LENGTH, seed=9)},
        {"softcap": 20.0},
        {"softcap": 20.0, "bias": randn(LENGTH, LENGTH, seed=9), "causal": True},
        {"sink": torch.tensor([[4.0], [5.0]])},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [0.5, 1.0, 3.0])
def test_half_of_the_queries_fall_just_there(options, size):
    seen = Seen(queries_with_a_mean(size), randn(1, HEADS, LENGTH, DIM, seed=2), **options)
    seen = seen._replace(scale=DIM**-0.5)
    found = vital(measure(seen, Level.EXACT), "c50")
    rows = torch.arange(LENGTH)
    place = loudest_key(seen, read_rows(seen, size_of(seen), rows)[1])
    more = {} if seen.sink is None else {"sink": seen.sink.squeeze(-1).double()}
    assert (found < NEVER).all()
    assert (captured(seen, place, found * 1.0001, **more) >= 0.5).all()
    assert (captured(seen, place, found * 0.9999, **more) < 0.5).all()


@pytest.mark.parametrize("causal", [False, True])
def test_the_key_tried_is_nearly_the_easiest(causal):
    """All keys tried one by one; a queries' mean as large as their spread, where it matters."""
    query, key = queries_with_a_mean(1.0), randn(1, HEADS, LENGTH, DIM, seed=2)
    seen = Seen(query, key, scale=DIM**-0.5, causal=causal)
    logits = seen.scale * (query @ key.mT)
    hidden = ~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() if causal else torch.zeros(1) > 0
    factors = []
    for j in range(LENGTH):
        others = logits.masked_fill(hidden, -torch.inf)
        others[..., j] = -torch.inf
        factor = others.logsumexp(-1) / logits[..., j]
        factor = torch.where((logits[..., j] > 0), factor.clamp(min=0), torch.inf)
        factor = factor.masked_fill(hidden.expand(LENGTH, LENGTH)[:, j], torch.inf)
        factors.append(factor.sort(-1).values[..., (LENGTH - 1) // 2])
    least = torch.stack(factors).amin(0)[0]
    found = vital(measure(seen, Level.EXACT), "c50")
    assert (found >= least * (1 - 1e-5)).all() and (found <= 1.2 * least).all()


def test_a_sample_tells_about_the_same():
    query, key = randn(1, 4, 1024, 64) + 0.5 * randn(1, 4, 1, 64, seed=1), randn(1, 4, 1024, 64)
    seen = Seen(query, key, scale=0.125)
    exact = vital(measure(seen, Level.EXACT), "c50")
    sampled = vital(measure(seen, Level.SAMPLED, pick_rows(1024, 64, 1, "cpu")), "c50")
    assert ((sampled / exact - 1).abs() < 0.3).all()


def test_queries_without_a_mean_are_safe():
    """Half of them look away from any key: only a very long one gets the rest."""
    seen = Seen(randn(1, 4, 1024, 64), randn(1, 4, 1024, 64, seed=1), scale=0.125)
    assert (vital(measure(seen, Level.SAMPLED), "c50") > 20).all()


def test_a_key_that_has_them_already():
    key = randn(1, 1, 20, 8)
    key[0, 0, 4] = 3.0
    seen = Seen(torch.ones(1, 1, 9, 8), key, scale=1.0)
    assert 0 < vital(measure(seen, Level.EXACT), "c50").item() < 1


def test_a_low_cap_keeps_every_key_out():
    """`tanh` of anything times 2 cannot exceed the log-sum-exp of a hundred keys."""
    seen = Seen(torch.ones(1, 1, 9, 8), randn(1, 1, 100, 8), scale=1.0, softcap=2.0)
    assert vital(measure(seen, Level.EXACT), "c50").item() == NEVER
