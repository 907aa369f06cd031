"""What the tests of remedies share: findings made by hand, and attention by formula in fp64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.doctor.findings.finding import Advice, Finding, Severity, Signal
from regard.doctor.remedies import locate
from regard.doctor.watch import watch

from .watching import DIM, HEADS, Attention, Eager, Stack

ALIKE = (("value_alike", 0.99, True), ("output_alike", 0.99, True))
BROKEN = (("nan_queries", 0.0, True), ("nan_keys", 0.0, True))
SITE = "layers.1"
LARGE = (("logit_max", 1.0, True), ("logit_var", 1.0, True))
LOUD = (("key_spread", 3.0, True), ("c50", 10.0, False))


def finding(
    *signals: tuple[str, float, bool],
    site: str = SITE,
    disease: str = "large-logits",
    heads: tuple[int, ...] = (),
    remedies: tuple[str, ...] = (),
) -> Finding:
    given = tuple(
        Signal(vital, 0.0, threshold, above, "test") for vital, threshold, above in signals or LARGE
    )
    advice = tuple(Advice(name, "to help") for name in remedies)
    return Finding(disease, "t", Severity.FAILURE, site, heads, 1, given, 1.0, "why", advice)


class TorchAttention(nn.MultiheadAttention):
    """torch's own, with weights or without."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__(DIM, HEADS, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=self.need_weights)[0]


# By name: a model whose second layer is treated.
MODELS = {
    "sdpa": lambda: Stack(Attention(), Attention()),
    "causal": lambda: Stack(Attention(True), Attention(True)),
    "eager": lambda: Stack(Eager(True), Eager(True)),
    "torch": lambda: Stack(TorchAttention(False), TorchAttention(False)),
    "torch with weights": lambda: Stack(TorchAttention(True), TorchAttention(True)),
}


def build(name: str, louder: float = 4.0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model with queries and keys that matter."""
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    with torch.no_grad():
        for layer in model.layers:
            weight = layer.in_proj_weight if hasattr(layer, "in_proj_weight") else layer.qkv.weight
            weight[: 2 * DIM] *= louder
    return model


def tokens64(batch: int = 2, length: int = 6) -> Tensor:
    return torch.randn(batch, length, DIM, dtype=torch.float64)


def attend_by_formula(layer: nn.Module, x: Tensor, change, cap: float | None = None) -> Tensor:
    """The output of a layer whose query and key went through `change`, written out in fp64."""
    own = isinstance(layer, nn.MultiheadAttention)
    weight = layer.in_proj_weight if own else layer.qkv.weight
    bias = layer.in_proj_bias if own else layer.qkv.bias
    parts = (x @ weight.T + bias).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)
    q, k = change(q, k)
    logits = q @ k.mT / q.shape[-1] ** 0.5
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if getattr(layer, "causal", False):
        later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
    found = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return (layer.out_proj if own else layer.out)(found)


def expected(model: nn.Module, x: Tensor, change, cap: float | None = None) -> Tensor:
    """The output of a model whose second layer is changed."""
    x = x + attend_by_formula(model.layers[0], x, lambda q, k: (q, k))
    return x + attend_by_formula(model.layers[1], x, change, cap)


def sides(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key of the second layer."""
    seen = locate(model, x, SITE)[SITE].seen
    return seen.query, seen.key


def treat(model: nn.Module, x, remedy: str, made: Finding | None = None, **options):
    return watch(model).treat(made or finding(remedies=(remedy,)), remedy, x, **options)


def collapsed(site: str, remedy: str = "residual") -> Finding:
    return finding(*ALIKE, site=site, disease="rank-collapse", remedies=(remedy,))


def broken_at(site: str) -> Finding:
    return finding(*BROKEN, site=site, disease="broken-numbers", remedies=("finite",))
