"""The committed tables say the truth about themselves."""

import pytest
import torch

from regard.sine import KINDS, load, ranks
from regard.sine.activation import slope, value
from regard.sine.fit import fit
from regard.sine.series import TABLES, rows

EVERY = [(kind, rank) for kind in ("fast", "matched") for rank in ranks(kind)]


def errors(row, points=4001):
    """Largest errors of value and derivative on a grid that the fit did not use."""
    x = torch.linspace(-row.reach, row.reach, points, dtype=torch.float64)
    w, c = (torch.tensor(y, dtype=torch.float64) for y in (row.frequencies, row.coefficients))
    wx = x.unsqueeze(-1) * w
    y = row.linear * x + (c * wx.sin()).sum(-1)
    dy = row.linear + (c * w * wx.cos()).sum(-1)
    return float((y - x.tanh()).abs().max()), float((dy - 1 + x.tanh() ** 2).abs().max())


@pytest.mark.parametrize(("kind", "rank"), EVERY)
def test_stated_errors_hold(kind, rank):
    for row in rows(kind, rank):
        error, slope_error = errors(row)
        assert error <= row.error * 1.001 + 1e-12
        assert slope_error <= row.slope_error * 1.001 + 1e-12
        assert error > 0.9 * row.error, "the statement is not a loose one"


@pytest.mark.parametrize("rank", [4, 6, 8])
def test_matched_gives_a_little_value_for_much_derivative(rank):
    fast = next(row for row in rows("fast", rank) if row.reach == 8)
    matched = next(row for row in rows("matched", rank) if row.reach == 8)
    assert matched.slope_error < fast.slope_error / 3
    assert matched.error < 1.5 * fast.error


def test_more_terms_err_less_and_longer_reaches_more():
    for kind in ("fast", "matched"):
        at_eight = [
            next(row.error for row in rows(kind, rank) if row.reach == 8) for rank in ranks(kind)
        ]
        assert at_eight == sorted(at_eight, reverse=True)
        for rank in ranks(kind):
            far = [row.error for row in rows(kind, rank) if row.reach >= 3]
            assert far == sorted(far)


@pytest.mark.slow
def test_the_fit_gives_the_table_again():
    row, kept = fit(6, 8.0, 0.25), next(row for row in rows("matched", 6) if row.reach == 8)
    assert row.error == pytest.approx(kept.error, rel=0.05)


@pytest.mark.slow
def test_the_density_weighted_fit_is_better_where_the_density_is():
    x = torch.randn(100_000, dtype=torch.float64) * 2**0.5
    mean_square = {}
    for kind in ("fast", "normal"):
        row = next(row for row in rows(kind, 4) if row.reach == 8)
        w, c = (torch.tensor(y, dtype=torch.float64) for y in (row.frequencies, row.coefficients))
        y = row.linear * x + (c * (x.unsqueeze(-1) * w).sin()).sum(-1)
        mean_square[kind] = float((y - x.tanh()).square().mean())
    assert mean_square["normal"] < mean_square["fast"] / 4


def test_the_activation_is_the_row_and_its_slope_its_derivative():
    x = torch.linspace(-20, 20, 101, dtype=torch.float64, requires_grad=True)
    y = value(x, 8.0)
    (dy,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope(x, y, 8.0), dy)
    inside = x.detach().abs() <= 8
    kept = next(row for row in rows("matched", 6) if row.reach == 8)
    assert float((y - x.tanh()).detach()[inside].abs().max()) <= kept.error


def test_unknown_kinds_and_ranks_are_refused_by_name():
    assert set(TABLES) == set(KINDS)
    with pytest.raises(ValueError, match="did you mean 'fast'"):
        load("fest", 6)
    with pytest.raises(ValueError, match="ranks: 4, 5, 6"):
        load("fast", 3)
