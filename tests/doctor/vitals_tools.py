"""What the tests of the vitals share: calls, and what plain formulas in fp64 say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import regard
from regard.doctor.seen import Seen
from regard.doctor.vitals import INDEX
from regard.engines.base import STATISTICS, Attended
from regard.forms import Inner

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 13, 17, 8


def vital(row: Tensor, name: str) -> Tensor:
    """One column of what `measure` gives, (H,), in fp64."""
    return row[:, INDEX[name]].double()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Call(NamedTuple):
    """One attention call as the doctor sees it, as the reference computes it, and who sees whom."""

    seen: Seen
    attended: Attended
    visible: Tensor
    value: Tensor


def lowered(score: regard.Score | None, query: Tensor, key: Tensor, **options) -> Seen:
    """What capture hands over for a score of ours."""
    form = (score or regard.ScaledDot()).lower(query, key)
    if not isinstance(form, Inner):
        return Seen(pairwise=form, **options)
    bias = options.pop("bias", None)
    if form.beta is not None:
        beta = form.beta.repeat_interleave(query.shape[1] // form.beta.shape[1], 1).unsqueeze(-2)
        bias = beta if bias is None else bias + beta
    return Seen(form.phi, form.psi, scale=form.scale, bias=bias, shift=form.alpha, **options)


def make(
    score: Callable[[], regard.Score] | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    shape: tuple[int, int, int, int] = (BATCH, HEADS, QUERIES, KEYS),
    key_heads: int | None = None,
    causal: bool = False,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
) -> Call:
    """A random call. The reference gets the numbers that `dtype` keeps, in fp64."""
    batch, heads, queries, keys = shape
    key_heads = key_heads or heads
    torch.manual_seed(0)
    chosen = None if score is None else score().double().requires_grad_(False)
    kept = [
        (2 * randn(batch, h, n, DIM, seed=seed)).to(dtype)
        for seed, (h, n) in enumerate([(heads, queries), (key_heads, keys), (key_heads, keys)])
    ]
    query, key, value = (x.double() for x in kept)
    seen = lowered(
        chosen,
        query,
        key,
        value=kept[2],
        causal=causal,
        visible=visible,
        bias=bias,
        softcap=softcap,
        sink=None if sink is None else sink[:, None],
    )
    if seen.query is not None and chosen is None:
        seen = seen._replace(query=kept[0], key=kept[1])
    pairs = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    if causal:
        pairs = pairs.tril()
    if visible is not None:
        pairs = pairs & visible
    mask = pairs if causal or visible is not None else None
    if bias is not None:
        pairs = pairs & (bias != -torch.inf)
    options = {"bias": None if bias is None else bias.double().expand(1, 1, queries, keys)}
    options |= {"softcap": softcap, "sink": None if sink is None else sink.double()}
    attended = regard.attend(
        query, key, value, chosen, want=STATISTICS, mask=mask, engine="reference", **options
    )
    return Call(seen, attended, pairs, value)


CALLS: dict[str, Callable[[], Call]] = {
    "plain": make,
    "fp32": lambda: make(dtype=torch.float32),
    "bf16": lambda: make(dtype=torch.bfloat16),
    "fp16": lambda: make(dtype=torch.float16),
    "causal": lambda: make(causal=True, shape=(2, 4, 16, 16)),
    "causal, fewer queries": lambda: make(causal=True),
    "causal, fewer keys": lambda: make(causal=True, shape=(1, 2, 9, 5)),
    "padded keys": lambda: make(
        visible=(torch.arange(KEYS) < torch.tensor([[KEYS], [6]]))[:, None, None]
    ),
    "any mask": lambda: make(visible=randn(BATCH, HEADS, QUERIES, KEYS, seed=7) > 0.3),
    "mask of two dims": lambda: make(visible=randn(QUERIES, KEYS, seed=7) > 0),
    "queries that see nothing": lambda: make(visible=torch.arange(QUERIES)[:, None] > 4),
    "causal and a mask": lambda: make(
        causal=True, visible=randn(QUERIES, KEYS, seed=7) > 0, dtype=torch.float32
    ),
    "bias": lambda: make(bias=randn(QUERIES, KEYS, seed=7)),
    "bias that hides": lambda: make(
        bias=torch.where(randn(QUERIES, KEYS, seed=7) > 0, randn(QUERIES, KEYS, seed=8), -torch.inf)
    ),
    "bias of half precision": lambda: make(
        bias=randn(QUERIES, KEYS, seed=7).bfloat16(), dtype=torch.bfloat16
    ),
    "grouped": lambda: make(key_heads=2, causal=True),
    "one key head": lambda: make(key_heads=1, dtype=torch.bfloat16),
    "soft cap": lambda: make(softcap=2.0, bias=randn(QUERIES, KEYS, seed=7)),
    "sink": lambda: make(sink=torch.tensor([0.0, 3.0, -2.0, 9.0])),
    "sink and mask": lambda: make(
        sink=torch.tensor([0.0, 3.0, -2.0, 9.0]), causal=True, dtype=torch.float32
    ),
    "cosine": lambda: make(lambda: regard.Cosine(HEADS)),
    "gaussian": lambda: make(lambda: regard.Gaussian(), causal=True),
    "low rank": lambda: make(lambda: regard.LowRank(DIM, DIM, 3, HEADS)),
    "bilinear": lambda: make(lambda: regard.Bilinear(DIM, DIM, HEADS)),
    "additive": lambda: make(lambda: regard.Additive(DIM, HEADS)),
    "additive, grouped": lambda: make(
        lambda: regard.Additive(DIM, HEADS), key_heads=2, causal=True
    ),
    "gatv2": lambda: make(lambda: regard.GATv2(DIM, HEADS), bias=randn(QUERIES, KEYS, seed=7)),
    "one head": lambda: make(shape=(1, 1, 7, 5)),
    "one query": lambda: make(shape=(2, 4, 1, 9)),
    "two keys": lambda: make(shape=(2, 2, 5, 2)),
    "long and odd": lambda: make(shape=(1, 2, 131, 67), causal=True, dtype=torch.float32),
}


def as_logits(call: Call) -> Call:
    """The same call where only the input of its softmax was seen."""
    seen, size = call.seen, call.visible.shape
    weights = call.attended.weights
    assert weights is not None and call.attended.lse is not None
    # Any logits with these weights; a constant is added to show that it is not lost.
    logits = weights.log() + call.attended.lse.unsqueeze(-1)
    logits = logits.masked_fill(~call.visible, torch.finfo(torch.float32).min).expand(size)
    return call._replace(seen=Seen(logits=logits, value=seen.value, sink=seen.sink))
