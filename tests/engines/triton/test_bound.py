"""Bound launches of common calls: which calls they serve, what they keep, and that they change no result."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

import regard
from regard import Mask
from regard.forms import PairwiseKey, PairwiseQuery

from ...edge.tools import Names
from .tools import deterministic, inputs

pytest.importorskip("triton", minversion="3.6")
from regard.engines.triton import bound, bound_backward

pytestmark = pytest.mark.interpreted
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
HIDDEN, VALUE = 3, 4


def arguments_of(tensors, score, **options):
    """The operators' arguments of a call."""
    found = []

    class Stop(Exception):
        pass

    def stop(args, *_, **__):
        found.append(args)
        raise Stop

    original, bound.find_forward = bound.find_forward, stop
    try:
        with pytest.raises(Stop), torch.no_grad():
            regard.attention(*tensors, score, engine="triton", **options)
    finally:
        bound.find_forward = original
    return found[0]


@contextmanager
def ordinary(monkeypatch):
    """Nothing is common."""
    with monkeypatch.context() as patch:
        patch.setattr(bound, "call_signature", lambda args: None)
        patch.setattr(bound_backward, "call_signature", lambda args: None)
        yield


def call(queries=20, keys=23, *, dtype=FP32, kind=regard.Additive, hidden=HIDDEN, **sizes):
    torch.manual_seed(0)
    tensors = inputs(queries, keys, hidden=hidden, value_dim=VALUE, dtype=dtype, **sizes)
    return tensors, kind(hidden, tensors[0].shape[1]).to(dtype)


def results(tensors, score, want=(), **options):
    """Output, statistics and gradients."""
    torch.manual_seed(1)
    found = regard.attend(*tensors, score, want=want, engine="triton", **options)
    outputs = [found.output, *(getattr(found, name) for name in want)]
    sums = [(x.nan_to_num(0.0, 0.0, 0.0) * torch.randn(x.shape)).sum() for x in outputs]
    leaves = [*tensors, *score.parameters()]
    return [x.detach() for x in outputs], torch.autograd.grad(sum(sums), leaves)


MASKS = {
    "none": None,
    "causal": Mask.causal(),
    "window": Mask.window(left=5, right=2),
    "lengths": Mask.lengths(keys=torch.tensor([23, 0])),
    "both lengths": Mask.lengths(keys=torch.tensor([9, 23]), queries=torch.tensor([20, 4])),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16])
def test_results_are_those_of_ordinary_launches(mask, dtype, monkeypatch):
    tensors, score = call(dtype=dtype, batch=2, heads=4, key_heads=2)
    options = {"mask": MASKS[mask], "want": ("lse", "entropy") if dtype == FP16 else ()}
    found = results(tensors, score, **options)
    kept = (bound.kept_forwards, bound_backward.kept_backwards)
    assert all(cache.entry.cache_info().currsize for cache in kept)
    with ordinary(monkeypatch):
        wanted = results(tensors, score, **options)
    assert all(torch.equal(x, y) for x, y in zip(found[0], wanted[0], strict=True))
    for x, y in zip(found[1], wanted[1], strict=True):
        assert x.dtype == y.dtype and x.stride() == y.stride()
        assert float((x - y).abs().max()) <= 4 * torch.finfo(dtype).eps * float(y.abs().max())


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("queries", [1, 7, 16])
@pytest.mark.parametrize("mask", ["none", "lengths"])
def test_so_are_those_of_gatv2_and_of_few_queries(dtype, queries, mask, monkeypatch):
    tensors, score = call(queries, dtype=dtype, kind=regard.GATv2, batch=2)
    found = results(tensors, score, mask=MASKS[mask])
    with ordinary(monkeypatch):
        wanted = results(tensors, score, mask=MASKS[mask])
    assert all(torch.equal(x, y) for x, y in zip(found[0], wanted[0], strict=True))
    for x, y in zip(found[1], wanted[1], strict=True):
        assert float((x - y).abs().max()) <= 4 * torch.finfo(dtype).eps * float(y.abs().max())


def test_calls_share_launches_only_where_all_that_matters_agrees():
    def kind(tensors, score, **options):
        return bound.call_signature(arguments_of(tensors, score, **options))

    first = kind(*call())
    assert first is not None and kind(*call()) == first
    kept = [
        bound.kept_forwards(first, *how) for how in ((False, False), (True, False), (False, True))
    ]
    assert len(set(kept)) == 3
    assert bound.kept_forwards(kind(*call()), False, False) is kept[0]
    assert kind(*call(), temperature=0.5) == first  # v is another, its signature is not
    tensors, score = call()
    strided = [x.detach().mT.contiguous().mT for x in tensors]
    others = [
        kind(*call(21)),
        kind(*call(keys=24)),
        kind(*call(dtype=FP16)),
        kind(*call(key_heads=1)),
        kind(*call(batch=2)),
        kind(*call(hidden=4)),
        kind(*call(kind=regard.GATv2)),
        kind(strided, score),
        kind(tensors, score, mask=Mask.causal()),
        kind(tensors, score, mask=Mask.window(left=3)),
        kind(tensors, score, mask=Mask.lengths(keys=torch.tensor([3]))),
        first._replace(device=torch.device("cuda", 1)),
    ]
    assert len({first, *others}) == 1 + len(others) and None not in others


@pytest.mark.parametrize(
    "options",
    [
        {"bias": torch.zeros(20, 23)},
        {"mask": torch.ones(20, 23, dtype=torch.bool)},
        {"mask": Mask.segments(torch.zeros(20).long(), torch.zeros(23).long())},
        {"dropout": 0.5},
        {"softcap": 2.0},
        {"temperature": torch.full((20, 1), 0.5)},
    ],
)
def test_rarer_calls_are_not_bound(options):
    tensors, score = call()
    assert bound.call_signature(arguments_of(tensors, score, **options)) is None


def test_nor_have_inner_forms_fp64_and_empty_calls():
    tensors, score = call()
    assert bound.call_signature(arguments_of(tensors, regard.Dot())) is None
    wide = [x.double() for x in tensors]
    assert bound.call_signature(arguments_of(wide, score.double())) is None
    tensors, score = call(keys=0)
    assert bound.call_signature(arguments_of(tensors, score)) is None


def test_a_fixed_order_of_sums_is_not_bound():
    tensors, score = call(19)
    bound_backward.kept_backwards.clear()
    with deterministic():
        results(tensors, score)
    assert bound_backward.kept_backwards.entry.cache_info().currsize == 0


def test_what_is_kept_is_bounded_and_holds_no_tensor_of_a_call():
    for cache in (bound.kept_forwards, bound_backward.kept_backwards):
        assert cache.entry.cache_info().maxsize == 256
    tensors, score = call(18)
    found = results(tensors, score, mask=Mask.causal(), want=("lse",))
    seen = [weakref.ref(x) for x in (*tensors, score.v, *found[0], *found[1])]
    del tensors, score, found
    gc.collect()
    assert all(ref() is None for ref in seen)


class SharedV(regard.PairwiseScore):
    """All heads have one v."""

    name, activation = "one v for all", "tanh"

    def query(self, q):
        return PairwiseQuery(q, torch.linspace(-1, 1, q.shape[-1])[None].to(q))

    def key(self, k):
        return PairwiseKey(k)


@pytest.mark.parametrize("queries", [1, 3, 17])
@pytest.mark.parametrize("options", [{}, {"softcap": 9.0}], ids=["bound", "ordinary"])
def test_a_v_that_all_heads_share_is_not_read_beyond_its_end(queries, options):
    """The kernel for few queries took what follows it in memory for the v of the next head."""
    tensors, _ = call(queries, batch=2)
    found, wanted = (
        regard.attention(*tensors, SharedV(), engine=name, **options)
        for name in ("triton", "reference")
    )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    leaves, grad = tensors, torch.randn_like(found)
    of_found, of_wanted = (torch.autograd.grad(x, leaves, grad) for x in (found, wanted))
    for x, y in zip(of_found, of_wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_backward_twice_and_with_other_strides():
    tensors, score = call()
    out = regard.attention(*tensors, score, engine="triton")
    grad = torch.randn(out.shape)
    leaves = [*tensors, score.v]
    first = torch.autograd.grad(out, leaves, grad, retain_graph=True)
    for same in (grad, grad.mT.contiguous().mT):
        again = torch.autograd.grad(out, leaves, same, retain_graph=True)
        for x, y in zip(first, again, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["cpu", "triton"])
def test_who_looks_for_the_operator_finds_it(engine):
    """Plain calls go past the dispatcher, and give the same."""
    tensors, score = call()

    def both():
        out = regard.attention(*tensors, score, engine=engine)
        return out, *torch.autograd.grad(out.sum(), tensors)

    plain = both()
    with Names() as mode:
        watched = both()
    assert all(torch.equal(x, y) for x, y in zip(plain, watched, strict=True))
    found = {f"regard.{engine}_{name}.default" for name in ("attend", "attend_backward")}
    assert found <= set(mode.names)


@pytest.mark.parametrize("engine", ["cpu", "triton"])
def test_gradients_in_a_batch(engine):
    """They come as one tensor without memory, which only the dispatcher can take apart."""
    tensors, score = call()
    out = regard.attention(*tensors, score, engine=engine)
    grads = torch.randn(2, *out.shape)
    found = torch.autograd.grad(out, tensors, grads, is_grads_batched=True, retain_graph=True)
    for i, grad in enumerate(grads):
        wanted = torch.autograd.grad(out, tensors, grad, retain_graph=True)
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x[i], y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["cpu", "triton"])
def test_a_tensor_that_is_negated_on_reading(engine):
    """The memory of the imaginary part of a conjugate is not what it says."""
    tensors, score = call()
    q = torch.complex(torch.zeros_like(tensors[0]), tensors[0]).detach().conj().imag
    assert q.is_neg()
    found = regard.attention(q, *tensors[1:], score, engine=engine)
    wanted = regard.attention(-tensors[0].detach(), *tensors[1:], score, engine=engine)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16])
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("mask", ["none", "lengths"])
def test_the_output_alone_has_the_same_bits(dtype, queries, mask, monkeypatch):
    """Where no gradient is asked for, nothing else is written."""
    tensors, score = call(queries, dtype=dtype, batch=2)
    with_history = regard.attention(*tensors, score, mask=MASKS[mask], engine="triton")
    with torch.no_grad():
        found = regard.attention(*tensors, score, mask=MASKS[mask], engine="triton")
        with ordinary(monkeypatch):
            wanted = regard.attention(*tensors, score, mask=MASKS[mask], engine="triton")
    assert torch.equal(found, with_history) and torch.equal(found, wanted)
    assert found.dtype == dtype and found.untyped_storage().nbytes() == found.nbytes
