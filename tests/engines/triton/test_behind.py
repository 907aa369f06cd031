"""Exact attention behind a flag on the device, in Triton's interpreter, beside the textbook in fp64."""

import pytest
import torch

from regard.engines.hiding import Hiding
from regard.engines.launching import Pieces
from regard.engines.triton.behind import Behind

from ..sine_features.standins import textbook

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreted

# B, H, K, Q, L, E, D: lengths that leave cut tiles, heads that share keys, odd widths.
SHAPES = {
    "plain": (1, 2, 2, 33, 45, 8, 16),
    "shared": (2, 4, 2, 17, 66, 5, 9),
    "square": (2, 2, 1, 35, 35, 6, 20),
}
RATE = 0.7


def call(shape, dtype, strided=False):
    batch, heads, key_heads, queries, keys, hidden, dims = SHAPES[shape]
    a = torch.randn(batch, heads, queries, hidden).to(dtype)
    b = torch.randn(batch, key_heads, keys, hidden).to(dtype)
    value = torch.randn(batch, key_heads, keys, dims).to(dtype)
    grad = torch.randn(batch, heads, queries, dims).to(dtype)
    if strided:
        a, b, value, grad = (
            torch.cat([x, x], -1).transpose(1, 2).contiguous().transpose(1, 2)[..., : x.shape[-1]]
            for x in (a, b, value, grad)
        )
    v = torch.randn(heads, hidden)
    return a, b, v, value, grad


def flagged(v, skip):
    """The flag, and rate v, as the engine hands them over."""
    layout = Pieces((1, torch.int32), (v.numel(), torch.float32))
    flag, weight = layout.cut(layout.new(v.device))
    flag.fill_(skip)
    weight.view(v.shape).copy_(RATE * v)
    return flag, weight


def tolerance(dtype):
    return {torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "causal", "strided"),
    [("plain", False, False), ("shared", False, True), ("square", True, False)],
)
def test_where_the_flag_is_not_set_the_exact_result_is_written(shape, causal, strided, dtype):
    a, b, v, value, grad = call(shape, dtype, strided)
    flag, weight = flagged(v, 0)
    output = torch.full(grad.shape, torch.nan, dtype=dtype)
    Behind().attend(flag, a, b, weight, value, Hiding(causal), output)
    leaves = [x.double().requires_grad_() for x in (a, b, v, value)]
    wanted = textbook(*leaves, RATE, causal)
    grads = [torch.full(x.shape, torch.nan, dtype=x.dtype) for x in (a, b, v, value)]
    Behind().backward(flag, grad, a, b, weight, value, RATE, Hiding(causal), *grads)
    exact = torch.autograd.grad(wanted, leaves, grad.double())
    for got, want in zip((output, *grads), (wanted.detach(), *exact), strict=True):
        error = (got.double() - want).abs().max() / want.abs().max()
        assert float(error) <= tolerance(dtype)


def test_where_the_flag_is_set_nothing_is_written():
    a, b, v, value, grad = call("shared", torch.float32)
    flag, weight = flagged(v, 1)
    results = [torch.full(x.shape, 7.0) for x in (grad, a, b, v, value)]
    Behind().attend(flag, a, b, weight, value, Hiding(), results[0])
    Behind().backward(flag, grad, a, b, weight, value, RATE, Hiding(), *results[1:])
    assert all(bool((x == 7).all()) for x in results)
