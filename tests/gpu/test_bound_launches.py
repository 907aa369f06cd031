"""Bound launches of engine `sine` on a GPU: the same bits as ordinary ones, wherever they are launched.

cuDNN's backward is not deterministic: where gradients are compared to the bit, plain PyTorch stands in
for it.
"""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask
from regard.engines.sine_features.parts import PARTS

from ..engines.sine_features.standins import PlainFused
from .tools import all_ordinary, assert_equal_in_threads, captured, equal, none_ordinary

pytestmark = pytest.mark.gpu
HIDDEN, VALUE = 16, 64


class Case:
    """A call with its gradients."""

    def __init__(
        self, queries=256, *, heads=4, key_heads=4, dtype=torch.bfloat16, spread=1.0, off=0, seed=0,
        **options,
    ):  # fmt: skip
        torch.manual_seed(seed)
        self.options = options

        def draw(*shape, scale=1.0):
            # Off by a few elements, tensors begin where 16 bytes do not.
            numbers = scale * torch.randn(off + torch.Size(shape).numel(), device="cuda")
            return numbers.to(dtype)[off:].view(shape).requires_grad_()

        self.q = draw(2, heads, queries, HIDDEN, scale=spread)
        self.k = draw(2, key_heads, queries, HIDDEN)
        self.v = draw(2, key_heads, queries, VALUE)
        self.grad = draw(2, heads, queries, VALUE).detach()
        self.score = regard.Additive(HIDDEN, heads, series="fast").to("cuda", dtype)

    def output(self):
        return regard.attention(self.q, self.k, self.v, self.score, engine="sine", **self.options)

    def results(self):
        """The output and all gradients."""
        out = self.output()
        leaves = [self.q, self.k, self.v, self.score.v]
        return [out.detach(), *torch.autograd.grad(out, leaves, self.grad)]


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"queries": 131, "key_heads": 1},
        {"off": 1},
        {"dtype": torch.float32},
        {"queries": 1025, "heads": 2, "key_heads": 2},
    ],
)
def test_bound_launches_give_the_same_bits_as_ordinary_ones(monkeypatch, case):
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    call = Case(**case)
    with all_ordinary() as seen:
        wanted = call.results()
    assert len(seen) >= 17
    call.results()
    with none_ordinary():
        assert equal(call.results(), wanted)


@pytest.mark.parametrize("options", [{}, {"mask": Mask.causal()}])
def test_so_does_the_exact_answer(options):
    """Its backward adds up in any order: it is compared to a few roundings."""
    call = Case(spread=30.0, **options)
    with all_ordinary():
        wanted = call.results()
    call.results()
    with none_ordinary():
        found = call.results()
    assert torch.equal(found[0], wanted[0])
    for x, y in zip(found[1:], wanted[1:], strict=True):
        assert float((x - y).abs().max()) <= 2e-2 * float(y.abs().max())


def test_kinds_of_calls_take_turns(monkeypatch):
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    cases = [Case(), Case(128), Case(off=1), Case(dtype=torch.float16), Case(key_heads=2)]
    with all_ordinary():
        wanted = [case.results() for case in cases]
    for case in cases:
        case.results()
    with none_ordinary():
        for _ in range(3):
            for case, expected in zip(cases, wanted, strict=True):
                assert equal(case.results(), expected)


def test_another_stream(monkeypatch):
    """What is launched there waits for what is before it there, and for nothing else."""
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    call = Case()
    wanted = call.results()
    numbers = call.q.detach().clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), none_ordinary(), torch.no_grad():
        call.q.zero_()
        torch.cuda._sleep(50_000_000)
        call.q.copy_(numbers)
        out = call.output()
    stream.synchronize()
    assert torch.equal(out, wanted[0])


def test_a_captured_graph_holds_forward_and_backward():
    call = Case()
    graph, found = captured(call.results, 3)
    other = Case(seed=1)
    with torch.no_grad():
        for into, x in ((call.q, other.q), (call.k, other.k), (call.v, other.v)):
            into.copy_(x)
        call.score.v.copy_(other.score.v)
        call.grad.copy_(other.grad)
    graph.replay()
    wanted = other.results()
    assert torch.equal(found[0], wanted[0])
    for x, y in zip(found[1:], wanted[1:], strict=True):
        assert float((x - y).abs().max()) <= 2e-2 * float(y.abs().max())


def test_threads(monkeypatch):
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    cases = [Case(), Case(192, seed=1), Case(seed=2)]
    assert_equal_in_threads(cases, Case.results)


def test_a_backward_twice(monkeypatch):
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    call = Case()
    out = call.output()
    leaves = [call.q, call.k, call.v, call.score.v]
    first = torch.autograd.grad(out, leaves, call.grad, retain_graph=True)
    with none_ordinary():
        again = torch.autograd.grad(out, leaves, call.grad)
    assert equal(first, again)


def test_gradients_that_come_with_other_strides(monkeypatch):
    """grad_out of a sum has strides of 0; of a transposed result, others."""
    monkeypatch.setattr(PARTS, "fused", PlainFused())
    call = Case()
    leaves = [call.q, call.k, call.v, call.score.v]
    turned = call.grad.transpose(1, 2).contiguous().transpose(1, 2)
    ones = torch.ones((), device="cuda", dtype=call.grad.dtype).expand_as(call.grad)
    for grad in (turned, ones, turned, ones):
        found = torch.autograd.grad(call.output(), leaves, grad)
        wanted = torch.autograd.grad(call.output(), leaves, grad.contiguous())
        assert equal(found, wanted)


def test_results_keep_no_workspace_alive():
    call = Case(2048)
    call.results()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    found = call.results()
    bytes_of = sum(-(-x.numel() * x.element_size() // 512) * 512 for x in found)
    assert torch.cuda.memory_allocated() - before <= bytes_of


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_device_that_is_not_the_current_one():
    call = Case()
    wanted = call.results()
    other = Case()
    other.score = other.score.to("cuda:1")
    for name in ("q", "k", "v", "grad"):
        moved = getattr(call, name).detach().to("cuda:1")
        setattr(other, name, moved.requires_grad_(name != "grad"))
    for _ in range(3):
        found = other.results()
    assert torch.equal(found[0].cpu(), wanted[0].cpu())
