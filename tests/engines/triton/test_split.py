"""The backward pass cut into parts of the queries: whatever the number of parts, the same gradients."""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import forget_bound_calls

pytestmark = pytest.mark.interpreted


def gradients(engine: str, mask: Mask | None) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    shapes = (
        (1, 2, 150, 3),
        (1, 1, 40, 3),
        (1, 1, 40, 5),
    )  # 5 blocks of 32 queries, the last short
    leaves = [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]
    torch.manual_seed(0)
    score = regard.Additive(3, 2)
    output = regard.attention(*leaves, score, mask=mask, engine=engine)
    return torch.autograd.grad(
        output, [*leaves, score.v], torch.randn(output.shape, generator=draw)
    )


@pytest.mark.parametrize("mask", [None, Mask.window(left=20)], ids=["whole", "window"])
def test_any_number_of_parts(mask, monkeypatch) -> None:
    from regard.engines.triton import choices

    truth, seen = gradients("reference", mask), set()
    monkeypatch.setattr(choices, "FULL_ROUNDS", 1)
    for warps in (1, 8, 12, 16, 10**6):  # 1, 2, 3, 4 and 5 parts of 5 blocks, some of them short
        monkeypatch.setattr(choices, "ALL_REGISTERS", warps * choices.BACKWARD_REGISTERS)
        forget_bound_calls()
        plan = choices.query_parts
        monkeypatch.setattr(
            choices, "query_parts", lambda *x, plan=plan: seen.add(n := plan(*x)) or n
        )
        for ours, expected in zip(gradients("triton", mask), truth, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        monkeypatch.setattr(choices, "query_parts", plan)
    forget_bound_calls()
    assert len(seen) >= 4 and 1 in seen and 5 in seen


def test_gradients_have_memory_of_their_own() -> None:
    found = gradients("triton", None)
    assert len({x.untyped_storage().data_ptr() for x in found}) == len(found)
    assert all(x.untyped_storage().nbytes() == x.numel() * x.element_size() for x in found)
