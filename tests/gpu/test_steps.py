"""Steps of decoders, generation and weights on request on a GPU, at real sizes."""

from __future__ import annotations

import copy

import pytest
import torch

from regard.engines import step_plan
from regard.nn import Decoder, DecoderBlock, MultiheadAttention
from regard.nn.seq2seq import BahdanauAttention, LuongAttention
from regard.nn.transformer import quick

from .test_triton_gpu import BF16, DEVICE
from .tools import none_ordinary

pytestmark = pytest.mark.gpu
FP32, FP16 = torch.float32, torch.float16
BATCH, WIDTH = 16, 512


def looped(module, given, lengths=None):
    """Contexts and weights of three steps, and the gradients of all that they depend on."""
    queries, keys = given
    memory, state, found = module.prepare(keys, lengths=lengths), None, []
    for query in queries:
        context, weights, state = module(query, memory, state)
        found += [context, weights]
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(x.shape, generator=generator).to(x) for x in found]
    return found + list(torch.autograd.grad(found, [*given, *module.parameters()], grads))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("keys", [30, 1500])
@pytest.mark.parametrize(
    "make",
    [
        lambda: BahdanauAttention(WIDTH, WIDTH, WIDTH),
        lambda: BahdanauAttention(WIDTH, WIDTH, 64, heads=4),
        lambda: LuongAttention(WIDTH, WIDTH, "general"),
    ],
    ids=["bahdanau", "heads", "luong"],
)
def test_steps_err_no_more_than_plain_operations(make, keys, dtype, monkeypatch):
    torch.manual_seed(0)
    module = make().to(DEVICE)
    given = [torch.randn(3, BATCH, WIDTH), torch.randn(BATCH, keys, WIDTH)]
    given = [x.to(DEVICE, dtype).requires_grad_() for x in given]
    lengths = torch.linspace(0, keys, BATCH).long()
    module = module.to(dtype)
    exact = copy.deepcopy(module).double()
    truth = looped(exact, [x.detach().double().requires_grad_() for x in given], lengths)
    found = looped(module, given, lengths)
    monkeypatch.setattr(step_plan, "STEPS_ON", ())
    wanted = looped(module, given, lengths)
    for x, y, right in zip(found, wanted, truth, strict=True):
        errors = [float((z.detach().double() - right).abs().max()) for z in (x, y)]
        scale = float(right.detach().abs().max()) + 1e-6
        assert errors[0] <= 2 * errors[1] + 8 * torch.finfo(dtype).eps * scale, (errors, scale)


def test_only_the_first_step_goes_through_triton():
    """With gradients and without, also for numbers of keys that are new."""
    module = BahdanauAttention(WIDTH, WIDTH, WIDTH).to(DEVICE)
    query = torch.randn(BATCH, WIDTH, device=DEVICE)

    def run(keys):
        memory = module.prepare(torch.randn(BATCH, keys, WIDTH, device=DEVICE))
        context, _, state = module(query, memory)
        (context.sum() + module(query, memory, state).context.sum()).backward()
        with torch.no_grad():
            module(query, memory, state)

    run(40)
    with none_ordinary():
        for keys in (41, 1, 16, 48, 1500):
            run(keys)


@pytest.mark.parametrize("score", [None, "cosine", "additive"])
def test_generation_by_the_quick_way(score, monkeypatch):
    torch.manual_seed(0)
    decoder = Decoder([DecoderBlock(WIDTH, 8, score) for _ in range(2)])
    decoder = decoder.to(DEVICE, BF16).eval()
    tokens, found = torch.randn(20, 8, 1, WIDTH, device=DEVICE, dtype=BF16), []
    for on in (("cuda",), ()):
        monkeypatch.setattr(quick, "QUICK_ON", on)
        cache, outputs = None, []
        with torch.no_grad():
            for token in tokens:
                y, cache = decoder.step(token, cache)
                outputs.append(y)
        found.append(torch.cat(outputs, 1))
    torch.testing.assert_close(*found, rtol=0.03, atol=0.06)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("length", [128, 2000, 2048])
def test_weights_are_those_of_torch(length, dtype):
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(WIDTH, 8, batch_first=True).to(DEVICE, dtype)
    ours = MultiheadAttention(WIDTH, 8, batch_first=True).to(DEVICE, dtype)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, length, WIDTH, device=DEVICE, dtype=dtype)
    hidden = torch.ones(length, length, dtype=torch.bool, device=DEVICE).triu(1)
    for options in ({}, {"attn_mask": hidden}):
        for a, b in zip(ours(x, x, x, **options), theirs(x, x, x, **options), strict=True):
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 if dtype == BF16 else 1e-5)
