"""Weights with their mean over heads from one pass, beside plain operations, and in the module that returns them."""

from __future__ import annotations

import contextlib

import pytest
import torch

from regard import doctor
from regard.engines.weights import call, mean_weights
from regard.nn import MultiheadAttention
from regard.nn.multihead import weighing

pytest.importorskip("triton", minversion="3.6")
pytestmark = pytest.mark.interpreted
N, H, Q, L = 2, 3, 4, 21
INF = torch.inf


@pytest.fixture
def launched(monkeypatch):
    """How often the kernel ran; it runs on the CPU here."""
    found, run = [], call.by_kernel
    monkeypatch.setattr(call, "by_kernel", lambda *given: found.append(1) or run(*given))
    monkeypatch.setattr(call, "KERNEL_ON", ("cpu",))
    monkeypatch.setattr(weighing, "KERNEL_ON", ("cpu",))
    return found


@contextlib.contextmanager
def plain():
    """By plain operations; modules go the whole way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call, "KERNEL_ON", ())
        patch.setattr(weighing, "KERNEL_ON", ())
        yield


def lower_triangle(keys: int) -> torch.Tensor:
    return torch.ones(1, 1, Q, keys, dtype=torch.bool).tril()


def by_sequence(keys: int) -> torch.Tensor:
    return torch.arange(keys) < torch.tensor([keys, 0])[:, None, None, None]


MASKS = {"none": lambda keys: None, "causal": lower_triangle, "lengths": by_sequence}


@pytest.mark.parametrize("keys", [1, 16, L])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernel_says_what_plain_operations_say(mask, biased, keys, launched):
    torch.manual_seed(0)
    logits = torch.randn(N, H, Q, keys, requires_grad=True)
    keep = MASKS[mask](keys)
    bias = torch.randn(1, H, Q, keys, requires_grad=True) if biased else None
    leaves = [x for x in (logits, bias) if x is not None]
    found = []
    for way in (contextlib.nullcontext, plain):
        with way():
            ends = mean_weights(logits * 1.0, keep, bias)
        torch.manual_seed(1)
        grads = [torch.randn_like(x) for x in ends]
        found.append([*ends, *torch.autograd.grad(ends, leaves, grads)])
    assert launched == [1]
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)
    if keep is not None:
        assert not found[0][0][~keep.expand(N, H, Q, keys)].any()


def test_a_hiding_bias_and_nan():
    logits = torch.randn(N, H, Q, L)
    logits[0, 1, 2, 5] = torch.nan
    bias = torch.zeros(1, 1, Q, L)
    bias[..., 7:], bias[..., 3, :] = -INF, -INF
    for run in (call.by_kernel, call.plain):
        weights, mean = run(logits.clone(), None, bias)
        assert not weights[..., 7:].any() and not weights[..., 3, :].any()
        assert weights[0, 1, 2, :7].isnan().all() and mean[0, 2, :7].isnan().all()
        assert int(weights.isnan().sum()) == 7 and int(mean.isnan().sum()) == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, launched):
    torch.manual_seed(0)
    logits = (3 * torch.randn(N, H, Q, L)).to(dtype)
    weights, mean = mean_weights(logits.clone(), None, None)
    exact = logits.double().softmax(-1)
    assert weights.dtype == mean.dtype == dtype and launched == [1]
    eps = torch.finfo(dtype).eps
    # The interpreter truncates where a GPU rounds: 1 unit in the last place in place of a half.
    torch.testing.assert_close(weights.double(), exact, rtol=eps, atol=1e-7)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=eps, atol=1e-7)


def test_more_keys_than_a_program_holds_and_none(launched, monkeypatch):
    monkeypatch.setattr(call, "MOST_KEYS", L - 1)
    logits = torch.randn(N, H, Q, L)
    weights, mean = mean_weights(logits, None, None)
    torch.testing.assert_close(weights, logits.softmax(-1))
    torch.testing.assert_close(mean, weights.mean(1))
    weights, mean = mean_weights(logits[..., :0], None, None)
    assert weights.shape == (N, H, Q, 0) and mean.shape == (N, Q, 0) and launched == []


def test_there_is_no_second_derivative_and_it_says_so(launched):
    logits = torch.randn(N, H, Q, L, requires_grad=True)
    weights, _ = mean_weights(logits * 1.0, None, None)
    (grad,) = torch.autograd.grad((weights**2).sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


HIDING = {
    "nothing": dict,
    "padding": lambda: {"key_padding_mask": torch.arange(9) >= torch.tensor([9, 0, 4])[:, None]},
    "booleans": lambda: {"attn_mask": torch.ones(9, 9, dtype=torch.bool).triu(1)},
    "floats": lambda: {"attn_mask": torch.randn(9, 9).masked_fill(torch.rand(9, 9) < 0.3, -INF)},
}


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("score", [None, "dot", "cosine"])
@pytest.mark.parametrize("hides", HIDING)
def test_modules_return_them(hides, score, key_heads, launched):
    """With all gradients, as the whole way does."""
    torch.manual_seed(0)
    module = MultiheadAttention(16, 4, batch_first=True, score=score, key_heads=key_heads)
    x, options = torch.randn(3, 9, 16, requires_grad=True), HIDING[hides]()
    found = []
    for way in (contextlib.nullcontext, plain):
        with way():
            ends = module(x, x, x, **options)
        torch.manual_seed(1)
        grads = [torch.randn_like(end) for end in ends]
        leaves = [x, *module.parameters()]
        found.append([*ends, *torch.autograd.grad(ends, leaves, grads)])
    assert launched == [1]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_they_are_those_of_torch(launched):
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    ours = MultiheadAttention(16, 4, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 9, 16)
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x))
    assert launched == [1]


def test_other_calls_go_the_whole_way(launched):
    x = torch.randn(3, 9, 16)
    dropping = MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    dropping(x, x, x)
    dropping.eval()(x, x, x)
    assert launched == [1]
    MultiheadAttention(16, 4, batch_first=True, score="additive")(x, x, x)
    MultiheadAttention(16, 4, batch_first=True, score="gaussian")(x, x, x)
    MultiheadAttention(16, 4, batch_first=True, engine="reference")(x, x, x)
    module = MultiheadAttention(16, 4, batch_first=True)
    module(x, x, x, average_attn_weights=False)
    with doctor.watch(module):
        module(x, x, x)
    with torch.autocast("cpu", torch.bfloat16):
        module(x, x, x)
    assert launched == [1]
