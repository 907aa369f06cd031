"""Watching on a GPU: nothing of the model changes, and the host never waits."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.doctor.vitals import INDEX
from regard.doctor.watch import watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]


class Layer(nn.Module):
    """Causal self-attention, 4 heads of 32 dims; with a score, through regard."""

    def __init__(self, score: str | None = None) -> None:
        super().__init__()
        self.project = nn.Linear(128, 384)
        self.own = None if score is None else regard.nn.MultiheadAttention(
            128, 4, score=score, batch_first=True
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if self.own is not None:
            return x + self.own(x, x, x, need_weights=False)[0]
        heads = [y.unflatten(-1, (4, 32)).transpose(1, 2) for y in self.project(x).chunk(3, -1)]
        return x + F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


MODELS = {
    "sdpa": lambda: nn.Sequential(Layer(), Layer()),
    "torch": lambda: nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True),
    "scaled_dot": lambda: nn.Sequential(Layer("scaled_dot")),
    "additive": lambda: nn.Sequential(Layer("additive")),
}


def step(model: nn.Module, x: Tensor, half: bool) -> list[Tensor]:
    torch.manual_seed(7)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        out = model(x)
    out.float().square().mean().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("level", ["cheap", "sampled", "exact"])
@pytest.mark.parametrize("name", list(MODELS))
def test_watching_changes_no_bit(name, level, half) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().cuda()
    other = copy.deepcopy(model)
    x = torch.randn(2, 200, 128, device="cuda")
    torch.use_deterministic_algorithms(name == "additive")  # its atomics sum in any order else
    try:
        plain = step(model, x, half)
        with watch(other, level, every=1) as d:
            watched = step(other, x, half)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(plain) == len(watched) and d.sites
    for a, b in zip(plain, watched, strict=True):
        assert torch.equal(a, b)
    for site in d.sites:
        values = d.history(site).values
        assert values.shape[0] == 1 and values[..., INDEX["query_norm"]].isfinite().all()
        assert values[..., INDEX["query_grad"]].isfinite().all()


@pytest.mark.parametrize("level", ["cheap", "sampled", "exact"])
@pytest.mark.parametrize("name", ["sdpa", "torch"])
def test_the_host_never_waits(name, level) -> None:
    model = MODELS[name]().cuda()
    x = torch.randn(2, 200, 128, device="cuda")
    with watch(model, level, every=1):
        step(model, x, True)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(model, x, True)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_gpu_and_cpu_agree() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer())
    x = torch.randn(2, 100, 128)
    on_cpu = watch(model).examine(x)
    on_gpu = watch(model.cuda()).examine(x.cuda())
    assert on_cpu.keys() == on_gpu.keys()
    for site, values in on_cpu.items():
        torch.testing.assert_close(values, on_gpu[site].cpu(), rtol=2e-3, atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("level", ["cheap", "sampled"])
def test_one_compile(level) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    model = torch.compile(nn.Sequential(Layer(), Layer()).cuda(), backend=counter)
    x = torch.randn(2, 128, 128, device="cuda")
    with watch(model, level, every=3) as d:
        for _ in range(10):
            model(x).sum().backward()
    assert counter.frame_count == 1 and d.steps == 10 and len(d.sites) == 2
