"""Calls that come again on a GPU (`regard.repeats`): the same bits, from bound launches alone."""

from __future__ import annotations

import importlib

import pytest
import torch

import regard
from regard import repeats

from .tools import assert_equal_in_threads, captured, equal, none_ordinary

pytest.importorskip("triton")
from regard.engines.triton.engine import FEWEST_QUERIES_FOR_TILES

pytestmark = pytest.mark.gpu
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Case:
    """A call of `attention` without options, and its gradients."""

    def __init__(
        self, queries=1, keys=70, *, batch=4, heads=2, key_heads=2, hidden=64, dims=32, dtype=BF16,
        kind=regard.Additive, transposed=False, seed=0,
    ):  # fmt: skip
        torch.manual_seed(seed)

        def draw(heads, length, width):
            shape = (batch, length, heads, width) if transposed else (batch, heads, length, width)
            x = torch.randn(shape, device="cuda").to(dtype)
            return (x.transpose(1, 2) if transposed else x).requires_grad_()

        self.tensors = [draw(heads, queries, hidden), draw(key_heads, keys, hidden)]
        self.tensors.append(draw(key_heads, keys, dims))
        self.score = kind(hidden, heads).to("cuda", dtype)
        self.grad = torch.randn(batch, heads, queries, dims, device="cuda").to(dtype)

    def output(self):
        return regard.attention(*self.tensors, self.score, engine="triton")

    def results(self):
        """The output and its gradients."""
        output = self.output()
        leaves = [*self.tensors, self.score.v]
        return [output.detach(), *torch.autograd.grad(output, leaves, self.grad)]


def assert_alike(found, wanted, exact):
    """The same bits, or but for gradients, which are summed in any order."""
    assert torch.equal(found[0], wanted[0])
    for x, y in zip(found, wanted, strict=True):
        assert float((x - y).abs().max()) <= (0 if exact else 1e-2) * float(y.abs().max())


CASES = {
    "one query": lambda: Case(),
    "one query, fp32": lambda: Case(dtype=FP32),
    "one query, fp16": lambda: Case(dtype=FP16),
    "one query, many keys": lambda: Case(1, 3000, hidden=130, dims=300),
    "wide": lambda: Case(1, 30, heads=1, key_heads=1, hidden=1000, dims=1000),
    "few queries": lambda: Case(7, kind=regard.GATv2),
    "shared keys": lambda: Case(3, heads=4),
    "transposed": lambda: Case(50, transposed=True),
    "many queries": lambda: Case(50),
    "many queries, fp32": lambda: Case(50, dtype=FP32),
}


@pytest.mark.parametrize("name", CASES)
def test_a_repetition_has_the_bits_of_the_whole_way(name, monkeypatch):
    call = CASES[name]()
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "find", lambda *given: None)
        wanted = call.results()
        with torch.no_grad():
            alone = call.output()
    for _ in range(3):
        call.results()
        with torch.no_grad():
            call.output()
    with none_ordinary():
        found = call.results()
        with torch.no_grad():
            assert torch.equal(call.output(), alone)
    assert_alike(found, wanted, exact=call.tensors[0].shape[2] < FEWEST_QUERIES_FOR_TILES)


def test_nothing_is_asked_of_the_problem_any_more(monkeypatch):
    """From the third call on it is not checked, lowered or planned."""
    call = Case()
    for _ in range(2):
        call.results()

    def refuse(*given, **options):
        raise AssertionError("a repeated call went the whole way")

    monkeypatch.setattr(importlib.import_module("regard.attention"), "prepare", refuse)
    call.results()


@pytest.mark.parametrize("name", ["one query", "many queries"])
def test_a_captured_graph_holds_forward_and_backward(name):
    call = CASES[name]()
    graph, found = captured(call.results, 4)
    with torch.no_grad():
        for x in (*call.tensors, call.grad):
            x.copy_(torch.randn_like(x))
    graph.replay()
    assert_alike(found, call.results(), exact=name == "one query")


def test_nothing_waits_for_the_device():
    call = Case()
    for _ in range(3):
        call.results()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.results()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_threads():
    cases = [Case(dtype=FP32), Case(1, 900, seed=1, dtype=FP32), Case(seed=2)]
    assert_equal_in_threads(cases, lambda case: case.results())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_device_that_is_not_the_current_one():
    call = Case(dtype=FP32)
    wanted = call.results()
    call.tensors = [x.detach().to("cuda:1").requires_grad_() for x in call.tensors]
    call.score, call.grad = call.score.to("cuda:1"), call.grad.to("cuda:1")
    for _ in range(4):
        found = call.results()
    assert equal([x.cpu() for x in found], [x.cpu() for x in wanted])
