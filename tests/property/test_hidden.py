"""Keys that no query sees and queries that see no key may hold anything, whatever hides them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard

from .strategies import INNER, PAIRWISE, Call, Numbers, calls

SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
GARBAGE = {"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf"), "1e30": 1e30}


def taking_part(call: Call, numbers: Numbers) -> tuple[Tensor, Tensor]:
    """Queries that see something and keys that something sees, by the definition, over all heads."""
    again = Numbers(call)
    again.inputs(), again.score()  # draws in the order of `outcome`
    mask, bias = again.mask(), again.options().get("bias")
    shape = (*numbers.lead(), call.heads[0], call.queries, call.keys)
    seen = torch.ones(shape, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask.visible(call.queries, call.keys, torch.device("cpu"))
    if bias is not None:
        seen = seen & (bias != -torch.inf)
    seen = seen.flatten(0, -3).any(0)
    return seen.any(-1), seen.any(-2)


def outcome(call: Call, engine: str, garbage: float | None) -> list[Tensor]:
    numbers = Numbers(call)
    tensors, score, mask, options = (
        numbers.inputs(),
        numbers.score(),
        numbers.mask(),
        numbers.options(),
    )
    if garbage is not None:
        rows, keys = taking_part(call, numbers)
        tensors = [x.detach().clone() for x in tensors]
        for x, kept in zip(tensors, (rows, keys, keys), strict=True):
            x[..., ~kept, :] = garbage
            x.requires_grad_()
    output = regard.attention(*tensors, score, mask=mask, engine=engine, **options)
    wanted = [*tensors, *score.parameters()]
    grad = numbers.randn(*output.shape)
    grads = torch.autograd.grad(output, wanted, grad, allow_unused=True, materialize_grads=True)
    return [output, *grads]


@pytest.mark.parametrize("engine", ["reference", "cpu"])
@SLOW
@example(Call("gaussian", masks=frozenset({"keys"}), seed=1), "nan")
@example(Call("bilinear", masks=frozenset({"queries"}), seed=1), "nan")
@example(Call("cosine", masks=frozenset({"segments"}), seed=1), "inf")
@example(Call("additive", masks=frozenset({"keys"}), options=frozenset({"softcap"})), "nan")
@given(call=calls(INNER + PAIRWISE), garbage=st.sampled_from(sorted(GARBAGE)))
def test_what_takes_no_part_is_not_read(engine, call, garbage):
    assume(call.queries and call.keys and (call.masks or "hiding bias" in call.options))
    plain = Call(**{**call.__dict__, "layouts": ("plain",) * 4})
    clean, dirty = (outcome(plain, engine, x) for x in (None, GARBAGE[garbage]))
    for got, wanted in zip(dirty, clean, strict=True):
        scale = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9 * (1 + scale))
