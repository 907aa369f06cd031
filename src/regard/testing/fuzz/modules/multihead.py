"""`MultiheadAttention` under the fuzzer, with torch's masks: True = ignore.

Shape legend: N batch, H query heads, K key heads, L query length, S key length.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from regard.nn import MultiheadAttention
from regard.testing.cases import on_grid
from regard.testing.fuzz import textbook
from regard.testing.fuzz.modules.base import (
    KINDS,
    KINKED,
    Found,
    Kind,
    Options,
    PreparedModule,
    draw_score,
    from_heads,
    head_width,
    length,
    linear,
    normal,
    to_heads,
)
from regard.testing.fuzz.view import View, logits_of


def draw(rng: random.Random) -> Options:
    """Options of the module and of the call."""
    score, heads = draw_score(rng), rng.choice((1, 2, 2, 4))
    return {
        "score": score,
        "heads": heads,
        "key_heads": rng.choice([n for n in (1, 2, 4) if heads % n == 0]),
        "width": head_width(rng, score),
        "batch": rng.choice((1, 1, 2, 3)) if rng.random() > 0.02 else 0,
        "queries": length(rng),
        "keys": length(rng),
        "unlike": rng.random() < 0.2,
        "bias": rng.random() < 0.7,
        "bias_kv": rng.random() < 0.15,
        "zero_attn": rng.random() < 0.15,
        "batch_first": rng.random() < 0.5,
        "batched": rng.random() < 0.8,
        "padding": rng.choice((None, None, "bool", "bool", "float")),
        "mask": rng.choice((None, None, "bool", "float", "bool heads", "float heads", "causal")),
        "weights": rng.random() < 0.5,
        "average": rng.random() < 0.5,
        "engine": rng.choice((None, None, None, "cpu", "reference")),
    }


def prepare(o: Options, generator: torch.Generator) -> PreparedModule:
    """The call of these options."""
    heads, width = o["heads"], o["width"]
    dim = heads * width
    key_dim = dim + 1 if o["unlike"] else dim
    batch = o["batch"] if o["batched"] else 1
    queries, keys = o["queries"], o["keys"]
    inputs = {
        "query": normal(generator, batch, queries, dim),
        "key": normal(generator, batch, keys, key_dim),
        "value": normal(generator, batch, keys, dim),
    }
    hidden = torch.rand(batch, keys, generator=generator) < 0.3
    pairs = torch.rand(batch * heads, queries, keys, generator=generator) < 0.3
    if o["mask"] == "causal":
        pairs = torch.ones(batch * heads, queries, keys, dtype=torch.bool).triu(1)
    bias = on_grid(normal(generator, batch * heads, queries, keys))
    bias = torch.where(pairs, -torch.inf, bias)
    padding = None if o["padding"] is None else hidden
    if o["padding"] == "float":
        padding = torch.where(hidden, -torch.inf, on_grid(normal(generator, batch, keys)))
    mask = _mask(o["mask"], pairs, bias)
    options = {
        "bias": o["bias"],
        "add_bias_kv": o["bias_kv"],
        "add_zero_attn": o["zero_attn"],
        "kdim": key_dim,
        "batch_first": o["batch_first"],
        "score": o["score"],
        "key_heads": o["key_heads"],
        "engine": o["engine"],
    }

    def by_textbook(view: View, x: Found) -> Found:
        return _textbook(view, x, o, padding, mask)

    return PreparedModule(
        lambda: MultiheadAttention(dim, heads, **options),
        (dim, heads, *options.values()),
        inputs,
        lambda module, x: _call(module, x, o, padding, mask),
        by_textbook,
        poison={n: hidden.unsqueeze(-1) for n in ("key", "value")} if o["padding"] else {},
        kinked=o["score"] in KINKED,
    )


def _call(
    module: MultiheadAttention, x: Found, o: Options, padding: Tensor | None, mask: Tensor | None
) -> Found:
    """The call in the layout of the options; results batch first."""
    given = [x["query"], x["key"], x["value"]]
    if not o["batched"]:
        given = [y.squeeze(0) for y in given]
    elif not o["batch_first"]:
        given = [y.transpose(0, 1) for y in given]
    dtype = given[0].dtype

    def fit(m: Tensor | None) -> Tensor | None:
        return m.to(dtype) if m is not None and m.is_floating_point() else m

    pad = padding if o["batched"] or padding is None else padding.squeeze(0)
    output, weights = module(
        *given,
        key_padding_mask=fit(pad),
        need_weights=o["weights"],
        attn_mask=fit(mask),
        average_attn_weights=o["average"],
        is_causal=o["mask"] == "causal" and padding is None,
    )
    if not o["batched"]:
        output = output.unsqueeze(0)
        weights = None if weights is None else weights.unsqueeze(0)
    elif not o["batch_first"]:
        output = output.transpose(0, 1)
    return {"output": output} | ({} if weights is None else {"weights": weights})


def _mask(kind: str | None, pairs: Tensor, bias: Tensor) -> Tensor | None:
    if kind is None:
        return None
    given = bias if kind.startswith("float") else pairs
    if kind.endswith("heads"):
        return given
    # All rows are alike: an empty batch has none to take.
    return given[0] if given.shape[0] else given.new_zeros(given.shape[1:])


def _textbook(
    view: View, x: Found, o: Options, padding: Tensor | None, mask: Tensor | None
) -> Found:
    heads, key_heads, module = o["heads"], o["key_heads"], view._module
    if module.in_proj_weight is not None:
        weights = view.in_proj_weight.split(module.projected)
    else:
        weights = (view.q_proj_weight, view.k_proj_weight, view.v_proj_weight)
    offsets = (0, 0, 0) if view.in_proj_bias is None else view.in_proj_bias.split(module.projected)
    sides = (x["query"], x["key"], x["value"])
    q, k, v = (y @ w.mT + b for y, w, b in zip(sides, weights, offsets, strict=True))
    q, k, v = to_heads(q, heads), to_heads(k, key_heads), to_heads(v, key_heads)
    batch, queries, keys = q.shape[0], q.shape[-2], k.shape[-2]
    seen = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    bias = torch.zeros(batch, heads, queries, keys, dtype=q.dtype)
    if padding is not None and padding.dtype == torch.bool:
        seen = seen & ~padding[:, None, None]
    elif padding is not None:
        bias = bias + padding[:, None, None].to(q.dtype)
    if mask is not None:
        wide = mask.unflatten(0, (-1, heads)) if mask.ndim == 3 and mask.shape[0] else mask
        wide = wide.reshape(batch, heads, queries, keys) if mask.ndim == 3 else wide
        seen, bias = (
            (seen & ~wide, bias) if mask.dtype == torch.bool else (seen, bias + wide.to(q.dtype))
        )
    extra_k, extra_v = [], []
    if o["bias_kv"]:
        for given, like, store in ((view.bias_k, k, extra_k), (view.bias_v, v, extra_v)):
            shape = (batch, key_heads, 1, like.shape[-1])
            store.append(given.reshape(1, key_heads, 1, like.shape[-1]).expand(shape))
    if o["zero_attn"]:
        extra_k.append(torch.zeros_like(k[..., :0, :]).sum(-2, keepdim=True))
        extra_v.append(torch.zeros_like(v[..., :0, :]).sum(-2, keepdim=True))
    if extra_k:
        k, v = torch.cat([k, *extra_k], -2), torch.cat([v, *extra_v], -2)
        seen = torch.nn.functional.pad(seen, (0, len(extra_k)), value=True)
        bias = torch.nn.functional.pad(bias, (0, len(extra_k)))
    found = textbook.attend(logits_of(view.score, q, k), v, seen, bias=bias, want=("weights",))
    result = {"output": linear(from_heads(found["output"]), view.out_proj)}
    if o["weights"]:
        result["weights"] = found["weights"].mean(1) if o["average"] else found["weights"]
    return result


KINDS["MultiheadAttention"] = Kind(draw, prepare)
