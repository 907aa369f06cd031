"""`SelfAttention`, `CrossAttention` and the blocks and stacks made of them, under the fuzzer.

Shape legend: B batch, L tokens, M tokens of the memory, H heads, K key heads.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from regard import Mask
from regard.nn import Alibi, Cache, CrossAttention, Rotary, SelfAttention
from regard.testing.fuzz import textbook
from regard.testing.fuzz.modules.base import (
    KINDS,
    KINKED,
    Found,
    Kind,
    Options,
    PreparedModule,
    before,
    draw_score,
    from_heads,
    head_width,
    length,
    lengths_of,
    linear,
    norm,
    normal,
    to_heads,
)
from regard.testing.fuzz.view import View, logits_of


def draw_layer(rng: random.Random) -> Options:
    """What every attention layer takes."""
    score, heads = draw_score(rng), rng.choice((1, 2, 2, 4))
    width = head_width(rng, score)
    return {
        "score": score,
        "heads": heads,
        "key_heads": rng.choice([n for n in (1, 2, 4) if heads % n == 0]),
        "width": width,
        "batch": rng.choice((1, 1, 2, 3)) if rng.random() > 0.02 else 0,
        "tokens": length(rng),
        "sink": rng.random() < 0.2,
        "bias": rng.random() < 0.4,
        # Of one number, or of two, a norm leaves hardly more than the sign.
        "qk_norm": rng.choice((None, None, "rms")) if width == 4 else None,
        "padding": rng.choice((None, None, "lengths", "left")),
        "mask": rng.choice((None, None, None, "dense", "window")),
        "engine": rng.choice((None, None, None, "cpu", "reference")),
    }


def draw_self(rng: random.Random) -> Options:
    """Options of `SelfAttention`."""
    o = draw_layer(rng) | {"causal": rng.random() < 0.5, "steps": rng.random() < 0.3}
    o["position"] = rng.choice((None, None, "alibi", "rotary", "neighbours"))
    if o["width"] % 2 and o["position"] in ("rotary", "neighbours"):
        o["position"] = None
    return o


def position_of(o: Options) -> Rotary | Alibi | None:
    """The position module of these options."""
    kind = o.get("position")
    if kind == "alibi":
        return Alibi(o["heads"])
    return None if kind is None else Rotary(o["width"], interleaved=kind == "neighbours")


def layer_options(o: Options) -> dict:
    """Keywords of an attention layer."""
    names = ("key_heads", "sink", "bias", "qk_norm", "engine")
    return {name: o[name] for name in names} | {"width": o["width"]}


class Padding:
    """Padding and mask of a call on tokens (B, L), as the library takes them and as booleans."""

    def __init__(self, o: Options, generator: torch.Generator, batch: int, tokens: int) -> None:
        counts = lengths_of(generator, batch, tokens)
        self.arguments: dict = {}
        real = torch.ones(batch, tokens, dtype=torch.bool)
        self.left = torch.zeros(batch, dtype=torch.int64)
        seen = torch.ones(batch, 1, tokens, tokens, dtype=torch.bool)
        if o["padding"] == "lengths":
            self.arguments["lengths"] = counts
            real = before(counts, tokens)
            seen = seen & real[:, None, :, None]
        elif o["padding"] == "left":
            self.arguments["left_padding"], self.left = counts, counts
            real = ~before(counts, tokens)
        seen = seen & real[:, None, None]
        place = torch.arange(tokens)
        if o["mask"] == "dense":
            allowed = torch.rand(batch, 1, tokens, tokens, generator=generator) < 0.7
            self.arguments["mask"] = allowed
            seen = seen & allowed
        elif o["mask"] == "window":
            self.arguments["mask"] = Mask.window(left=2, right=1, alignment="top_left")
            ahead = place - place[:, None]
            seen = seen & (ahead >= -2) & (ahead <= 1)
        self.real, self.seen, self.causal = real, seen, place <= place[:, None]


def rotated(x: Tensor, place: Tensor, interleaved: bool) -> Tensor:
    """(B, H, L, W) turned by its place (B, L), pair by pair."""
    half = x.shape[-1] // 2
    turned = []
    angles = [place.double() * 10000.0 ** (-i / half) for i in range(half)]
    first = range(0, 2 * half, 2) if interleaved else range(half)
    second = range(1, 2 * half, 2) if interleaved else range(half, 2 * half)
    columns: dict[int, Tensor] = {}
    for i, j, angle in zip(first, second, angles, strict=True):
        cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
        a, b = x[..., i], x[..., j]
        columns[i], columns[j] = a * cos - b * sin, b * cos + a * sin
    turned = [columns[i] for i in range(2 * half)]
    return torch.stack(turned, -1)


def attend_heads(
    view: View, x: Tensor, memory: Tensor, seen: Tensor, o: Options, place: Tensor | None = None
) -> Tensor:
    """An attention layer by the textbook: project, normalise, turn, score, weigh, project out."""
    heads, key_heads, score = o["heads"], o["key_heads"], view.score
    q, k = (
        y @ w.mT if b is None else y @ w.mT + b
        for y, w, b in (
            (x, score.query_weight, score.query_bias),
            (memory, score.key_weight, score.key_bias),
        )
    )
    q, k, score = to_heads(q, heads), to_heads(k, key_heads), score.score
    if o["qk_norm"] is not None:
        q, k, score = norm(q, score.query_norm), norm(k, score.key_norm), score.score
    bias = None
    if place is not None and o.get("position") in ("rotary", "neighbours"):
        q, k = (rotated(y, place, o["position"] == "neighbours") for y in (q, k))
    if o.get("position") == "alibi":
        where = torch.arange(x.shape[1], dtype=q.dtype)
        slopes = torch.tensor(_slopes(heads), dtype=q.dtype)
        bias = -slopes[:, None, None] * (where - where[:, None]).abs()
    v = to_heads(linear(memory, view.value), key_heads)
    full = seen.expand(x.shape[0], heads, x.shape[1], memory.shape[1])
    sink = view.sink if o["sink"] else None
    found = textbook.attend(logits_of(score, q, k), v, full, sink=sink, bias=bias)
    return linear(from_heads(found["output"]), view.out)


def _slopes(heads: int) -> list[float]:
    """Of a power of two heads."""
    return [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]


def self_attention(view: View, x: Tensor, padding: Padding, causal: bool, o: Options) -> Tensor:
    """`SelfAttention` by the textbook."""
    seen = padding.seen & padding.causal if causal else padding.seen
    place = (torch.arange(x.shape[1]) - padding.left[:, None]).clamp(min=0)
    return attend_heads(view, x, x, seen, o, place)


def prepare_self(o: Options, generator: torch.Generator) -> PreparedModule:
    """A call of `SelfAttention`, at once or token by token."""
    dim = o["heads"] * o["width"]
    batch, tokens = o["batch"], o["tokens"]
    # Tokens one by one have no padding at their end, nor masks for all of them.
    steps = o["steps"] and o["causal"] and o["mask"] is None and o["padding"] != "lengths"
    steps = steps and tokens > 0
    padding = Padding(o, generator, batch, tokens)
    options = layer_options(o) | {"causal": o["causal"]}

    def call(module: SelfAttention, x: Found) -> Found:
        if not steps:
            return {"output": module(x["x"], **padding.arguments)}
        first = tokens // 2
        cache, done = Cache(left_padding=padding.arguments.get("left_padding")), []
        for part in x["x"].split([first, *[1] * (tokens - first)] if first else 1, 1):
            output, cache = module.step(part, cache)
            done.append(output)
        return {"output": torch.cat(done, 1)}

    def by_textbook(view: View, x: Found) -> Found:
        kept = torch.where(padding.real.unsqueeze(-1), x["x"], 0)
        return {"output": self_attention(view, kept, padding, o["causal"], o)}

    return PreparedModule(
        lambda: SelfAttention(dim, o["heads"], o["score"], position=position_of(o), **options),
        (dim, o["heads"], o["score"], o["position"], *options.values()),
        {"x": normal(generator, batch, tokens, dim)},
        call,
        by_textbook,
        poison={"x": ~padding.real.unsqueeze(-1)} if o["padding"] else {},
        kinked=o["score"] in KINKED,
    )


def draw_cross(rng: random.Random) -> Options:
    """Options of `CrossAttention`."""
    o = draw_layer(rng)
    o["padding"] = rng.choice((None, "lengths"))
    return o | {"memory": length(rng), "extra": rng.randint(0, 2), "prepared": rng.random() < 0.4}


def prepare_cross(o: Options, generator: torch.Generator) -> PreparedModule:
    """A call of `CrossAttention`."""
    dim, batch, tokens, memory = o["heads"] * o["width"], o["batch"], o["tokens"], o["memory"]
    counts = lengths_of(generator, batch, memory) if o["padding"] else None
    real = torch.ones(batch, memory, dtype=torch.bool) if counts is None else before(counts, memory)
    seen = real[:, None, None].expand(batch, 1, tokens, memory)
    mask = None
    if o["mask"] == "dense":
        mask = torch.rand(tokens, memory, generator=generator) < 0.7
        # Two dims that look like (batch, length) are refused.
        mask = mask.expand(batch, 1, tokens, memory)
        seen = seen & mask
    elif o["mask"] == "window":
        mask = Mask.causal("top_left")
        seen = seen & (torch.arange(memory) <= torch.arange(tokens)[:, None])
    options = layer_options(o) | {"memory_dim": dim + o["extra"]}

    def call(module: CrossAttention, x: Found) -> Found:
        if o["prepared"]:
            return {"output": module(x["x"], module.prepare(x["memory"], counts), mask=mask)}
        return {"output": module(x["x"], x["memory"], mask=mask, lengths=counts)}

    def by_textbook(view: View, x: Found) -> Found:
        kept = torch.where(real.unsqueeze(-1), x["memory"], 0)
        return {"output": attend_heads(view, x["x"], kept, seen, o)}

    return PreparedModule(
        lambda: CrossAttention(dim, o["heads"], o["score"], **options),
        (dim, o["heads"], o["score"], *options.values()),
        {
            "x": normal(generator, batch, tokens, dim),
            "memory": normal(generator, batch, memory, dim + o["extra"]),
        },
        call,
        by_textbook,
        poison={"memory": ~real.unsqueeze(-1)} if o["padding"] else {},
        kinked=o["score"] in KINKED,
    )


KINDS["SelfAttention"] = Kind(draw_self, prepare_self)
KINDS["CrossAttention"] = Kind(draw_cross, prepare_cross)
