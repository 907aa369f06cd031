"""What sequences of a batch have in common at the same places."""

from __future__ import annotations

import pytest
import torch

from regard.doctor.seen import Seen
from regard.doctor.vitals import INDEX, measure

B, H, K, L, D = 6, 4, 2, 24, 16


def column(seen: Seen, name: str, level: str = "sampled") -> torch.Tensor:
    return measure(seen, level)[:, INDEX[name]]


def sides(place: float, content: float) -> torch.Tensor:
    """(B, 1, L, D) of two parts: the same in all sequences, and different in all."""
    return place * torch.randn(1, 1, L, D) + content * torch.randn(B, 1, L, D)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.8, 1.0])
def test_value_place_is_the_share_of_variance(share):
    value = torch.cat([sides(share**0.5, (1 - share) ** 0.5) for _ in range(K)], 1)
    seen = Seen(torch.randn(B, H, L, D), torch.randn(B, K, L, D), value)
    found = column(seen, "value_place")
    assert found.shape == (H,) and ((found - share).abs() < 0.08).all()


def test_place_share_of_a_bias():
    """Logits that are content of variance 1 and a bias of variance v."""
    query, key = torch.randn(B, H, L, D), torch.randn(B, H, L, D)
    for v in (0.0, 1.0, 9.0):
        bias = v**0.5 * torch.randn(1, H, L, L)
        seen = Seen(query, key, torch.randn(B, H, L, D), D**-0.5, bias)
        for level in ("sampled", "exact"):
            assert ((column(seen, "place_share", level) - v / (1 + v)).abs() < 0.15).all()


def test_place_share_of_logits_that_were_seen_alone():
    logits = torch.randn(1, H, L, L).expand(B, -1, -1, -1)
    torch.testing.assert_close(column(Seen(logits=logits), "place_share"), torch.ones(H))
    assert column(Seen(logits=torch.randn(B, H, L, L)), "place_share").abs().max() < 0.15


def test_padding_does_not_count():
    """Places that a sequence hides, whatever stands there, change nothing."""
    logits = torch.randn(B, H, L, L)
    visible = torch.arange(L) < torch.tensor([L, L, 9, 12, 20, L])[:, None, None, None]
    hidden = logits.masked_fill(~visible, -torch.inf)
    other = torch.where(visible, logits, 77.0).masked_fill(~visible, -torch.inf)
    first, second = (column(Seen(logits=x), "place_share") for x in (hidden, other))
    assert torch.equal(first, second) and first.abs().max() < 0.15


def test_one_sequence_has_nothing_to_compare_with():
    seen = Seen(torch.randn(1, H, L, D), torch.randn(1, K, L, D), torch.randn(1, K, L, D))
    assert column(seen, "place_share").isnan().all()
    assert column(seen, "value_place").isnan().all()
    assert column(seen, "value_alike").isfinite().all()


def test_value_alike():
    common, own = torch.randn(B, K, 1, D), torch.randn(B, K, L, D)
    query, key = torch.randn(B, H, L, D), torch.randn(B, K, L, D)
    alike = column(Seen(query, key, common.expand(-1, -1, L, -1)), "value_alike")
    torch.testing.assert_close(alike, torch.ones(H))
    assert column(Seen(query, key, own), "value_alike").max() < 0.15
    half = column(Seen(query, key, common + own), "value_alike")
    assert ((half - 0.5).abs() < 0.2).all()
