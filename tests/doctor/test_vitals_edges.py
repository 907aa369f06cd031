"""The table, empty and broken calls, how "hidden" is written, and what a wrong call is told."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.doctor.seen import Seen
from regard.doctor.vitals import INDEX, VITALS, Level, SeenForm, measure, pick_rows

from .vitals_tools import CALLS, HEADS, make, randn, vital


def kinds() -> dict[SeenForm, Seen]:
    """A call of each kind in which every vital that the kind allows can be measured."""
    inner = make(sink=torch.zeros(HEADS)).seen
    pairwise = make(lambda: regard.Additive(8, HEADS), sink=torch.zeros(HEADS)).seen
    logits = Seen(
        logits=inner.query @ inner.key.mT,
        value=inner.value,
        sink=inner.sink,
        made_of=(inner.query, inner.key),
        hidden=torch.tanh(torch.randn(4, 8)),
    )
    return {SeenForm.INNER: inner, SeenForm.PAIRWISE: pairwise, SeenForm.LOGITS: logits}


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("kind", SeenForm)
def test_the_table_says_what_is_measured(kind, level):
    row = measure(kinds()[kind], level)
    assert row.shape == (HEADS, len(VITALS)) and row.dtype == torch.float32
    for vital_, column in zip(VITALS, row.T, strict=True):
        cheap = vital_.level is Level.CHEAP and not (
            vital_.name in ("logit_mean", "logit_var") and kind is not SeenForm.INNER
        )
        due = kind in vital_.kinds and (cheap or level is not Level.CHEAP) and not vital_.backward
        assert column.isnan().any() != due, vital_.name


def test_names_are_unique_and_found():
    assert len(INDEX) == len(VITALS)
    assert all(VITALS[place].name == name for name, place in INDEX.items())
    assert all(vital_.meaning and "\n" not in vital_.meaning for vital_ in VITALS)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0), (2, 0, 3, 4)])
@pytest.mark.parametrize("level", Level)
def test_empty_calls(shape, level):
    batch, heads, queries, keys = shape
    for seen in (
        Seen(torch.ones(batch, heads, queries, 5), torch.ones(batch, heads, keys, 5)),
        Seen(logits=torch.ones(shape)),
    ):
        row = measure(seen, level)
        assert row.shape == (heads, len(VITALS)) and row.isnan().all()


def test_one_query_and_one_key():
    row = measure(make(shape=(2, 3, 1, 1)).seen, Level.EXACT)
    assert (vital(row, "max_weight") == 1).all() and (vital(row, "sink_weight") == 1).all()
    assert (vital(row, "jacobian") == 0).all()
    for name in ("entropy", "key_spread", "distance_share", "head_similarity", "previous_share"):
        assert vital(row, name).isnan().all(), name


@pytest.mark.parametrize("kind", SeenForm)
def test_nothing_visible(kind):
    seen = kinds()[kind]
    seen = seen._replace(visible=torch.zeros(1, 1, dtype=torch.bool))
    row = measure(seen, Level.EXACT)
    assert (vital(row, "masked_rows") == 1).all() and (vital(row, "visible_share") == 0).all()
    for name in ("entropy", "max_weight", "logit_max", "sink_value", "output_rank", "c50"):
        assert vital(row, name).isnan().all(), name


@pytest.mark.parametrize(
    ("fill", "dtype"),
    [
        (-torch.inf, torch.float32),
        (torch.finfo(torch.float32).min, torch.float32),
        (torch.finfo(torch.bfloat16).min, torch.bfloat16),
        (torch.finfo(torch.float16).min, torch.float16),
        (-1e9, torch.float32),
    ],
)
def test_every_way_to_write_hidden(fill, dtype):
    """As a bias, and added to logits that are then all there is to see."""
    visible = randn(13, 17, seed=7) > 0
    call = make(visible=visible)
    expected = measure(call.seen, Level.EXACT)
    bias = torch.zeros(13, 17, dtype=dtype).masked_fill(~visible, fill)
    found = measure(call.seen._replace(visible=None, bias=bias), Level.EXACT)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-5)
    logits = call.seen.scale * (call.seen.query @ call.seen.key.mT) + bias.double()
    alone = measure(Seen(logits=logits, value=call.seen.value), Level.EXACT)
    for name in ("entropy", "visible_share", "jacobian", "sink_weight", "output_rank"):
        torch.testing.assert_close(vital(alone, name), vital(expected, name), rtol=1e-4, atol=1e-5)


def test_an_old_way_to_write_hidden():
    """-1e4 added to the logits, as early BERT did."""
    logits = randn(1, 2, 5, 6)
    logits[..., 4:] -= 1e4
    row = measure(Seen(logits=logits), Level.EXACT)
    torch.testing.assert_close(vital(row, "visible_share"), torch.full((2,), 2 / 3).double())


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_broken_row_does_not_hide_the_others(broken):
    call = make(dtype=torch.float32)
    query = call.seen.query.clone()
    query[1, 2, 5] = broken
    row = measure(call.seen._replace(query=query), Level.EXACT)
    healthy = measure(call.seen, Level.EXACT)
    name = "nan_logits"  # Inf times both signs is NaN too
    assert vital(row, name).tolist() == [0, 0, 1, 0]
    for name in ("entropy", "max_weight", "jacobian", "logit_max"):
        assert vital(row, name).isfinite().all()
        torch.testing.assert_close(row[:2, INDEX[name]], healthy[:2, INDEX[name]])


def test_infinite_logits_are_counted():
    logits = randn(1, 2, 5, 6)
    logits[0, 1, 3, 2] = torch.inf
    row = measure(Seen(logits=logits), Level.EXACT)
    assert vital(row, "inf_logits").tolist() == [0, 1]
    assert vital(row, "nan_logits").tolist() == [0, 0]


def test_what_is_hidden_is_not_read():
    """NaN in a hidden key does not reach what rows tell."""
    visible = torch.arange(17) < 12
    call = make(visible=visible)
    key, value = call.seen.key.clone(), call.seen.value.clone()
    key[:, :, 12:] = torch.nan
    row = measure(call.seen._replace(key=key, value=value), Level.EXACT)
    healthy = measure(call.seen, Level.EXACT)
    for name in ("entropy", "max_weight", "jacobian", "logit_max", "sink_weight", "output_rank"):
        assert torch.equal(row[:, INDEX[name]], healthy[:, INDEX[name]])
    assert (vital(row, "nan_logits") == 0).all()


def test_saturated_tanh():
    """By a formula: all pairs in the middle, all far out, and the share of those beyond 1.8."""
    one = regard.Additive(8, HEADS).lower(torch.zeros(2, HEADS, 5, 8), torch.zeros(2, HEADS, 9, 8))
    row = measure(Seen(pairwise=one), Level.SAMPLED)
    assert (vital(row, "tanh_saturated") == 0).all() and (vital(row, "tanh_slope") == 1).all()
    a, b = 2 * randn(2, HEADS, 30, 8), 2 * randn(2, 2, 20, 8, seed=1)
    form = type(one)(a, b, one.v, "tanh")
    visible = randn(30, 20, seed=2) > 0
    total = a.unsqueeze(-2) + b.repeat_interleave(2, 1).unsqueeze(-3)
    slope = (1 - total.tanh().square())[:, :, visible]
    row = measure(Seen(pairwise=form, visible=visible), Level.SAMPLED)
    torch.testing.assert_close(
        vital(row, "tanh_saturated"), (slope < 0.1).double().mean((0, 2, 3)), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(vital(row, "tanh_slope"), slope.mean((0, 2, 3)), rtol=1e-5, atol=0)
    leaky = CALLS["gatv2"]().seen
    assert vital(measure(leaky, Level.SAMPLED), "tanh_slope").isnan().all()


def test_a_pairwise_form_whose_v_differs_by_query():
    """As a temperature for each query makes it."""
    call = make(lambda: regard.Additive(8, HEADS), causal=True)
    form, heat = call.seen.pairwise, 1 + torch.arange(13.0).double()
    v = form.v / heat[:, None]
    warm = type(form)(form.a, form.b, v.expand(2, -1, -1, -1), form.activation)
    logits = (torch.tanh(form.a.unsqueeze(-2) + form.b.unsqueeze(-3)) @ form.v.unsqueeze(-1))[
        ..., 0
    ]
    seen = Seen(logits=logits / heat[:, None], causal=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.doctor.vitals.logits.PAIRWISE_TILE", 5000)
        found = measure(Seen(pairwise=warm, causal=True), Level.EXACT)
    for name in ("entropy", "logit_max", "jacobian", "logit_var"):
        expected = measure(seen, Level.EXACT)[:, INDEX[name]]
        torch.testing.assert_close(found[:, INDEX[name]], expected)


def test_a_sink_that_does_nothing_is_told_from_one_that_does():
    key, query, value = 0.1 * randn(1, 2, 40, 8), randn(1, 2, 40, 8, seed=1), randn(1, 2, 40, 8)
    query[..., 0], key[..., 0], key[:, :, 0, 0] = 2.0, 0.0, 3.0
    value[:, 0, 0] *= 0.01
    row = measure(Seen(query, key, value), Level.SAMPLED)
    assert (vital(row, "sink_weight") > 0.8).all() and (vital(row, "first_share") > 0.8).all()
    assert vital(row, "sink_value")[0] < 0.05 and vital(row, "sink_output")[0] < 0.5
    assert vital(row, "sink_value")[1] > 0.5 and vital(row, "sink_output")[1] > 0.9
    assert vital(row, "output_alike")[1] > 0.9


@pytest.mark.parametrize("queries", [1, 5, 64, 65, 1000, 4096])
def test_rows_are_spread_and_move(queries):
    seen_rows = set()
    for step in range(200):
        rows = pick_rows(queries, 64, step, "cpu")
        assert torch.equal(rows, pick_rows(queries, 64, torch.tensor(step), "cpu"))
        assert rows.unique().numel() == rows.numel() == min(queries, 64)
        assert rows.min() >= 0 and rows.max() < queries
        if queries > 64:
            gaps = rows.diff()
            assert gaps.max() - gaps.min() <= 1
        seen_rows |= set(rows.tolist())
    assert len(seen_rows) == queries


def test_a_level_by_name():
    seen = make().seen
    expected = measure(seen, Level.SAMPLED)
    assert torch.equal(measure(seen, "sampled").nan_to_num(), expected.nan_to_num())
    with pytest.raises(ValueError, match="'thorough' is not a valid Level"):
        measure(seen, "thorough")


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen(), "none of them"),
        (Seen(query=torch.ones(1, 1, 2, 2)), "in part"),
        (
            Seen(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), logits=torch.ones(1, 1, 2, 2)),
            "query and key and logits",
        ),
        (Seen(torch.ones(2, 3), torch.ones(2, 3)), "batch, heads, length, width"),
        (Seen(torch.ones(1, 4, 2, 2), torch.ones(1, 3, 2, 2)), "divide"),
        (Seen(logits=torch.ones(1, 4, 2, 2), value=torch.ones(1, 3, 2, 2)), "divide"),
    ],
)
def test_a_wrong_call_is_told_so(seen, words):
    with pytest.raises(ValueError, match=words):
        measure(seen, Level.CHEAP)
