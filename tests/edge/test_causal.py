"""Causal masks where queries and keys differ in number: the alignment is explicit.

flash-attention changed its meaning in 2.1 (#282, #951), SDPA aligns to the top left
(pytorch#108108), mlx#2835 to neither.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard
from regard import Mask

from .tools import assert_same, gradients, inputs, make_score

CASES = [("reference", "bilinear"), ("cpu", "bilinear"), ("cpu", "additive"), ("sdpa", "bilinear")]
LENGTHS = [(1, 6), (4, 6), (6, 6), (6, 4), (6, 1), (20, 33), (33, 20)]


def sees(queries: int, keys: int, alignment: str) -> Tensor:
    """Query i sits at key i (top left) or at key i + keys - queries (bottom right)."""
    shift = 0 if alignment == "top_left" else keys - queries
    return torch.tensor([[j <= i + shift for j in range(keys)] for i in range(queries)])


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_causal_is_the_dense_mask_it_stands_for(engine, name, queries, keys, alignment, tiny_tiles):
    score, tensors = make_score(name, 2), inputs(1, 2, queries, keys)
    found = []
    for which, mask in (
        (engine, Mask.causal(alignment)),
        ("reference", sees(queries, keys, alignment)),
    ):
        output = regard.attention(*tensors, score, mask=mask, engine=which)
        found.append([output, *gradients(output, tensors)])
    assert_same(*found)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_the_default_puts_the_last_query_at_the_last_key(engine):
    """A decoder step, one query and a cache of keys, sees the whole cache."""
    tensors = inputs(queries=1, keys=6)
    output = regard.attention(*tensors, mask=Mask.causal(), engine=engine)
    assert_same([output], [regard.attention(*tensors, engine=engine)])
    first = regard.attention(*tensors, mask=Mask.causal("top_left"), engine=engine)
    assert_same([first], [tensors[2][:, :, :1]])


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_more_queries_than_keys_leaves_the_first_with_nothing(engine):
    tensors = inputs(queries=6, keys=4)
    output = regard.attention(*tensors, mask=Mask.causal(), engine=engine)
    assert (output[:, :, :2] == 0).all()
    assert_same([output[:, :, 2:3]], [tensors[2][:, :, :1]])


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("engine", "name"), CASES)
def test_causal_with_lengths_aligns_each_sequence_to_its_own_end(engine, name, alignment):
    """Padding at the end must not shift the diagonal: what each sequence gets is what it gets alone."""
    queries, keys = torch.tensor([5, 2, 3, 0]), torch.tensor([6, 3, 1, 4])
    score, tensors = make_score(name, 2), inputs(4, 2, 5, 6)
    mask = Mask.causal(alignment) & Mask.lengths(keys=keys, queries=queries)
    output = regard.attention(*tensors, score, mask=mask, engine=engine)
    q, k, v = tensors
    for b, (rows, columns) in enumerate(zip(queries.tolist(), keys.tolist(), strict=True)):
        alone = regard.attention(
            q[b : b + 1, :, :rows],
            k[b : b + 1, :, :columns],
            v[b : b + 1, :, :columns],
            score,
            mask=Mask.causal(alignment),
            engine="reference",
        )
        assert_same([output[b : b + 1, :, :rows]], [alone])
        assert (output[b, :, rows:] == 0).all()


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_one_query_and_key_lengths_need_no_query_lengths(engine):
    """Decoding with caches of different lengths: the one query is the last."""
    tensors, lengths = inputs(3, 2, 1, 6), torch.tensor([6, 2, 4])
    output = regard.attention(
        *tensors, mask=Mask.causal() & Mask.lengths(keys=lengths), engine=engine
    )
    expected = regard.attention(*tensors, mask=Mask.lengths(keys=lengths), engine="reference")
    assert_same([output], [expected])


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa", None])
def test_bottom_right_with_key_lengths_alone_is_refused(engine):
    tensors = inputs(2, 2, 5, 6)
    mask = Mask.causal() & Mask.lengths(keys=torch.tensor([3, 6]))
    with pytest.raises(ValueError, match=r"query lengths.*queries=.*top_left"):
        regard.attention(*tensors, mask=mask, engine=engine)


@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_no_query_sees_a_key_after_it(engine):
    """By derivative and not by value: d output_i / d key_j is exactly 0 for j > i."""
    tensors = inputs(1, 1, 5, 5)
    output = regard.attention(*tensors, mask=Mask.causal(), engine=engine)
    for i in range(5):
        grads = torch.autograd.grad(output[0, 0, i].sum(), tensors[1:], retain_graph=True)
        for grad in grads:
            assert (grad[0, 0, i + 1 :] == 0).all()
