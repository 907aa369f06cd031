"""What distance explains, and which distances are looked at."""

from __future__ import annotations

import pytest
import torch

from regard.doctor.seen import Seen
from regard.doctor.vitals import Level, measure
from regard.doctor.vitals.position import ladder

from .vitals_tools import randn, vital

LENGTH = 96


def share(bias: torch.Tensor, noise: float, **options) -> torch.Tensor:
    query, key = randn(2, 3, LENGTH, 16), randn(2, 3, LENGTH, 16, seed=1)
    seen = Seen(query, key, scale=noise / 4, bias=bias, **options)
    return vital(measure(seen, Level.SAMPLED), "distance_share")


def distances() -> torch.Tensor:
    place = torch.arange(LENGTH)
    return place[:, None] - place


def test_rungs():
    assert ladder(13, torch.device("cpu")).tolist() == [
        *[0, 1, 2, 3, 4, 6, 8, 12],
        *[-1, -2, -3, -4, -6, -8, -12],
    ]
    assert ladder(2, torch.device("cpu")).tolist() == [0, 1, -1]
    assert ladder(1, torch.device("cpu")).tolist() == [0]


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_the_distance_explains_everything(causal):
    """ALiBi, and one that has nothing to do with a line."""
    for bias in (-0.1 * distances().abs(), torch.sin(1.7 * distances())):
        assert (share(bias, 1e-3, causal=causal) > 0.999).all()


def test_no_bias_explains_nothing():
    assert (share(torch.zeros(1, 1), 1.0) < 0.02).all()


def test_the_share_is_that_of_variances():
    """Unit variance by content and four by distance: 0.8, within what a sample of it can say."""
    table = 2 * randn(2 * LENGTH, seed=5)
    found = share(table[distances() + LENGTH], 1.0)
    assert ((found - 0.8).abs() < 0.1).all()


def test_a_term_of_the_query_does_not_count():
    """It changes no weight."""
    assert (share(50 * randn(LENGTH, 1, seed=5), 1.0) < 0.02).all()


def test_a_window_leaves_the_distances_it_shows():
    """Each query sees eight keys."""
    visible = (distances() >= 0) & (distances() < 8)
    assert (share(-0.5 * distances(), 1e-3, visible=visible) > 0.999).all()


def test_nothing_to_compare_is_not_defined():
    """One distance for all queries."""
    assert share(torch.zeros(1, 1), 1.0, visible=distances() == 1).isnan().all()


def test_the_last_query_sits_at_the_last_key():
    """Four new queries after twelve cached keys, each with all its weight on the key before it."""
    query, key = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 16, 2)
    visible = torch.arange(16) == torch.arange(11, 15)[:, None]
    row = measure(Seen(query, key, visible=visible), Level.EXACT)
    assert vital(row, "previous_share").item() == 1
    assert vital(row, "own_share").isnan()
