"""The weights that make queries and keys, in every layout: found, checked, scaled and put back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.doctor.remedies import locate
from regard.doctor.remedies.locate import sides_of
from regard.doctor.remedies.projections import scale_rows

from .watching import DIM, HEADS

WIDTH = DIM // HEADS


class Separate(nn.Module):
    """Two projections under given names; fewer key heads than query heads if asked."""

    def __init__(self, query: str, key: str, key_heads: int = HEADS, bias: bool = True) -> None:
        super().__init__()
        self.names, self.key_heads = (query, key), key_heads
        self.add_module(query, nn.Linear(DIM, DIM, bias))
        self.add_module(key, nn.Linear(DIM, key_heads * WIDTH, bias))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (self.get_submodule(name)(x) for name in self.names)
        q = q.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k = k.unflatten(-1, (self.key_heads, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=self.key_heads < HEADS)


class Fused(nn.Module):
    """One projection: queries, keys and values one after the other, or head by head."""

    def __init__(self, name: str, by_head: bool) -> None:
        super().__init__()
        self.name, self.by_head = name, by_head
        self.add_module(name, nn.Linear(DIM, 3 * DIM))

    def forward(self, x: Tensor) -> Tensor:
        y = self.get_submodule(self.name)(x)
        if self.by_head:
            q, k, v = y.unflatten(-1, (HEADS, 3, -1)).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = y.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v)


class Normed(Separate):
    """A norm after the projections undoes what is done to them."""

    def forward(self, x: Tensor) -> Tensor:
        q, k = (self.get_submodule(name)(x) for name in self.names)
        q, k = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (q, k))
        return F.scaled_dot_product_attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), k)


class Own(nn.Module):
    """torch's or regard's module on one input."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inside = module

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x, x, x, need_weights=False)[0]


class Conv1D(nn.Module):
    """GPT-2's linear map, whose weight lies the other way; transformers' own is in the slow tests."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.empty(s)) for s in ((DIM, 3 * DIM), 3 * DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def gpt2() -> nn.Module:
    made = Fused("c_attn", False)
    made.c_attn = Conv1D()
    return made


FOUND = {
    "q_proj": lambda: Separate("q_proj", "k_proj"),
    "without bias": lambda: Separate("query", "key", bias=False),
    "Wq": lambda: Separate("Wq", "Wk"),
    "grouped": lambda: Separate("q_proj", "k_proj", key_heads=1),
    "qkv": lambda: Fused("qkv", False),
    "by head": lambda: Fused("query_key_value", True),
    "Conv1D": gpt2,
    "torch": lambda: Own(nn.MultiheadAttention(DIM, HEADS, batch_first=True)),
    "torch bias_k": lambda: Own(
        nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True, batch_first=True)
    ),
    "regard": lambda: Own(regard.nn.MultiheadAttention(DIM, HEADS, batch_first=True)),
    "regard grouped": lambda: Own(
        regard.nn.MultiheadAttention(DIM, HEADS, key_heads=1, batch_first=True)
    ),
    "SelfAttention": lambda: regard.nn.SelfAttention(DIM, HEADS),
}


def scaled(model: nn.Module, x: Tensor):
    """Heads scaled by different numbers; gives what was wanted, what came, and the undo."""
    site, call = next(iter(locate(model, x).items()))
    module = model.get_submodule(call.place.module)

    def look():
        return sides_of(locate(model, x)[site])

    on_query = torch.tensor([0.5, 3.0], dtype=torch.float64)
    on_key = torch.tensor([2.0, 0.25], dtype=torch.float64)[: call.place.key_heads]
    query, key = look()
    wanted = query * on_query.view(-1, 1, 1), key * on_key.view(-1, 1, 1)
    return wanted, scale_rows(module, call, on_query, on_key, look), look


@pytest.mark.parametrize("name", FOUND)
def test_found_in_every_layout(name):
    torch.manual_seed(0)
    model, x = FOUND[name]().double(), torch.randn(2, 5, DIM, dtype=torch.float64)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    before = [p.clone() for p in model.parameters()]
    wanted, undo, look = scaled(model, x)
    assert undo is not None
    for one, other in zip(look(), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    undo()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_separate_parameters_of_torch():
    model = nn.MultiheadAttention(DIM, HEADS, kdim=8, batch_first=True).double()
    x = torch.randn(2, 5, DIM, dtype=torch.float64)

    class Crossed(Own):
        def forward(self, x):
            return self.inside(x, x[..., :8], x, need_weights=False)[0]

    _, undo, _ = scaled(Crossed(model), x)
    assert model.q_proj_weight is not None and undo is not None


NOT_FOUND = {
    "normed": lambda: Normed("q_proj", "k_proj"),
    "other names": lambda: Separate("asking", "answering"),
    "the wrong way round": lambda: Separate("k_proj", "q_proj"),
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_only_looks_like_it_is_put_back(name):
    torch.manual_seed(0)
    model, x = NOT_FOUND[name]().double(), torch.randn(2, 5, DIM, dtype=torch.float64)
    before = [p.clone() for p in model.parameters()]
    _, undo, _ = scaled(model, x)
    assert undo is None
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_undo_after_training_keeps_what_was_learned():
    model, x = Separate("q_proj", "k_proj").double(), torch.randn(2, 5, DIM, dtype=torch.float64)
    before = model.q_proj.weight.detach().clone()
    _, undo, _ = scaled(model, x)
    with torch.no_grad():
        model.q_proj.weight.mul_(1.5)
    assert undo is not None
    undo()
    torch.testing.assert_close(model.q_proj.weight.detach(), before * 1.5)
