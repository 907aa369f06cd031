"""Empty batch, queries, keys and widths: a result of the right shape, and 0 where nothing is seen.

pytorch#141218, #174939, flash-attention#1159, #2470: crashes and uninitialised memory.
"""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import DIM, OWN_PAIRS, draw, gradients, make_score

SHAPES = {
    "batch": (0, 2, 5, 6, 3),
    "queries": (2, 2, 0, 6, 3),
    "keys": (2, 2, 5, 0, 3),
    "queries and keys": (2, 2, 0, 0, 3),
    "value width": (2, 2, 5, 6, 0),
    "everything": (0, 2, 0, 0, 0),
}
WANT = ("lse", "entropy", "max_logit", "max_weight", "jacobian", "weights")


def tensors_of(which: str) -> list[torch.Tensor]:
    batch, heads, queries, keys, width = SHAPES[which]
    shapes = ((queries, DIM), (keys, DIM), (keys, width))
    return [draw(batch, heads, *shape).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("which", SHAPES)
@pytest.mark.parametrize(("engine", "name"), [*OWN_PAIRS, (None, "bilinear"), (None, "additive")])
def test_empty_inputs(engine, name, which):
    score, tensors = make_score(name, 2), tensors_of(which)
    batch, heads, queries, keys, width = SHAPES[which]
    output = regard.attention(*tensors, score, engine=engine)
    assert output.shape == (batch, heads, queries, width)
    grads = gradients(output, [*tensors, *score.parameters()])
    if keys == 0:
        assert (output == 0).all()
        assert all((grad == 0).all() for grad in grads)
    for grad, x in zip(grads, [*tensors, *score.parameters()], strict=True):
        assert grad.shape == x.shape
        assert grad.isfinite().all()


@pytest.mark.parametrize("which", SHAPES)
@pytest.mark.parametrize(("engine", "name"), OWN_PAIRS)
def test_statistics_of_empty_inputs(engine, name, which):
    score, tensors = make_score(name, 2), tensors_of(which)
    batch, heads, queries, keys, _ = SHAPES[which]
    result = regard.attend(*tensors, score, want=WANT, engine=engine)
    assert result.weights.shape == (batch, heads, queries, keys)
    for field in WANT[:-1]:
        assert getattr(result, field).shape == (batch, heads, queries), field
    if keys == 0:
        assert (result.lse == -torch.inf).all() and (result.max_logit == -torch.inf).all()
        for field in ("entropy", "max_weight", "jacobian"):
            assert (getattr(result, field) == 0).all(), field


@pytest.mark.parametrize("which", SHAPES)
@pytest.mark.parametrize("engine", ["reference", "cpu", None])
@pytest.mark.parametrize(
    "options",
    [
        {"mask": Mask.causal()},
        {"mask": Mask.window(left=1) & Mask.causal("top_left")},
        {"mask": Mask.lengths(keys=0, queries=0)},
        {"temperature": 0.0},
        {"temperature": torch.tensor([0.0, 1.0], dtype=torch.float64)},
        {"softcap": 2.0, "sink": torch.zeros(2, dtype=torch.float64)},
        {"dropout": 0.5},
    ],
    ids=["causal", "window", "lengths", "hard", "hard head", "cap and sink", "dropout"],
)
def test_options_on_empty_inputs(engine, which, options):
    batch, heads, queries, _, width = SHAPES[which]
    output = regard.attention(*tensors_of(which), engine=engine, **options)
    assert output.shape == (batch, heads, queries, width)
    assert output.isfinite().all()


@pytest.mark.parametrize("engine", ["reference", "cpu", None])
def test_width_0_gives_the_mean_of_the_values(engine):
    """All scores are the empty sum 0."""
    value = draw(2, 2, 6, 3)
    output = regard.attention(draw(2, 2, 5, 0), draw(2, 2, 6, 0), value, engine=engine)
    expected = value.mean(-2, keepdim=True).expand(2, 2, 5, 3)
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "cosine", "gaussian"])
def test_named_scores_of_width_0(score):
    output = regard.attention(draw(2, 2, 5, 0), draw(2, 2, 6, 0), draw(2, 2, 6, 3), score)
    assert output.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (0, 3, 4)])
@pytest.mark.parametrize("engine", ["reference", "cpu", None])
def test_empty_without_a_head_dim(engine, shape):
    x = draw(*shape)
    assert regard.attention(x, x, x, engine=engine).shape == shape


@pytest.mark.parametrize("which", SHAPES)
@pytest.mark.parametrize("name", ["bilinear", "additive"])
def test_raw_scores_of_empty_inputs(name, which):
    query, key, _ = tensors_of(which)
    batch, heads, queries, keys, _ = SHAPES[which]
    assert regard.score(query, key, make_score(name, 2)).shape == (batch, heads, queries, keys)


@pytest.mark.parametrize("which", SHAPES)
def test_explain_of_empty_inputs(which):
    plan = regard.explain(*tensors_of(which))
    assert plan.engine is not None
    assert "error" in str(plan)


@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_a_sink_alone_takes_everything_where_there_is_no_key(engine):
    tensors, sink = tensors_of("keys"), torch.tensor([0.5, -1.0], dtype=torch.float64)
    result = regard.attend(*tensors, sink=sink, want=("lse", "entropy"), engine=engine)
    assert (result.output == 0).all()
    assert torch.equal(result.lse, sink.view(1, 2, 1).expand(2, 2, 5))
    assert (result.entropy == 0).all()
