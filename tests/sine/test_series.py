"""The committed tables say the truth about themselves."""

from itertools import pairwise

import pytest
import torch

from regard.sine import KINDS, load, ranks
from regard.sine.activation import slope, value
from regard.sine.fit import BULK, FIT_GOALS, fit, tolerance
from regard.sine.series import FAST_RANK, MATCHED_RANK, TABLES, rows

BOUNDED = ("fast", "matched", "uniform")
EVERY = [(kind, rank) for kind in KINDS for rank in ranks(kind)]


def series_errors(row, x):
    """Errors of value and derivative at x."""
    w, c = (torch.tensor(y, dtype=torch.float64) for y in (row.frequencies, row.coefficients))
    wx = x.unsqueeze(-1) * w
    y = row.linear * x + (c * wx.sin()).sum(-1)
    dy = row.linear + (c * w * wx.cos()).sum(-1)
    return (y - x.tanh()).abs(), (dy - 1 + x.tanh() ** 2).abs()


def largest_errors(row, points=4001):
    """Largest errors on a grid that the fit did not use, then closely around the worst points."""
    x = torch.linspace(-row.reach, row.reach, points, dtype=torch.float64)
    step = float(x[1] - x[0]) * torch.linspace(-1, 1, 401, dtype=torch.float64)
    found = []
    for place, errors in enumerate(series_errors(row, x)):
        worst = x[errors.topk(20).indices]
        near = (worst.unsqueeze(-1) + step).flatten().clamp(-row.reach, row.reach)
        found.append(float(series_errors(row, near)[place].max()))
    return found


def at_reach(kind, rank, reach=8.0):
    return next(row for row in rows(kind, rank) if row.reach == reach)


@pytest.mark.parametrize(("kind", "rank"), EVERY)
def test_stated_errors_hold(kind, rank):
    for row in rows(kind, rank):
        for found, stated in zip(largest_errors(row), (row.error, row.slope_error), strict=True):
            assert 0.99 * stated < found <= stated, (
                row.reach,
                "and the statement is not a loose one",
            )


@pytest.mark.parametrize(("kind", "rank"), EVERY)
def test_typical_errors_are_those_of_a_normal_sum(kind, rank):
    for row in rows(kind, rank):
        x = torch.randn(20_000, dtype=torch.float64) * (row.reach / 5)
        x = x[x.abs() <= row.reach]
        for found, stated in zip(
            series_errors(row, x), (row.typical, row.typical_slope), strict=True
        ):
            assert float(found.square().mean().sqrt()) == pytest.approx(stated, rel=0.3)


@pytest.mark.parametrize(("kind", "rank"), EVERY)
def test_numbers_are_tame(kind, rank):
    """Large coefficients would cancel, and large frequencies turn fast: both lose digits."""
    for row in rows(kind, rank):
        assert len(row.frequencies) == len(row.coefficients) == rank
        gaps = torch.tensor([0.0, *row.frequencies]).diff()
        assert float(gaps.min()) > 1e-3, "positive, in order and distinct"
        assert row.frequencies[-1] < 20
        assert 0 < row.linear < 1 and sum(map(abs, row.coefficients)) < 2


@pytest.mark.parametrize("kind", BOUNDED)
def test_more_terms_err_less_and_longer_reaches_more(kind):
    for number, reach in enumerate(row.reach for row in rows(kind, 4)):
        if reach >= 5:
            for stated in ("error", "typical"):
                by_rank = [getattr(rows(kind, rank)[number], stated) for rank in ranks(kind)]
                assert by_rank == sorted(by_rank, reverse=True), (stated, reach)
    for rank in ranks(kind):
        far = [row.typical for row in rows(kind, rank) if row.reach >= 5]
        assert all(y > 0.97 * x for x, y in pairwise(far)), rank


@pytest.mark.parametrize("rank", [4, 6, 8])
@pytest.mark.parametrize("kind", ["fast", "matched"])
def test_the_taper_trades_the_end_of_the_range_for_the_bulk(kind, rank):
    row, uniform = at_reach(kind, rank), at_reach("uniform", rank)
    assert row.typical < 0.6 * uniform.typical and row.typical_slope < 0.6 * uniform.typical_slope
    assert uniform.error < row.error < FIT_GOALS[kind].taper * uniform.error
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    scaled = series_errors(row, x)[0] / tolerance(x, 8.0, FIT_GOALS[kind].taper)
    assert float(scaled.max()) < 0.6 * uniform.error
    assert float(scaled.max()) < 2 * float(scaled[x.abs() < BULK * 8].max()), "it is level"


@pytest.mark.parametrize("rank", [4, 6, 8])
def test_uniform_has_the_least_bound(rank):
    for row in rows("uniform", rank):
        for kind in ("fast", "matched"):
            assert row.reach < 3 or row.error < at_reach(kind, rank, row.reach).error


def test_the_ranks_that_are_recommended_err_as_little_as_half_precision():
    """bf16 has 8 bits: the typical error of a unit, and of a derivative where that is promised."""
    assert at_reach("fast", FAST_RANK).typical < 2**-8
    assert at_reach("matched", MATCHED_RANK).typical_slope < 2**-9


def test_every_kind_of_bounded_series_has_the_same_reaches():
    """A hidden unit's row does not depend on the kind or rank."""
    reaches = {tuple(row.reach for row in rows(kind, r)) for kind in BOUNDED for r in ranks(kind)}
    assert len(reaches) == 1
    (grid,) = reaches
    assert list(grid) == sorted(set(grid)) and grid[-1] == 16


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOUNDED)
def test_the_fit_gives_the_table_again(kind):
    kept = at_reach(kind, 6)
    row = fit(FIT_GOALS[kind], 6, 8.0)
    assert row.error == pytest.approx(kept.error, rel=0.25)
    assert row.typical == pytest.approx(kept.typical, rel=0.15)


def test_the_density_weighted_fit_is_better_where_the_density_is():
    x = torch.randn(100_000, dtype=torch.float64) * 2**0.5
    off = {kind: series_errors(at_reach(kind, 4), x)[0].square().mean() for kind in KINDS}
    assert float(off["normal"]) < float(off["uniform"]) / 16
    assert float(off["normal"]) < float(off["fast"]) / 2


def test_the_activation_is_the_row_and_its_slope_its_derivative():
    x = torch.linspace(-20, 20, 101, dtype=torch.float64, requires_grad=True)
    y = value(x, 8.0)
    (dy,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope(x, y, 8.0), dy)
    inside = x.detach().abs() <= 8
    off = (y - x.tanh()).detach()[inside].abs().max()
    assert float(off) <= at_reach("uniform", 6).error


def test_unknown_kinds_and_ranks_are_refused_by_name():
    assert set(TABLES) == set(KINDS)
    with pytest.raises(ValueError, match="did you mean 'fast'"):
        load("fest", 6)
    with pytest.raises(ValueError, match="ranks: 3, 4, 5"):
        load("fast", 2)


def test_tables_loaded_in_inference_mode_serve_training_later(monkeypatch):
    monkeypatch.setattr("regard.sine.series._loaded", {})
    with torch.inference_mode():
        load("fast", 4)
    x = torch.ones(4, requires_grad=True)
    (x * load("fast", 4).frequencies[0]).sum().backward()
    assert x.grad is not None
