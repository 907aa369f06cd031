"""What must not change the answer: order of keys, constant shifts, the place in the batch, grouping.

These need no oracle. They hold for every engine and score.
"""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import (
    DIM,
    OWN_PAIRS,
    PAIRS,
    PAIRS_AND_PLAIN,
    SHORT_PAIRS,
    assert_same,
    draw,
    gradients,
    inputs,
    make_score,
)


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_permuting_keys_with_their_values_changes_nothing(engine, name):
    score, (q, k, v) = make_score(name, 2), inputs(keys=40)
    order, allowed = torch.randperm(40), draw(5, 40) > -0.5
    found = []
    for key, value, mask in ((k, v, allowed), (k[:, :, order], v[:, :, order], allowed[:, order])):
        output = regard.attention(q, key, value, score, mask=mask, engine=engine)
        found.append([output, *gradients(output, [q, k, v, *score.parameters()])])
    assert_same(*found)


@pytest.mark.parametrize("shift", [-1e4, -30.0, 30.0, 1e4])
@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_adding_a_constant_to_a_row_of_logits_changes_nothing(engine, shift):
    tensors, bias = inputs(), draw(5, 6)
    rows = shift * torch.rand(5, 1, dtype=torch.float64)
    expected = regard.attention(*tensors, bias=bias, engine=engine)
    output = regard.attention(*tensors, bias=bias + rows, engine=engine)
    assert_same([output], [expected])


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_a_constant_shift_moves_the_lse_and_nothing_else(engine, name):
    score, tensors = make_score(name, 2), inputs()
    want = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
    zero = torch.zeros(1, 1, dtype=torch.float64)
    plain = regard.attend(*tensors, score, want=want, bias=zero, engine=engine)
    moved = regard.attend(*tensors, score, want=want, bias=zero + 7, engine=engine)
    assert_same([moved.lse - 7, moved.max_logit - 7], [plain.lse, plain.max_logit])
    for field in ("output", "entropy", "max_weight", "jacobian", "weights"):
        assert_same([getattr(moved, field)], [getattr(plain, field)])


@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_the_place_in_the_batch_does_not_matter(engine, name):
    """Neither the slot nor the neighbours: one sequence alone gives what it gives in a batch."""
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(batch=4)]
    lengths = torch.tensor([6, 3, 5, 1])
    whole = regard.attention(*tensors, score, mask=Mask.lengths(keys=lengths), engine=engine)
    order = torch.tensor([2, 0, 3, 1])
    mixed = regard.attention(
        *(x[order] for x in tensors), score, mask=Mask.lengths(keys=lengths[order]), engine=engine
    )
    assert_same([mixed], [whole[order]])
    for b in range(4):
        mask = Mask.lengths(keys=lengths[b : b + 1])
        alone = regard.attention(*(x[b : b + 1] for x in tensors), score, mask=mask, engine=engine)
        assert_same([alone], [whole[b : b + 1]])


@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_queries_do_not_know_of_each_other(engine, name):
    score, (q, k, v) = make_score(name, 2), inputs(queries=5)
    whole = regard.attention(q, k, v, score, engine=engine)
    for i in range(5):
        alone = regard.attention(q[:, :, i : i + 1], k, v, score, engine=engine)
        assert_same([alone], [whole[:, :, i : i + 1]])


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_a_masked_key_may_as_well_not_be_there(engine, name):
    """Each query alone, with the keys it sees cut out, gives what it gives under the mask."""
    score, (q, k, v) = make_score(name, 2), inputs(1, 2, 5, 8)
    allowed = draw(5, 8) > 0
    allowed[0] = True
    output = regard.attention(q, k, v, score, mask=allowed, engine=engine)
    for i in range(5):
        row = q[:, :, i : i + 1]
        alone = regard.attention(row, k[:, :, allowed[i]], v[:, :, allowed[i]], score, engine="cpu")
        assert_same([output[:, :, i : i + 1]], [alone])


@pytest.mark.parametrize("changed", [1, 2])
@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_the_content_of_a_masked_key_does_not_matter(engine, name, changed):
    score, tensors = make_score(name, 2), [x.detach() for x in inputs(keys=8)]
    mask = Mask.lengths(keys=torch.tensor([5, 5]))
    expected = regard.attention(*tensors, score, mask=mask, engine=engine)
    tensors[changed] = tensors[changed].clone()
    tensors[changed][:, :, 5:] = 100 * draw(*tensors[changed][:, :, 5:].shape)
    assert_same([regard.attention(*tensors, score, mask=mask, engine=engine)], [expected])


GROUPS = [(4, 1, 1), (4, 2, 2), (4, 4, 2), (4, 2, 4), (4, 1, 4), (6, 2, 3), (6, 3, 2), (6, 6, 1)]


@pytest.mark.parametrize(("heads", "key_heads", "value_heads"), GROUPS)
@pytest.mark.parametrize(
    ("engine", "name"), [*SHORT_PAIRS, ("sdpa", "gaussian"), ("cpu", "gaussian")]
)
def test_grouped_heads_are_repeated_heads(engine, name, heads, key_heads, value_heads):
    """Query head h reads key head h // (heads / key_heads); gradients sum over the group."""
    score = make_score(name, heads)
    q = draw(2, heads, 5, DIM).requires_grad_()
    k = draw(2, key_heads, 6, DIM).requires_grad_()
    v = draw(2, value_heads, 6, 3).requires_grad_()
    found = []
    for key, value in (
        (k, v),
        (
            k.repeat_interleave(heads // key_heads, 1),
            v.repeat_interleave(heads // value_heads, 1),
        ),
    ):
        output = regard.attention(q, key, value, score, mask=Mask.causal(), engine=engine)
        found.append([output, *gradients(output, [q, k, v, *score.parameters()])])
    assert_same(*found)


@pytest.mark.parametrize(("engine", "name"), PAIRS_AND_PLAIN)
def test_inputs_without_a_head_dim_are_one_head(engine, name):
    score, tensors = make_score(name, 1), [x.detach()[:, 0] for x in inputs(heads=1)]
    expected = regard.attention(*(x.unsqueeze(1) for x in tensors), score, engine=engine)
    output = regard.attention(*tensors, score, engine=engine)
    assert_same([output], [expected.squeeze(1)])
    unbatched = regard.attention(*(x[0] for x in tensors), score, engine=engine)
    assert_same([unbatched], [output[0]])


@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_statistics_without_a_head_dim(engine, name):
    score, tensors = make_score(name, 1), [x.detach()[:, 0] for x in inputs(heads=1)]
    want = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")
    wide = regard.attend(*(x.unsqueeze(1) for x in tensors), score, want=want, engine=engine)
    result = regard.attend(*tensors, score, want=want, engine=engine)
    assert_same(list(result), [x.squeeze(1) for x in wide])


LEADS = [
    ((3,), (1,), (3,)),
    ((2, 3), (1, 3), (2, 1)),
    ((1,), (3,), (1,)),
    ((2, 1, 2), (1, 3, 1), (2, 3, 1)),
]


@pytest.mark.parametrize("leads", LEADS, ids=str)
@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_leading_dims_broadcast(engine, name, leads):
    score = make_score(name, 2)
    shapes = ((2, 5, DIM), (2, 6, DIM), (2, 6, 3))
    tensors = [draw(*lead, *s).requires_grad_() for lead, s in zip(leads, shapes, strict=True)]
    full = torch.broadcast_shapes(*leads)
    found = []
    for whole in (False, True):
        given = [x.expand(*full, *x.shape[-3:]).contiguous() if whole else x for x in tensors]
        output = regard.attention(*given, score, mask=Mask.causal(), engine=engine)
        assert output.shape == (*full, 2, 5, 3)
        found.append([output, *gradients(output, tensors)])
    assert_same(*found)


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_every_value_a_constant_gives_that_constant(engine, name):
    """Weights sum to 1 in every row that sees something."""
    score, (q, k, _) = make_score(name, 2), inputs(keys=40)
    ones = torch.ones(2, 2, 40, 3, dtype=torch.float64)
    output = regard.attention(q, k, ones, score, engine=engine)
    assert_same([output], [torch.ones_like(output)])


@pytest.mark.parametrize(("engine", "name"), SHORT_PAIRS)
def test_the_output_is_linear_in_the_values(engine, name):
    score, (q, k, v) = make_score(name, 2), inputs()
    other = draw(*v.shape)
    parts = [regard.attention(q, k, x, score, engine=engine) for x in (v, other, 2 * v - other)]
    assert_same([parts[2]], [2 * parts[0] - parts[1]])
