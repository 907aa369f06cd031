"""Many heads, and tensors beyond 2**31 elements."""

from __future__ import annotations

import os

import pytest
import torch

import regard
from regard import Mask

from .tools import draw

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
MANY = 65_536  # one more than a CUDA grid takes in y and z


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("engine", ["reference", "cpu", "sdpa"])
def test_more_than_65535_batch_times_heads(engine, score):
    """pytorch#142228, xformers#845: launch failures; flashinfer#3125: silently wrong."""
    if (engine, score) == ("sdpa", "additive"):
        score = "gaussian"
    build = {
        "scaled_dot": regard.ScaledDot,
        "gaussian": lambda: regard.Gaussian(heads=None),
        "additive": lambda: regard.Additive(2, 2),
    }[score]
    scorer = build()
    shapes = ((1, 2), (3, 2), (3, 1))
    tensors = [draw(MANY // 2, 2, *s, dtype=torch.float32).requires_grad_() for s in shapes]
    mask = Mask.lengths(keys=torch.arange(MANY // 2) % 4)
    output = regard.attention(*tensors, scorer, mask=mask, engine=engine)
    grads = torch.autograd.grad(output.sum(), tensors)
    for at in (slice(0, 4), slice(-4, None)):
        part = [x.detach()[at].requires_grad_() for x in tensors]
        few = Mask.lengths(keys=mask.key_lengths[at])
        expected = regard.attention(*part, scorer, mask=few, engine="reference")
        torch.testing.assert_close(output[at], expected)
        for grad, wanted in zip(grads, torch.autograd.grad(expected.sum(), part), strict=True):
            torch.testing.assert_close(grad[at], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_more_than_2_to_the_31_logits():
    """fla#1080, SageAttention#386: products of sizes wrapped around in int32.

    46,400 x 46,400 logits, of which the cpu engine keeps one tile at a time. The last rows see the
    last keys alone, so that their answer is known.
    """
    length = 46_400
    assert length * length > 2**31
    query, key = (
        draw(1, 1, length, 2, dtype=torch.float32),
        draw(1, 1, length, 2, dtype=torch.float32),
    )
    value = torch.arange(length, dtype=torch.float32).view(1, 1, length, 1)
    output = regard.attention(query, key, value, mask=Mask.window(0, 0), engine="cpu")
    assert torch.equal(output, value)
    tail = slice(-8, None)
    expected = regard.attention(query[:, :, tail], key, value, engine="reference")
    output = regard.attention(query, key, value, engine="cpu")
    torch.testing.assert_close(output[:, :, tail], expected, rtol=1e-4, atol=1.0)


@pytest.mark.slow
@pytest.mark.skipif(MEMORY < 20, reason="needs 20 GiB of memory")
def test_values_of_more_than_2_to_the_31_elements():
    """Offsets into one operand beyond int32: the last keys of an 8.6 GB value (fp16 of 4.3 GB)."""
    keys, width = 2**16 + 1, 2**15
    assert keys * width > 2**31
    value = torch.zeros(1, 1, keys, width, dtype=torch.float16)
    value[..., -1, :] = 1
    value[..., -1, -1] = 3
    query, key = torch.zeros(1, 1, 1, 1, dtype=torch.float16), torch.zeros(1, 1, keys, 1)
    key[..., -1, :] = 1
    with torch.no_grad():
        last = regard.attention(
            query + 1, key.half(), value, temperature=0, engine="cpu", mask=Mask.causal()
        )
    assert last[..., 0].item() == 1
    assert last[..., -1].item() == 3
