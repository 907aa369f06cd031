"""Bound launches of engine `triton` on a GPU: forward outputs have the bits of ordinary ones.

Its backward adds up in any order, but for few queries: other gradients are compared to a few roundings.
"""

from __future__ import annotations

import pytest
import torch

import regard
from regard import Mask

from .tools import all_ordinary, assert_equal_in_threads, captured, equal, none_ordinary

pytest.importorskip("triton")
from regard.engines.triton.engine import FEWEST_QUERIES_FOR_TILES

pytestmark = pytest.mark.gpu
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Case:
    """A call with its gradients."""

    def __init__(
        self, queries=130, keys=100, *, batch=2, heads=4, key_heads=4, hidden=16, dims=64,
        dtype=BF16, kind=regard.Additive, off=0, seed=0, want=(), **options,
    ):  # fmt: skip
        torch.manual_seed(seed)
        self.options, self.want = options, want

        def draw(*shape):
            # Off by a few elements, tensors begin where 16 bytes do not.
            numbers = torch.randn(off + torch.Size(shape).numel(), device="cuda")
            return numbers.to(dtype)[off:].view(shape).requires_grad_()

        self.q, self.k = draw(batch, heads, queries, hidden), draw(batch, key_heads, keys, hidden)
        self.v = draw(batch, key_heads, keys, dims)
        self.grad = draw(batch, heads, queries, dims).detach()
        self.score = kind(hidden, heads).to("cuda", dtype)
        self.leaves = [self.q, self.k, self.v, *self.score.parameters()]

    def forward(self):
        """The output and the statistics."""
        found = regard.attend(
            self.q, self.k, self.v, self.score, want=self.want, engine="triton", **self.options
        )
        return [found.output, *(getattr(found, name) for name in self.want)]

    def gradients(self, outputs, **options):
        ends = [self.grad, *(torch.ones_like(x) for x in outputs[1:])]
        return torch.autograd.grad(outputs, self.leaves, ends, **options)

    def results(self):
        """Outputs and gradients."""
        outputs = self.forward()
        found = self.gradients(outputs)
        return [x.detach() for x in outputs], found


def assert_near(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        assert float((x - y).abs().max()) <= 1e-2 * float(y.abs().max())


def assert_alike(found, wanted):
    assert equal(found[0], wanted[0])
    if found[0][0].shape[2] < FEWEST_QUERIES_FOR_TILES:
        assert equal(found[1], wanted[1])
    else:
        assert_near(found[1], wanted[1])


def lengths(*numbers):
    return Mask.lengths(keys=torch.tensor(numbers, device="cuda"))


CASES = {
    "bf16": lambda: Case(),
    "fp16": lambda: Case(dtype=FP16),
    "fp32": lambda: Case(dtype=FP32),
    "gatv2": lambda: Case(kind=regard.GATv2),
    "shared keys": lambda: Case(key_heads=2),
    "misaligned": lambda: Case(off=1),
    "odd sizes": lambda: Case(67, 33, hidden=7, dims=20),
    "one query": lambda: Case(1),
    "one query, many keys": lambda: Case(1, 3000, hidden=130, dims=300, dtype=FP32),
    "one query, shared keys": lambda: Case(1, 70, key_heads=1),
    "few queries": lambda: Case(7, dtype=FP32),
    "more queries": lambda: Case(9, dtype=FP32),
    "causal": lambda: Case(100, mask=Mask.causal()),
    "window": lambda: Case(mask=Mask.window(left=9, right=3, alignment="top_left")),
    "lengths": lambda: Case(mask=lengths(100, 0)),
    "statistics": lambda: Case(want=("lse", "entropy")),
    "one query, lengths": lambda: Case(1, mask=lengths(30, 0), want=("lse",)),
}


@pytest.mark.parametrize("name", CASES)
def test_bound_launches_give_what_ordinary_ones_give(name):
    call = CASES[name]()
    call.results()
    with all_ordinary() as seen:
        wanted = call.results()
    assert len(seen) >= (6 if call.q.shape[2] >= FEWEST_QUERIES_FOR_TILES else 4)
    call.results()
    with none_ordinary():
        assert_alike(call.results(), wanted)


@pytest.mark.parametrize("name", CASES)
def test_and_what_calls_without_a_plan_give(name, monkeypatch):
    from regard.engines.triton import bound, bound_backward

    call = CASES[name]()
    call.results()
    found = call.results()
    monkeypatch.setattr(bound, "call_signature", lambda args: None)
    monkeypatch.setattr(bound_backward, "call_signature", lambda args: None)
    assert_alike(found, call.results())


@pytest.mark.parametrize("name", CASES)
def test_the_output_alone_has_the_same_bits(name):
    """Where no gradient is asked for, it is written in its dtype at once."""
    call = CASES[name]()
    wanted = call.forward()
    with torch.no_grad():
        for _ in range(2):
            assert equal(call.forward(), wanted)
        with none_ordinary():
            assert equal(call.forward(), wanted)


def test_kinds_of_calls_take_turns():
    cases = [make() for make in CASES.values()]
    wanted = [case.results() for case in cases]
    for case in 2 * cases:
        case.results()
    with none_ordinary():
        for _ in range(3):
            for case, expected in zip(cases, wanted, strict=True):
                assert_alike(case.results(), expected)


def test_another_stream():
    """What is launched there waits for what is before it there, and for nothing else."""
    call = Case()
    with torch.no_grad():
        for _ in range(3):
            (wanted,) = call.forward()
    numbers = call.q.detach().clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), none_ordinary(), torch.no_grad():
        call.q.zero_()
        torch.cuda._sleep(50_000_000)
        call.q.copy_(numbers)
        (out,) = call.forward()
    stream.synchronize()
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("name", ["bf16", "causal", "one query"])
def test_a_captured_graph_holds_forward_and_backward(name):
    call = CASES[name]()
    graph, found = captured(call.results, 3)
    with torch.no_grad():
        for x in (*call.leaves, call.grad):
            x.copy_(torch.randn_like(x))
    graph.replay()
    assert_alike(found, call.results())


def test_threads():
    """The outputs: sums of gradients come in any order."""
    assert_equal_in_threads([Case(), Case(192, seed=1), Case(seed=2)], lambda x: x.results()[0])


def test_threads_with_one_query():
    """Whose gradients have one order."""
    cases = [Case(1, dtype=FP32), Case(1, 900, seed=1, dtype=FP32), Case(1, seed=2)]
    assert_equal_in_threads(cases, lambda case: [x for part in case.results() for x in part])


def test_a_backward_twice_and_with_other_strides():
    call = Case()
    outputs = call.forward()
    first, *_ = (call.gradients(outputs, retain_graph=True) for _ in range(3))
    with none_ordinary():
        assert_near(call.gradients(outputs, retain_graph=True), first)
    call.grad = call.grad.transpose(1, 2).contiguous().transpose(1, 2)
    assert_near(call.gradients(outputs, retain_graph=True), first)


def test_nothing_waits_for_the_device():
    call = Case(mask=Mask.causal(), queries=100)
    for _ in range(2):
        call.results()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.results()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_results_keep_no_workspace_alive():
    call = Case(2048, 2048)
    for _ in range(2):
        call.results()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    outputs, found = call.results()
    kept = [*outputs, *found]
    bytes_of = sum(-(-x.numel() * x.element_size() // 512) * 512 for x in kept)
    assert torch.cuda.memory_allocated() - before <= bytes_of


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_device_that_is_not_the_current_one():
    call, other = Case(), Case()
    wanted = call.results()[0][0]
    other.score = other.score.to("cuda:1")
    for name in ("q", "k", "v", "grad"):
        moved = getattr(call, name).detach().to("cuda:1")
        setattr(other, name, moved.requires_grad_(name != "grad"))
    other.leaves = [other.q, other.k, other.v, other.score.v]
    for _ in range(3):
        found = other.results()[0][0]
    assert torch.equal(found.cpu(), wanted.cpu())
