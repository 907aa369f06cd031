"""One more token through a decoder by the quick way: the same numbers, and when it is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from regard.engines import step_plan
from regard.nn import Alibi, Decoder, DecoderBlock, Rotary, Sinusoidal
from regard.nn.transformer import quick, stacks
from regard.observed import LISTENERS
from regard.stabilize import SoftCapped

B, D, H, M = 3, 16, 4, 8
TOKENS = 4

BLOCKS = {
    "dot": lambda: DecoderBlock(D, H),
    "rotary": lambda: DecoderBlock(D, H, position=Rotary(4), key_heads=2, bias=True),
    "additive": lambda: DecoderBlock(D, H, "additive", bias=True),
    "additive, shared keys": lambda: DecoderBlock(D, H, "additive", key_heads=1),
    "additive, groups": lambda: DecoderBlock(D, H, "additive", key_heads=2, norm_type="rms"),
    "cosine, post": lambda: DecoderBlock(D, H, "cosine", norm="post"),
    "gaussian": lambda: DecoderBlock(D, H, "gaussian"),
    "memory": lambda: DecoderBlock(D, H, "additive", memory_dim=M),
    "sink": lambda: DecoderBlock(D, H, sink=True, qk_norm="rms"),
    "bilinear": lambda: DecoderBlock(D, H, regard.Bilinear(D, D, H)),
    "soft cap": lambda: DecoderBlock(D, H, SoftCapped(regard.ScaledDot(), 2.0)),
    "wide values": lambda: DecoderBlock(D, H, value_dim=7),
    "an engine": lambda: DecoderBlock(D, H, engine="reference"),
}


@pytest.fixture
def taken(monkeypatch):
    """For each step whether it went the quick way, which is open on the CPU."""
    found: list[bool] = []
    whole = stacks.next_token

    def spy(*given):
        result = whole(*given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(stacks, "next_token", spy)
    monkeypatch.setattr(quick, "QUICK_ON", ("cpu",))
    return found


def decoder(name: str, dtype: torch.dtype = torch.float32) -> Decoder:
    """Two blocks."""
    torch.manual_seed(0)
    return Decoder([BLOCKS[name]() for _ in range(2)], Sinusoidal(D)).to(dtype).eval()


def generated(model: Decoder, dtype: torch.dtype = torch.float32):
    """A prompt, and tokens after it."""
    torch.manual_seed(1)
    memory = torch.randn(B, 5, M).to(dtype) if model.has_memory else None
    prompt, tokens = torch.randn(B, 2, D).to(dtype), torch.randn(TOKENS, B, 1, D).to(dtype)
    with torch.no_grad():
        y, cache = model.step(prompt, model.begin(memory))
        found = [y]
        for token in tokens:
            y, cache = model.step(token, cache)
            found.append(y)
    return torch.cat(found, 1), cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BLOCKS)
def test_both_ways_agree(name, dtype, taken, monkeypatch):
    model = decoder(name, dtype)
    found, cache = generated(model, dtype)
    assert taken == [False] + [True] * TOKENS  # the prompt has two tokens
    monkeypatch.setattr(quick, "QUICK_ON", ())
    wanted, whole = generated(model, dtype)
    assert not any(taken[TOKENS + 1 :])
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert cache.length == whole.length == 2 + TOKENS
    for one, other in zip(cache.own, whole.own, strict=True):
        torch.testing.assert_close(one.value, other.value, rtol=tolerance, atol=tolerance)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", [name for name in BLOCKS if "additive" in name] + ["memory"])
def test_pairwise_scores_by_kernels(name, taken, monkeypatch):
    pytest.importorskip("triton", minversion="3.6")
    model, ran = decoder(name), []
    wanted, _ = generated(model)
    steps = step_plan.steps()
    context = steps.MemorySteps.context
    monkeypatch.setattr(
        steps.MemorySteps, "context", lambda self, *given: ran.append(1) or context(self, *given)
    )
    monkeypatch.setattr(step_plan, "STEPS_ON", ("cpu",))
    found, _ = generated(model)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(ran) == (4 if name == "memory" else 2) * TOKENS


def test_a_cache_never_changes(taken):
    """Two continuations of one cache."""
    model = decoder("dot")
    with torch.no_grad():
        _, cache = model.step(torch.randn(B, 2, D))
        before = cache.own[0].value.clone()
        a, first = model.step(torch.ones(B, 1, D), cache)
        model.step(torch.zeros(B, 1, D), cache)
        b, second = model.step(torch.ones(B, 1, D), cache)
    assert torch.equal(a, b) and torch.equal(first.own[1].value, second.own[1].value)
    assert torch.equal(cache.own[0].value, before) and taken == [True] * 3


def left_padded(model):
    return model.begin(left_padding=[1, 0, 0]), {}


def masked(model):
    return model.begin(), {"mask": torch.ones(1, 3, dtype=torch.bool)}


@pytest.mark.parametrize("prepare", [left_padded, masked])
def test_other_steps_go_the_whole_way(prepare, taken):
    model = decoder("dot")
    cache, options = prepare(model)
    with torch.no_grad():
        _, cache = model.step(torch.randn(B, 2, D), cache)
        model.step(torch.randn(B, 1, D), cache, **options)
        model.step(torch.randn(B, 2, D), cache)  # two tokens
    assert not any(taken)


def test_gradients_go_the_whole_way(taken):
    model = decoder("dot")
    _, cache = model.step(torch.randn(B, 2, D))
    y, _ = model.step(torch.randn(B, 1, D), cache)
    assert y.requires_grad and not any(taken)


def test_positions_as_biases_go_the_whole_way(taken):
    model = Decoder([DecoderBlock(D, H, position=Alibi(H))]).eval()
    with torch.no_grad():
        _, cache = model.step(torch.randn(B, 2, D))
        model.step(torch.randn(B, 1, D), cache)
    assert not any(taken)


def test_who_looks_on_sees_the_whole_way(taken):
    model, seen = decoder("dot"), []
    with torch.no_grad():
        _, cache = model.step(torch.randn(B, 2, D))
        LISTENERS.append(lambda *given: seen.append(given))
        try:
            model.step(torch.randn(B, 1, D), cache)
        finally:
            LISTENERS.clear()
        with torch.autocast("cpu", torch.bfloat16):
            model.step(torch.randn(B, 1, D), cache)
    assert taken == [False, False] and len(seen) == 2


def test_what_somebody_replaced_is_called(taken):
    model = decoder("dot")
    with torch.no_grad():
        _, cache = model.step(torch.randn(B, 2, D))
        layer = model.blocks[1].attention
        layer.attend_over = type(layer).attend_over.__get__(layer)
        model.step(torch.randn(B, 1, D), cache)
        assert taken == [False]
        del layer.attend_over

        class Twice(Decoder):
            def attend(self, x, memory=None, **options):
                return super().attend(2 * x, memory, **options)

        twice = Twice(model.blocks, model.position).eval()
        x = torch.randn(B, 1, D)
        wanted = model.step(2 * x, cache)[0]
        torch.testing.assert_close(twice.step(x, cache)[0], wanted)
    assert taken == [False, True]


def test_hooks_and_other_layers_are_called(taken):
    """Linear layers are called as modules: hooks on them run, and others may stand in their place."""
    model, seen = decoder("dot"), []
    model.blocks[0].attention.out.register_forward_hook(lambda *_: seen.append("out"))
    model.blocks[0].attention.value.register_forward_hook(lambda *_: seen.append("value"))
    model.blocks[1].feedforward.enter = nn.Sequential(model.blocks[1].feedforward.enter)
    generated(model)
    assert seen == ["value", "out"] * (TOKENS + 1) and any(taken)


def test_dropout_that_is_left_on_drops(taken):
    """As in Monte Carlo dropout, where the rest of the model is in evaluation."""
    model = Decoder([DecoderBlock(D, H, dropout=0.5)]).eval()
    x = torch.randn(B, 1, D)
    with torch.no_grad():
        _, cache = model.step(x)
        assert torch.equal(model.step(x, cache)[0], model.step(x, cache)[0])
        model.blocks[0].around_attention.dropout.train()
        assert not torch.equal(model.step(x, cache)[0], model.step(x, cache)[0])
    assert taken == [True] * 4


def test_wrong_steps_have_their_own_errors(taken):
    model = decoder("dot")
    with torch.no_grad():
        _, cache = model.step(torch.randn(B, 2, D))
        with pytest.raises(ValueError, match="must be"):
            model.step(torch.randn(B, 1, D + 1), cache)
        with pytest.raises(ValueError, match="sequences"):
            model.step(torch.randn(B + 1, 1, D), cache)
        with pytest.raises(TypeError, match="cache"):
            model.step(torch.randn(B, 1, D), torch.randn(2))
        with pytest.raises(TypeError, match=r"torch\.float64"):
            model.step(torch.randn(B, 1, D).double(), cache)
