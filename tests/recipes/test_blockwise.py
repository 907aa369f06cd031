"""Attention over blocks of keys is attention over all of them, forward and backward."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.recipes.blockwise import best_keys, soft_read

SCORES = {
    "scaled_dot": lambda: None,
    "cosine": lambda: "cosine",
    "gaussian": lambda: "gaussian",
    "low_rank": lambda: regard.LowRank(8, 8, 4).double(),
    "additive": lambda: regard.Projected(regard.Additive(6), 8, 8).double(),
}


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 8), (50, 8), (50, 3))
    return [
        torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in shapes
    ]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_blocks_are_one_piece(name: str, hidden: bool) -> None:
    torch.manual_seed(1)
    score, (query, key, value) = SCORES[name](), tensors()
    warm = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    allowed = torch.rand(50) < 0.6 if hidden else None
    leaves = [
        query,
        key,
        value,
        warm,
        *(score.parameters() if isinstance(score, regard.Score) else []),
    ]
    mask = None if allowed is None else allowed.expand(5, 50)
    ours = soft_read(query, key, value, score, temperature=warm, allowed=allowed, block=7)
    whole = regard.attend(query, key, value, score, temperature=warm, mask=mask)
    for one, other in zip(ours, (whole.output, whole.lse), strict=True):
        torch.testing.assert_close(one, other)
    found, expected = (
        torch.autograd.grad(one.output.square().sum() + one.lse.sin().sum(), leaves)
        for one in (ours, whole)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_keys_stand_for_values_and_have_both_gradients() -> None:
    query, key, _ = tensors()
    pairs = [soft_read(query, key, block=9).output, regard.attention(query, key, key)]
    grads = [torch.autograd.grad(one.square().sum(), key)[0] for one in pairs]
    torch.testing.assert_close(*grads)


def test_keys_in_half_precision_are_read_block_by_block() -> None:
    query, key, value = (x.detach().float() for x in tensors())
    found = soft_read(query, key.half(), value.half(), block=8)
    expected = regard.attention(query, key.half().float(), value.half().float())
    torch.testing.assert_close(found.output, expected)


def test_a_query_that_may_see_nothing_has_output_0() -> None:
    query, key, value = tensors()
    found = soft_read(query, key, value, allowed=torch.zeros(50, dtype=torch.bool))
    assert torch.equal(found.output, torch.zeros(5, 3, dtype=torch.float64))
    assert (found.lse == -torch.inf).all()
    (grad,) = torch.autograd.grad(found.output.sum(), query)
    assert torch.equal(grad, torch.zeros_like(query))


@pytest.mark.parametrize("name", SCORES)
def test_best_keys_are_those_of_all_logits(name: str) -> None:
    torch.manual_seed(1)
    score, (query, key, _) = SCORES[name](), tensors()
    logits, rows = best_keys(query, key, 6, score, block=7)
    expected = regard.score(query, key, score).topk(6, 1)
    torch.testing.assert_close(logits, expected.values.detach())
    assert torch.equal(rows, expected.indices)


def test_best_keys_among_few_that_are_allowed() -> None:
    query, key, _ = tensors()
    allowed = torch.zeros(50, dtype=torch.bool)
    allowed[[3, 40]] = True
    logits, rows = best_keys(query, key, 6, allowed=allowed, block=7)
    assert logits.shape == (5, 2) and set(rows.flatten().tolist()) == {3, 40}


def test_memory_does_not_grow_with_the_keys() -> None:
    """Ten times the keys take no more at the peak, backward included."""
    from regard.measuring.memory import peak

    def run(count: int) -> int:
        query, keys = torch.randn(16, 32, requires_grad=True), torch.randn(count, 32)
        return peak(
            lambda: soft_read(query, keys, block=512).output.sum().backward(), torch.device("cpu")
        )

    few, many = run(2048), run(20480)
    assert many < 1.5 * few
