"""Layers and stacks under torch's own tools: compile, export, autocast, vmap, copies, hooks."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import regard
from regard.nn.position import Alibi, Rotary, Sinusoidal
from regard.nn.transformer.blocks import DecoderBlock, EncoderBlock
from regard.nn.transformer.stacks import Decoder, Encoder

DIM, HEADS = 8, 2


def tokens(length: int = 5, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(2, length, DIM, dtype=dtype)


def models(**more) -> dict[str, nn.Module]:
    return {
        "dot": Decoder(
            [DecoderBlock(DIM, HEADS, position=Rotary(4), key_heads=1, qk_norm="rms", **more)],
            position=Sinusoidal(DIM),
        ),
        "additive": Decoder(
            [DecoderBlock(DIM, HEADS, regard.Additive(3, HEADS), position=Alibi(2), **more)]
        ),
    }


class Step(nn.Module):
    """One step as a module, for torch.export."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x, cache):
        return self.model.step(x, cache)


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


IGNORED = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.mark.skipif(
    torch.__version__ < (2, 9), reason="Dynamo of torch 2.6 cannot trace & of two dataclasses"
)
@IGNORED
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_training_and_steps_compile_in_one_graph(name, fresh_dynamo):
    model, x = models()[name], tokens()
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    step = torch.compile(model.step, fullgraph=True, backend="eager", dynamic=True)
    with torch.no_grad():
        y, cache = model.step(x[:, :2], model.begin(left_padding=torch.tensor([0, 1])))
        whole = model(x, left_padding=[0, 1])
        for i in range(2, 5):
            y, cache = step(x[:, i : i + 1], cache)
            torch.testing.assert_close(y, whole[:, i : i + 1])


@pytest.mark.skipif(
    torch.__version__ < (2, 9), reason="torch.export of torch 2.6 warns of its own parameter nodes"
)
@IGNORED
@torch.no_grad()
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_a_step_exports_with_a_cache_of_any_length(name):
    model, x = models()[name], tokens(9)
    start = torch.tensor([0, 1])
    _, cache = model.step(x[:, :3], model.begin(left_padding=start))
    length = torch.export.Dim("length", min=2, max=512)
    shapes = torch.utils._pytree.tree_map(
        lambda t: None if t is None or t.ndim < 4 else {2: length}, cache
    )
    program = torch.export.export(
        Step(model), (x[:, 3:4], cache), dynamic_shapes=(None, shapes), strict=False
    ).module()
    whole = model(x, left_padding=start)
    for i in range(3, 9):
        y, cache = program(x[:, i : i + 1], cache)
        torch.testing.assert_close(y, whole[:, i : i + 1])


@pytest.mark.parametrize("name", ["dot", "additive"])
def test_autocast_and_half_precision(name):
    model, x = models()[name], tokens()
    wanted = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = model(x)
        _, cache = model.step(x[:, :3])
        last, cache = model.step(x[:, 3:], cache)
    assert cache.own[0].value.dtype == torch.bfloat16
    for found in (whole, torch.cat([whole[:, :3], last], 1), model.bfloat16()(x.bfloat16())):
        torch.testing.assert_close(found.float(), wanted, rtol=0.1, atol=0.1)


def test_copies_and_stacked_parameters():
    x = tokens()
    for name, model in models(engine="reference").items():
        several = [copy.deepcopy(model) for _ in range(3)]
        assert torch.equal(several[0](x), model(x))
        for one in several:
            for p in one.parameters():
                nn.init.normal_(p, std=0.3)
        stacked = vmap(lambda p, b, m=model: functional_call(m, (p, b), (x,)))(
            *stack_module_state(several)
        )
        for found, one in zip(stacked, several, strict=True):
            torch.testing.assert_close(found, one(x), msg=name)


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_hooks_of_blocks_run_inside_a_stack(kind):
    """Sharding and checkpointing are built on them."""
    block = EncoderBlock if kind is Encoder else partial(DecoderBlock, memory_dim=3)
    model, seen = kind([block(DIM, HEADS) for _ in range(2)]).double(), []
    for one in model.blocks:
        one.register_forward_hook(lambda module, given, output: seen.append(module))
    memory = () if kind is Encoder else (torch.randn(2, 3, 3).double(),)
    x = tokens(dtype=torch.float64)
    output = model(x, *memory, lengths=[5, 3])
    assert seen == list(model.blocks)
    if kind is Encoder:
        assert torch.equal(output, model.attend(x, lengths=[5, 3]).output)
