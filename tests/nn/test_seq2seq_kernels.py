"""A decoder's steps in kernels: that they say what plain operations say, and what goes another way."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regard
from regard import doctor
from regard.engines import step_plan
from regard.nn.seq2seq import (
    BahdanauAttention,
    DecoderAttention,
    Location,
    LuongAttention,
    attention,
    gathering,
    kernels,
)
from regard.nn.seq2seq.ready import Ready

pytest.importorskip("triton", minversion="3.6")
pytestmark = pytest.mark.interpreted

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
B, L, Q, K, V, E = 3, 37, 5, 7, 6, 24
LENGTHS = [L, 0, 20]

READY = {
    "bahdanau": lambda: BahdanauAttention(Q, K, E),
    "heads": lambda: BahdanauAttention(Q, K, E, heads=2),
    "concat": lambda: LuongAttention(Q, K, "concat"),
    "gatv2": lambda: DecoderAttention(regard.Projected(regard.GATv2(E, heads=2), Q, K)),
    "shared keys": lambda: DecoderAttention(
        regard.Projected(regard.Additive(E, 2), Q, K, key_heads=1, bias=True)
    ),
}
NOT_READY = {
    "everything": lambda: BahdanauAttention(
        Q, K, E, heads=2, bias=True, weight_norm=True, location=Location(3, 2), coverage=True
    ),
    "no projection": lambda: DecoderAttention(regard.Additive(K, 2), coverage=True),
}
ALL = READY | NOT_READY


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    """For each step "ready" or "kernels"; nothing for one in plain operations."""
    found: list[str] = []
    quick, slower = attention.ready_step, kernels.attend_in_kernels

    def ready(*given):
        result = quick(*given)
        found.extend(["ready"] if result is not None else [])
        return result

    def by_kernels(*given):
        result = slower(*given)
        found.extend(["kernels"] if result is not None else [])
        return result

    monkeypatch.setattr(attention, "ready_step", ready)
    monkeypatch.setattr(kernels, "attend_in_kernels", by_kernels)
    monkeypatch.setattr(step_plan, "STEPS_ON", ("cpu",))
    return found


@contextlib.contextmanager
def plain():
    """Steps in PyTorch's operations, as without a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_plan, "STEPS_ON", ())
        patch.setattr(attention, "ready_step", lambda *given: None)
        yield


def drawn(module, dtype=FP32):
    """Two queries, keys and values."""
    torch.manual_seed(0)
    width = module.score.query_dim or K
    shapes = ((2, B, width), (B, L, K), (B, L, V))
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def everything(module, given, lengths=None, all_ends=True):
    """What two steps return, and the gradients of all that they depend on."""
    queries, keys, values = given
    memory, state, found = module.prepare(keys, lengths=lengths, values=values), None, []
    for query in queries:
        context, weights, state = module(query, memory, state)
        found += [context, weights]
    found = [*found, *state] if all_ends else found[::2]
    torch.manual_seed(1)
    grads = [torch.randn(x.shape).bfloat16().to(x.dtype) for x in found]
    leaves = [*given, *module.parameters()]
    return found + list(torch.autograd.grad(found, leaves, grads, allow_unused=True))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all keys", "lengths"])
@pytest.mark.parametrize("name", ALL)
def test_kernels_say_what_plain_operations_say(name, lengths, taken):
    """With gradients of contexts alone, and of weights and states too."""
    torch.manual_seed(0)
    module = ALL[name]()
    given = drawn(module)
    for all_ends in (False, True):
        taken.clear()
        found = everything(module, given, lengths, all_ends)
        assert taken == ["ready" if name in READY else "kernels"] * 2
        with plain():
            wanted = everything(module, given, lengths, all_ends)
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", ["bahdanau", "heads", "everything"])
def test_half_precision_errs_no_more_than_plain_operations(name, dtype, taken):
    torch.manual_seed(0)
    module = ALL[name]()
    given = drawn(module)
    exact = copy.deepcopy(module).double()
    with plain():
        truth = everything(exact, [x.detach().double().requires_grad_() for x in given], LENGTHS)
    module.to(dtype)
    given = [x.detach().to(dtype).requires_grad_() for x in given]
    found = everything(module, given, LENGTHS)
    assert len(taken) == 2
    with plain():
        wanted = everything(module, given, LENGTHS)
    eps = torch.finfo(dtype).eps
    for x, y, right in zip(found, wanted, truth, strict=True):
        assert x.dtype == y.dtype
        scale = float(right.detach().abs().max()) + 1e-6
        errors = [float((z.double() - right).detach().abs().max()) for z in (x, y)]
        assert errors[0] <= 2 * errors[1] + 4 * eps * scale, (errors, scale)


def test_keys_that_lie_otherwise_in_memory(taken):
    """Length first, as an RNN returns them."""
    torch.manual_seed(0)
    module = BahdanauAttention(Q, K, E)
    queries, keys, values = drawn(module)
    given = [x.detach().transpose(0, 1).contiguous().transpose(0, 1) for x in (keys, values)]
    found = everything(module, [queries, *(x.requires_grad_() for x in given)])
    assert taken == ["ready"] * 2
    with plain():
        wanted = everything(module, [queries, keys, values])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_hidden_keys_may_hold_nan_and_give_no_gradient():
    torch.manual_seed(0)
    module = BahdanauAttention(Q, K, E)
    queries, keys, values = (x.detach() for x in drawn(module))
    broken, worse = keys.clone(), values.clone()
    broken[2, 20:], worse[2, 20:] = torch.nan, torch.nan
    for leaf in (broken, worse):
        leaf.requires_grad_()
    memory = module.prepare(broken, lengths=LENGTHS, values=worse)
    context, weights, _ = module(queries[0], memory)
    assert not context.isnan().any() and not weights[2, :, 20:].any()
    assert not context[1].any() and not weights[1].any()
    context.sum().backward()
    assert not broken.grad[2, 20:].any() and not worse.grad[2, 20:].any()
    assert all(not p.grad.isnan().any() for p in module.parameters())


def test_nan_in_a_query_stays_in_its_sequence():
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = (x.detach() for x in drawn(module))
    query = queries[0].clone()
    query[:2] = torch.nan  # the second of them sees nothing
    context, weights, _ = module(query, module.prepare(keys, lengths=LENGTHS))
    assert context[0].isnan().all() and not context[1:].isnan().any()
    assert weights[0].isnan().all() and not weights[1:].isnan().any()


class Passes:
    """Backward passes through one graph."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = BahdanauAttention(Q, K, E)
        self.given = drawn(self.module)
        queries, keys, values = self.given
        self.memory, state, found = self.module.prepare(keys, values=values), None, []
        for query in queries:
            context, _, state = self.module(query, self.memory, state)
            found.append(context)
        self.loss = (torch.stack(found) * torch.randn(2, B, V)).sum()

    def grads(self, leaves):
        return torch.autograd.grad(self.loss, leaves, retain_graph=True)


def test_a_second_backward_pass_adds_nothing_of_the_first():
    x = Passes()
    leaves = [*x.given, *x.module.parameters()]
    first = x.grads(leaves)
    # A pass that wants nothing of the memory leaves its sums behind.
    for _ in range(2 * gathering.MOST_PASSES):
        torch.testing.assert_close(x.grads(x.given[:1])[0], first[0])
    for again in (x.grads(leaves), x.grads(leaves)):
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b)
    assert len(x.memory.ready.gathering.sums) <= gathering.MOST_PASSES


def test_other_uses_of_the_memory_have_their_gradients_too():
    """Its values and keys may be looked at without the kernels."""
    found = []
    for way in (contextlib.nullcontext, plain):
        with way():
            x = Passes()
            loss = x.loss + (x.memory.value**2).sum() + x.memory.side.b.sin().sum()
            found.append(torch.autograd.grad(loss, [*x.given, *x.module.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_second_derivatives():
    """Of plain operations, which stand in where a gradient is recorded."""
    found = []
    for way in (contextlib.nullcontext, plain):
        with way():
            x = Passes()
            leaves = [*x.given, *x.module.parameters()]
            grads = torch.autograd.grad(x.loss, leaves, create_graph=True)
            found.append(torch.autograd.grad(sum((g**2).sum() for g in grads), leaves))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_a_batch_of_gradients():
    found = []
    for way in (contextlib.nullcontext, plain):
        with way():
            x = Passes()
            leaves = [*x.given, *x.module.parameters()]
            grads = torch.tensor([1.0, -2.0])
            found.append(torch.autograd.grad(x.loss, leaves, grads, is_grads_batched=True))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_under_a_checkpoint():
    torch.manual_seed(0)
    module = BahdanauAttention(Q, K, E)
    queries, keys, values = drawn(module)

    def run(query, memory):
        return module(query, memory).context

    found = []
    for outer in (True, False):
        memory = module.prepare(keys, values=values)
        steps = [
            checkpoint(run, query, memory, use_reentrant=False) if outer else run(query, memory)
            for query in queries
        ]
        torch.manual_seed(1)
        loss = (torch.stack(steps) * torch.randn(2, B, V)).sum()
        for x in (queries, keys, values, *module.parameters()):
            x.grad = None
        loss.backward()
        found.append([x.grad.clone() for x in (queries, keys, values, *module.parameters())])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_memory_is_freed_with_the_last_step():
    """Gradients are kept nowhere: no object refers to itself."""
    gc.collect()
    gc.disable()
    try:
        x = Passes()
        x.grads([*x.given, *x.module.parameters()])
        kept = weakref.ref(x.memory.ready.gathering)
        del x
        assert kept() is None
    finally:
        gc.enable()


def replaced_values(module, memory):
    return memory._replace(value=memory.value * 2)


def replaced_keys(module, memory):
    return memory._replace(side=type(memory.side)(memory.side.b * 2))


def other_mask(module, memory):
    return memory._replace(visible=torch.rand(B, L) < 0.5)


def reordered(module, memory):
    return memory.reorder(torch.tensor([2, 1, 0]))


def copied(module, memory):
    # What autograd knows of it cannot be pickled.
    side = type(memory.side)(memory.side.b.detach())
    memory = memory._replace(side=side, value=memory.value.detach())
    return pickle.loads(pickle.dumps(memory))  # noqa: S301 - our own


def new_v(module, memory):
    module.score.score.v = torch.nn.Parameter(torch.randn(1, E))
    return memory


def other_data(module, memory):
    module.score.score.v.data = torch.randn(1, E)
    return memory


CHANGES = (replaced_values, replaced_keys, other_mask, reordered, copied, new_v, other_data)


@pytest.mark.parametrize("change", CHANGES)
def test_a_memory_that_was_changed_is_asked_anew(change, taken):
    torch.manual_seed(0)
    module = BahdanauAttention(Q, K, E)
    queries, keys, values = (x.detach() for x in drawn(module))
    # With gradients, so that the kernels have a view of v.
    memory = module.prepare(keys, lengths=LENGTHS, values=values)
    with torch.no_grad():
        memory = change(module, memory)
        found = module(queries[0], memory)
        with plain():
            wanted = module(queries[0], memory)
    assert "ready" not in taken
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_v_may_be_trained_between_steps(taken):
    """In place, as optimisers do it: the kernels read it where it lies."""
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = (x.detach() for x in drawn(module))
    with torch.no_grad():
        memory = module.prepare(keys)
        module.score.score.v.mul_(-3)
        module.score.query_weight.add_(0.1)
        found = module(queries[0], memory)
        with plain():
            wanted = module(queries[0], memory)
    assert taken == ["ready"]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_what_looks_on_sees_another_way(taken):
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = (x.detach() for x in drawn(module))
    memory = module.prepare(keys)
    wanted = module(queries[0], memory)
    assert taken == ["ready"]
    with doctor.watch(module):
        watched = module(queries[0], memory)
    with torch.profiler.profile():
        profiled = module(queries[0], memory)
    with torch.autocast("cpu", BF16):
        module(queries[0], memory)
    together = torch.func.vmap(lambda query: module(query, memory).context)(queries)
    assert taken == ["ready"]
    for found in (watched, profiled):
        torch.testing.assert_close(found.context, wanted.context, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together[0], wanted.context, rtol=1e-4, atol=1e-5)


def test_options_that_change_a_step_go_another_way(taken):
    module = BahdanauAttention(Q, K, E, window=(1, 2), dropout=0.5)
    queries, keys, _ = (x.detach() for x in drawn(module))
    memory = module.prepare(keys)
    module(queries[0], memory)
    module.eval()(queries[0], memory)
    module.window = None
    module(queries[0], memory)
    assert taken == ["ready"]
    module.engine = "reference"
    module(queries[0], memory)
    assert taken == ["ready"]


def test_weights_may_be_changed_by_the_caller(taken):
    found = []
    for change in (False, True):
        torch.manual_seed(0)
        module = BahdanauAttention(Q, K, E)
        queries, keys, values = drawn(module)
        context, weights, _ = module(queries[0], module.prepare(keys, values=values))
        if change:
            weights.detach().zero_()
        context.sum().backward()
        found.append(keys.grad)
    assert torch.equal(*found) and taken == ["ready"] * 2


def test_states_of_another_kind(taken):
    """Of another dtype, or not dense."""
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = (x.detach() for x in drawn(module))
    memory = module.prepare(keys)
    state = module.initial_state(memory)
    total = torch.rand(B, L, 1).transpose(1, 2)
    found = module(queries[0], memory, state._replace(total=total)).state
    torch.testing.assert_close(found.total, total + found.weights)
    double = module(queries[0], memory, state._replace(total=total.double())).state
    torch.testing.assert_close(double.total.float(), found.total)


def test_wrong_calls_have_their_own_errors():
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = (x.detach() for x in drawn(module))
    memory = module.prepare(keys)
    with pytest.raises(TypeError, match="cast one, or use"):
        module(queries[0].double(), memory)
    with pytest.raises(ValueError, match="batch"):
        module(queries[0][:2], memory)
    with pytest.raises(ValueError, match="query dim"):
        module(queries[0][:, :3], memory)
    other = module.initial_state(module.prepare(keys[:, :9]))
    with pytest.raises(ValueError, match="belongs to the memory"):
        module(queries[0], memory, other)
    module.score.score.double()
    with pytest.raises(TypeError, match=r"score parameter 'score.v' is torch.float64"):
        module(queries[0], memory)


def test_a_memory_says_its_sizes():
    """Of what was given; not what kernels need."""
    module = BahdanauAttention(Q, K, E)
    memory = module.prepare(drawn(module)[1])
    assert isinstance(memory.ready, Ready) and repr(memory.ready) == f"Ready(queries=({B}, {Q}))"
    assert repr(memory).endswith("visible=None, zeroed=None, hidden=None)")


def test_large_tensors_are_left_to_other_engines(monkeypatch, taken):
    """Launches are bound for strides of 32 bits."""
    monkeypatch.setattr(step_plan, "MOST_NUMBERS", B * L * E - 1)
    module = BahdanauAttention(Q, K, E)
    queries, keys, _ = (x.detach() for x in drawn(module))
    module(queries[0], module.prepare(keys))
    assert taken == []
