"""A genuine NaN is not hidden: it reaches the rows that see it, and no other."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import INF, NAN, OWN_PAIRS, PAIRS, PAIRS_AND_PLAIN, assert_same, inputs, make_score

QUERIES = KEYS = 5


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_nan_in_a_query_reaches_its_own_row_alone(engine, name, masked):
    """SDPA's CPU kernel takes a row of NaN logits for a masked one and gives 0 (under 16 keys)."""
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool) if masked else None
    expected = regard.attention(*tensors, score, mask=mask, engine=engine)
    tensors[0][0, 1, 2, 0] = NAN
    output = regard.attention(*tensors, score, mask=mask, engine=engine)
    assert output[0, 1, 2].isnan().all()
    rest = torch.ones(2, 2, QUERIES, dtype=torch.bool)
    rest[0, 1, 2] = False
    assert_same([output[rest]], [expected[rest]])


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_nan_in_a_key_or_value_reaches_every_row_of_its_head(engine, name, side):
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    expected = regard.attention(*tensors, score, engine=engine)
    tensors[side][0, 1, 2, 0] = NAN
    output = regard.attention(*tensors, score, engine=engine)
    column = output[0, 1] if side == 1 else output[0, 1, :, 0]
    assert column.isnan().all()
    assert_same([output[1], output[0, 0]], [expected[1], expected[0, 0]])
    if side == 2:  # the other columns of the value are sound
        assert_same([output[0, 1, :, 1:]], [expected[0, 1, :, 1:]])


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_nan_under_a_causal_mask_reaches_the_rows_that_see_it(engine, name, side):
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    tensors[side][:, :, 2] = NAN
    output = regard.attention(*tensors, score, mask=Mask.causal(), engine=engine)
    assert output[:, :, :2].isfinite().all()
    assert output[:, :, 2:].isnan().all()


@pytest.mark.parametrize("side", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_engines_agree_where_nan_is_visible(name, masked, temperature, side):
    """The specification decides; a hard look-up reads the scores of all keys it sees."""
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    tensors[side][0, 1, 2] = NAN
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril() if masked else None
    options = {"mask": mask, "temperature": temperature}
    expected = regard.attention(*tensors, score, engine="reference", **options)
    output = regard.attention(*tensors, score, engine="cpu", **options)
    assert_same([output], [expected])


@pytest.mark.parametrize("value", [INF, -INF])
@pytest.mark.parametrize("name", ["scaled_dot", "additive", "gatv2"])
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_mask_that_hides_nothing_changes_nothing_for_a_visible_inf(engine, name, value):
    """tanh(inf) is 1: a visible Inf is a number like any other, with or without a mask."""
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    tensors[1][0, 1, 2, 0] = value
    everything = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    expected = regard.attention(*tensors, score, engine=engine)
    output = regard.attention(*tensors, score, mask=everything, engine=engine)
    assert_same([output], [expected])


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_statistics_of_a_nan_row_are_nan_and_the_others_sound(engine, name):
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    want = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
    expected = regard.attend(*tensors, score, want=want, engine=engine)
    tensors[0][0, 1, 2] = NAN
    result = regard.attend(*tensors, score, want=want, engine=engine)
    rest = torch.ones(2, 2, QUERIES, dtype=torch.bool)
    rest[0, 1, 2] = False
    for field, x, sound in zip(result._fields, result, expected, strict=True):
        assert x[0, 1, 2].isnan().all(), field
        assert_same([x[rest]], [sound[rest]])


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_nan_bias_reaches_its_row_alone(engine):
    tensors = [x.detach() for x in inputs(queries=QUERIES, keys=KEYS)]
    bias = torch.zeros(QUERIES, KEYS, dtype=torch.float64)
    expected = regard.attention(*tensors, bias=bias, engine=engine)
    bias[1, 0] = NAN
    output = regard.attention(*tensors, bias=bias, engine=engine)
    assert output[:, :, 1].isnan().all()
    rest = [0, 2, 3, 4]
    assert_same([output[:, :, rest]], [expected[:, :, rest]])
