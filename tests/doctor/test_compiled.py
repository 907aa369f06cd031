"""Under `torch.compile`: seen by name, compiled once, no graph break, the same bits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import regard
from regard.doctor.watch import watch

from ..compile.tools import HAS_COMPILER, OLD_DYNAMO
from .watching import DIM, HEADS, Attention, Eager, Kept, Stack, assert_same_bits, pass_through
from .watching import tokens as random_tokens

NEW_DYNAMO = pytest.mark.skipif(OLD_DYNAMO, reason="what the compiler of torch 2.6 cannot trace")
pytestmark = [
    # Dynamo makes an object of every autograd.Function that it traces, and torch warns of it.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    # It looks for gradients of tensors that it is given, leaves or not.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Torch(nn.MultiheadAttention):
    def __init__(self, need_weights: bool) -> None:
        super().__init__(DIM, HEADS, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x):
        return super().forward(x, x, x, need_weights=self.need_weights)[0]


class Checkpointed(Stack):
    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


# Model, and whether gradients of its queries are read inside a graph.
MODELS = {
    "sdpa": (lambda: Stack(Attention(True), Attention()), True),
    "eager": (lambda: Stack(Eager(True), Eager()), False),
    "torch": (lambda: Stack(Torch(False), Torch(False)), True),
    "torch with weights": (lambda: Stack(Torch(True), Torch(True)), False),
    "checkpointed": (lambda: Checkpointed(Attention(), Attention()), True),
    "checkpointed eager": (lambda: Checkpointed(Eager(), Eager()), False),
    "regard": (lambda: Stack(*(regard.nn.SelfAttention(DIM, HEADS) for _ in "12")), True),
    "additive": (
        lambda: Stack(*(regard.nn.SelfAttention(DIM, HEADS, score="additive") for _ in "12")),
        True,
    ),
}
QUICK = ("sdpa", "eager")
SLOW = [pytest.mark.slow, NEW_DYNAMO]
SOME_SLOW = [x if x in QUICK else pytest.param(x, marks=SLOW) for x in MODELS]


def grads(d, site: str, side: str = "query") -> torch.Tensor:
    return d.history(site).values[..., d.vitals.index(f"{side}_grad")]


@pytest.mark.parametrize("name", SOME_SLOW)
def test_compiled_before(name):
    make, with_gradients = MODELS[name]
    model, x, counter = make(), random_tokens(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    before = pass_through(compiled, x)
    with watch(model, "sampled", every=3, vitals=Kept().vitals) as d:
        for _ in range(4):
            assert_same_bits(pass_through(compiled, x), before)
    assert counter.frame_count == 2  # without the watch, and with it
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 4 and d.notes == []
    assert d.history("layers.0").values[:, 0, 1].isfinite().tolist() == [True, False, False, True]
    assert grads(d, "layers.1").isfinite().all() == with_gradients
    assert_same_bits(pass_through(compiled, x), before)
    assert counter.frame_count == 2 and d.steps == 4
    assert d.capture.stack == [] and d.capture.follower.idle()


@pytest.mark.slow
def test_numbers_are_those_of_eager_mode():
    model, x = Stack(Attention(True), Attention()), random_tokens()
    with watch(model, vitals=Kept().vitals) as plain:
        pass_through(model, x)
    compiled = torch.compile(model, backend="aot_eager")
    with watch(compiled, vitals=Kept().vitals) as d:
        pass_through(compiled, x)
    assert d.sites == plain.sites
    for site in d.sites:
        torch.testing.assert_close(d.history(site).values, plain.history(site).values)


def test_one_compile_in_a_hundred_steps_of_all_vitals():
    model, x, counter = Stack(Attention()), random_tokens(), CompileCounterWithBackend("aot_eager")
    with watch(model, "sampled", every=7, window=20) as d:
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for _ in range(100):
            compiled(x).sum().backward()
    assert counter.frame_count == 1 and d.steps == 100
    assert d.history("layers.0").steps == list(range(81, 101)) and d.notes == []


@pytest.mark.slow
@NEW_DYNAMO
def test_a_second_watch_compiles_nothing_again():
    model, x, counter = Stack(Attention()), random_tokens(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(3):
        with watch(model, vitals=Kept().vitals) as d:
            compiled(x)
        assert d.sites == ["layers.0"] and d.steps == 1
    assert counter.frame_count == 1


def test_layers_compiled_one_by_one_share_a_graph():
    model, x = Stack(*(Attention() for _ in range(5))), random_tokens()
    counter = CompileCounterWithBackend("aot_eager")
    for layer in model.layers:
        layer.compile(backend=counter, fullgraph=True)
    before = pass_through(model, x)
    without = counter.frame_count
    with watch(model, vitals=Kept().vitals) as d:
        for _ in range(3):
            assert_same_bits(pass_through(model, x), before)
    assert counter.frame_count == 2 * without
    assert d.sites == [f"layers.{i}" for i in range(5)] and d.steps == 3
    assert grads(d, "layers.4").isfinite().all()


@pytest.mark.slow
def test_a_training_step_compiled_as_a_function():
    model, x = Stack(Attention()), random_tokens()
    step = torch.compile(lambda x: model(x).square().sum(), backend="aot_eager", fullgraph=True)
    with watch(model, vitals=Kept().vitals) as d:
        for _ in range(2):
            step(x).backward()
    assert d.sites == ["layers.0"] and d.steps == 2 and grads(d, "layers.0").isfinite().all()


@pytest.mark.slow
def test_new_lengths_do_not_compile_again():
    model, counter = Stack(Attention()), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    with watch(model, "sampled", every=1) as d:
        for length in (5, 6, 9, 17):
            compiled(random_tokens(length=length))
    assert counter.frame_count == 1 and d.steps == 4 and d.notes == []


@pytest.mark.slow
def test_a_graph_break_in_the_model():
    class Breaks(Attention):
        def forward(self, x):
            torch._dynamo.graph_break()
            return super().forward(x)

    model, x = Stack(Breaks(), Attention()), random_tokens()
    compiled = torch.compile(model, backend="aot_eager")
    before = pass_through(compiled, x)
    with watch(model, vitals=Kept().vitals) as d:
        for _ in range(3):
            assert_same_bits(pass_through(compiled, x), before)
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 3


def test_backend_that_runs_python_is_not_seen_twice():
    model, x = Stack(Attention(), Eager()), random_tokens()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with watch(model, vitals=Kept().vitals) as d:
        pass_through(compiled, x)
    assert d.sites == ["layers.0", "layers.1"]


def test_a_model_that_is_a_graph_of_fx():
    class Plain(nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model = torch.fx.symbolic_trace(Plain())
    with watch(model, vitals=Kept().vitals) as d:
        model(random_tokens())
    assert len(d.sites) == 1


@pytest.mark.slow
def test_examine_runs_uncompiled():
    model, x, counter = Stack(Attention()), random_tokens(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    with watch(compiled, "cheap") as d:
        compiled(x)
        found = d.examine(x)
    assert counter.frame_count == 1 and list(found) == ["layers.0"]


def test_attention_of_regard_compiles_and_exports_whole_when_not_watched():
    class Own(Attention):
        def attend(self, query, key, value):
            return regard.attention(query, key, value)

    layer, x = Own(), random_tokens()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))
    with watch(layer, vitals=Kept().vitals):
        pass
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


@pytest.mark.slow
def test_distributed_and_compiled():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(Stack(Attention(), Attention()))
        compiled, x = torch.compile(parallel, backend="aot_eager"), random_tokens()
        before = pass_through(compiled, x)
        with watch(compiled, vitals=Kept().vitals) as d:
            for _ in range(3):
                assert_same_bits(pass_through(compiled, x), before)
    finally:
        dist.destroy_process_group()
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 3
    assert grads(d, "layers.0").isfinite().all()


@pytest.mark.slow
@NEW_DYNAMO
@pytest.mark.skipif(not HAS_COMPILER, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("name", ["sdpa", "torch", "checkpointed", "additive"])
def test_inductor(name):
    make, _ = MODELS[name]
    model, x = make(), random_tokens()
    compiled = torch.compile(model, fullgraph=True)
    before = pass_through(compiled, x)
    with watch(model, "sampled", every=2) as d:
        for _ in range(3):
            assert_same_bits(pass_through(compiled, x), before)
    assert d.sites == ["layers.0", "layers.1"] and d.steps == 3 and d.notes == []
    assert grads(d, "layers.0").isfinite().all()


@pytest.mark.slow
@NEW_DYNAMO
def test_a_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    for kind in ("sdpa", "eager"):
        torch._dynamo.reset()
        config._attn_implementation = kind
        model, x = transformers.LlamaForCausalLM(config), torch.randint(3, 40, (2, 7))
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter)
        before = pass_through(compiled, x)
        without = counter.frame_count
        with watch(model, "sampled", every=2) as d:
            for _ in range(3):
                assert_same_bits(pass_through(compiled, x), before)
        assert counter.frame_count == 2 * without
        assert d.sites == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
        assert d.steps == 3 and d.notes == []
