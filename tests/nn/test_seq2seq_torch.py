"""What torch does with the decoders: compile, export, save, autocast, copy, vmap."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call, stack_module_state
from torch.utils._pytree import tree_map_only

import regard
from regard.nn.seq2seq import (
    BahdanauAttention,
    EncoderDecoder,
    Location,
    LuongAttention,
    MonotonicAttention,
    RecurrentDecoder,
    RecurrentEncoder,
    greedy,
)

# Dynamo makes an object of every autograd.Function that it traces, and torch warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
WORDS, H, MEMORY = 9, 6, 8
ATTENTIONS = {
    "bahdanau": lambda: BahdanauAttention(H, MEMORY, 5, heads=2, bias=True, weight_norm=True),
    "location": lambda: BahdanauAttention(H, MEMORY, 5, location=Location(3, 2), coverage=True),
    "luong": lambda: LuongAttention(H, MEMORY, "general"),
    "monotonic": lambda: MonotonicAttention(regard.Bilinear(H, MEMORY), noise=0.0),
    "window": lambda: BahdanauAttention(H, MEMORY, 5, window=(1, 2)),
    "additive monotonic": lambda: MonotonicAttention(
        regard.Projected(regard.Additive(5), H, MEMORY), noise=0.0
    ),
}


def build(name: str = "bahdanau", **options) -> EncoderDecoder:
    decoder = RecurrentDecoder(WORDS, 5, H, ATTENTIONS[name](), MEMORY, **options)
    return EncoderDecoder(RecurrentEncoder(WORDS, 4, MEMORY // 2), decoder, bos=1, eos=2, pad=0)


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randint(3, 9, (3, 6)), torch.randint(3, 9, (3, 2)), torch.tensor([6, 3, 1])


def step(model: EncoderDecoder):
    """A function of tensors alone: one step, and the next from the state it returns."""

    def run(token, memory, state):
        logits, _, state = model.decoder.step(token, memory, state)
        return model.decoder.step(logits.argmax(-1), memory, state)

    return run


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().requires_grad_(x.is_floating_point())


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bahdanau", {}),
        ("location", {"attend": "after", "feed": True}),
        ("window", {"attend": "after", "kind": "lstm"}),
        pytest.param("monotonic", {}, marks=pytest.mark.slow),
    ],
)
def test_a_step_compiles_as_one_graph(fresh_dynamo, name, options):
    model = build(name, **options).eval()
    token = torch.tensor([3, 4, 5])
    compiled = torch.compile(step(model), fullgraph=True, backend="eager")
    with torch.no_grad():
        given = (token, *model.encode(*example()[::2]))
        torch.testing.assert_close(compiled(*given), step(model)(*given))


@pytest.mark.parametrize(
    "name", ["location", *(pytest.param(n, marks=pytest.mark.slow) for n in ("luong", "monotonic"))]
)
def test_teacher_forcing_compiles_with_gradients(fresh_dynamo, name):
    model = build(name)
    source, target, lengths = example()
    memory, state = tree_map_only(torch.Tensor, leaf, model.encode(source, lengths))
    wanted = [memory.value, memory.side[0], state.hidden, *model.decoder.parameters()]

    def everything(call):
        logits, weights, _ = call(target, memory, state)
        loss = logits.square().sum() + weights.square().sum()
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        return [logits, weights, *grads]

    compiled = torch.compile(model.decoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        everything(compiled), everything(model.decoder), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_a_step_compiles_with_inductor(fresh_dynamo):
    model = build("location").eval()
    token = torch.tensor([3, 4, 5])
    compiled = torch.compile(step(model), fullgraph=True)
    with torch.no_grad():
        given = (token, *model.encode(*example()[::2]))
        torch.testing.assert_close(compiled(*given), step(model)(*given))


class Step(torch.nn.Module):
    def __init__(self, decoder: RecurrentDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, token, memory, state):
        return self.decoder.step(token, memory, state)


def dynamic(x: torch.Tensor) -> dict:
    """Batch and source length may change; sizes of 1 (heads, layers) are part of the program."""
    return {dim: torch.export.Dim.AUTO for dim, size in enumerate(x.shape) if size > 1}


@pytest.mark.skipif(
    torch.__version__ < (2, 9), reason="torch.export of torch 2.6 warns of its own parameter nodes"
)
@pytest.mark.parametrize("name", ["bahdanau", "location", "monotonic"])
def test_a_step_is_exported_for_any_batch_and_source_length(name):
    """Memory and state are arguments and results, as every value is."""
    model = build(name).eval()
    token = torch.tensor([3, 4, 5])
    with torch.no_grad():
        given = (token, *model.encode(*example()[::2]))
        shapes = tree_map_only(torch.Tensor, dynamic, given)
        program = torch.export.export(Step(model.decoder), given, dynamic_shapes=shapes).module()
        longer = torch.randint(3, 9, (5, 10)), torch.tensor([10, 4, 1, 0, 7])
        for source, lengths in (example()[::2], longer):
            memory, state = model.encode(source, lengths)
            mine, theirs = (
                program(source[:, 0], memory, state),
                model.step(source[:, 0], memory, state),
            )
            torch.testing.assert_close(mine, theirs)
            mine = program(source[:, 1], memory, mine.state)
            torch.testing.assert_close(mine, model.step(source[:, 1], memory, theirs.state))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_safetensors_round_trip(name, tmp_path):
    model, other = build(name).eval(), build(name).eval()
    source, target, lengths = example()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(other(source, target, lengths), model(source, target, lengths))


def test_deepcopy_shares_nothing():
    model = build("location")
    copied = copy.deepcopy(model)
    source, target, lengths = example()
    expected = copied.loss(source, target, lengths)
    torch.testing.assert_close(model.loss(source, target, lengths), expected)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    torch.testing.assert_close(copied.loss(source, target, lengths), expected)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_autocast_trains_and_searches(name):
    model, (source, target, lengths) = build(name), example()
    exact = model.loss(source, target, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(source, target, lengths)
        found = greedy(model, source, lengths, max_length=5)
    loss.backward()
    torch.testing.assert_close(loss.float(), exact, rtol=0.03, atol=0.03)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert found.weights.dtype == torch.float32 and found.scores.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["location", "luong", "monotonic"])
def test_half_precision_keeps_the_running_total_in_single(name, dtype):
    attention = ATTENTIONS[name]()
    query, keys = torch.randn(2, 3, H), torch.randn(2, 7, MEMORY)
    exact = attention(query, attention.prepare(keys))
    attention.to(dtype)
    context, weights, state = attention(query.to(dtype), attention.prepare(keys.to(dtype)))
    assert context.dtype == dtype and state.total.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(weights, exact.weights, rtol=0.1, atol=0.03)


@pytest.mark.parametrize(
    "name", ["bahdanau", "luong", "location", "monotonic", "additive monotonic"]
)
def test_vmap_over_stacked_parameters(name):
    """With the reference engine: those with kernels of their own have no rule for vmap."""
    models = [ATTENTIONS[name]() for _ in range(3)]
    for model in models:
        model.engine = "reference"
    parameters, buffers = stack_module_state(models)
    query, keys = torch.randn(2, 4, H), torch.randn(2, 7, MEMORY)

    class Both(torch.nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def forward(self, query, keys):
            return self.attention(query, self.attention.prepare(keys)).context

    base = Both(copy.deepcopy(models[0]))

    def call(p, b):
        named = {f"attention.{key}": x for key, x in (p | b).items()}
        return functional_call(base, named, (query, keys))

    together = torch.func.vmap(call)(parameters, buffers)
    for model, context in zip(models, together, strict=True):
        torch.testing.assert_close(context, model(query, model.prepare(keys)).context)


@pytest.mark.parametrize("name", ["bahdanau", "luong", "additive monotonic"])
def test_vmap_over_sources_with_lengths(name):
    """Numbers inside of vmap cannot be looked at: their range goes unchecked there."""
    attention = ATTENTIONS[name]().eval()
    attention.engine = "reference"
    query, keys = torch.randn(3, 2, 4, H), torch.randn(3, 2, 7, MEMORY)
    lengths = torch.tensor([[7, 2], [0, 1], [5, 6]])

    def call(query, keys, lengths):
        return attention(query, attention.prepare(keys, lengths=lengths)).context

    expected = [call(*each) for each in zip(query, keys, lengths, strict=True)]
    together = torch.func.vmap(call)(query, keys, lengths)
    torch.testing.assert_close(together, torch.stack(expected))
