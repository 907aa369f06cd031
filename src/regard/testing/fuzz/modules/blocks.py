"""Transformer blocks and stacks under the fuzzer, and what they add to embeddings.

Shape legend: B batch, L tokens, M tokens of the memory.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    LearnedPosition,
    Sinusoidal,
)
from regard.testing.fuzz.modules.base import (
    KINDS,
    KINKED,
    Found,
    Kind,
    Options,
    PreparedModule,
    before,
    length,
    lengths_of,
    linear,
    norm,
    normal,
)
from regard.testing.fuzz.modules.layers import (
    Padding,
    attend_heads,
    draw_self,
    layer_options,
    position_of,
    self_attention,
)
from regard.testing.fuzz.view import View

ACTIVATIONS = ("gelu", "relu", "swiglu")


def activate(x: Tensor, kind: str) -> Tensor:
    """GELU, ReLU or SiLU as they are defined."""
    if kind == "gelu":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return x.clamp(min=0) if kind == "relu" else x / (1 + torch.exp(-x))


def feed_forward(view: View, x: Tensor) -> Tensor:
    """The feed-forward layer by the textbook."""
    kind = view.activation
    if kind == "swiglu":
        return linear(activate(linear(x, view.gate), kind) * linear(x, view.enter), view.leave)
    return linear(activate(linear(x, view.enter), kind), view.leave)


def around(view: View, x: Tensor, layer: Any) -> Tensor:
    """`x + f(norm(x))`, or `norm(x + f(x))`."""
    if view.pre:
        return x + layer(norm(x, view.norm))
    return norm(x + layer(x), view.norm)


def block(
    view: View,
    x: Tensor,
    padding: Padding,
    causal: bool,
    o: Options,
    memory: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """A block by the textbook."""
    x = around(
        view.around_attention,
        x,
        lambda y: self_attention(view.attention, y, padding, causal, o),
    )
    if memory is not None and seen is not None:
        plain = o | {"position": None}
        x = around(view.around_cross, x, lambda y: attend_heads(view.cross, y, memory, seen, plain))
    return around(view.around_feedforward, x, lambda y: feed_forward(view.feedforward, y))


def draw_block(rng: random.Random) -> Options:
    """Options of a block, or of a stack of them."""
    return draw_self(rng) | {
        "norm": rng.choice(("pre", "post")),
        "norm_type": rng.choice(("layer", "rms")),
        "activation": rng.choice(ACTIVATIONS),
        "memory": length(rng) if rng.random() < 0.6 else None,
        "memory_padding": rng.random() < 0.5,
        "blocks": rng.randint(1, 2),
        "added": rng.choice((None, "sinusoidal", "learned")),
        # A LayerNorm of one or two numbers is constant but for its sign.
        "width": 4,
    }


def block_options(o: Options) -> dict:
    """Keywords of a block."""
    names = ("norm", "norm_type", "activation")
    return layer_options(o) | {name: o[name] for name in names}


def prepare_stack(
    o: Options, generator: torch.Generator, decoder: bool, stack: bool
) -> PreparedModule:
    """A call of a block, or of a stack of blocks."""
    dim, batch, tokens = o["heads"] * o["width"], o["batch"], o["tokens"]
    padding = Padding(o, generator, batch, tokens)
    options, memory = block_options(o), o["memory"] if decoder else None
    inputs = {"x": normal(generator, batch, tokens, dim)}
    poison = {"x": ~padding.real.unsqueeze(-1)} if o["padding"] else {}
    real = seen = counts = None
    if memory is not None:
        inputs["memory"] = normal(generator, batch, memory, dim)
        counts = lengths_of(generator, batch, memory) if o["memory_padding"] else None
        real = torch.ones(batch, memory, dtype=torch.bool)
        real = real if counts is None else before(counts, memory)
        seen = real[:, None, None].expand(batch, 1, tokens, memory)
        if counts is not None:
            poison["memory"] = ~real.unsqueeze(-1)
        options = options | {"memory_dim": dim}

    def build() -> nn.Module:
        kind = DecoderBlock if decoder else EncoderBlock

        def one() -> Any:
            return kind(dim, o["heads"], o["score"], position=position_of(o), **options)

        if not stack:
            return one()
        added: Any = None
        if o["added"] == "sinusoidal":
            added = Sinusoidal(dim)
        elif o["added"] == "learned":
            added = LearnedPosition(16, dim)
        return (Decoder if decoder else Encoder)([one() for _ in range(o["blocks"])], added)

    def call(module: nn.Module, x: Found) -> Found:
        if memory is None:
            return {"output": module(x["x"], **padding.arguments)}
        found = module(x["x"], x["memory"], memory_lengths=counts, **padding.arguments)
        return {"output": found}

    def by_textbook(view: View, x: Found) -> Found:
        kept = torch.where(padding.real.unsqueeze(-1), x["x"], 0)
        known = None
        if real is not None:
            known = torch.where(real.unsqueeze(-1), x["memory"], 0)
        if not stack:
            return {"output": block(view, kept, padding, decoder, o, known, seen)}
        place = (torch.arange(tokens) - padding.left[:, None]).clamp(min=0)
        kept = kept + _added(view, o["added"], place, dim, kept.dtype)
        for i in range(o["blocks"]):
            kept = block(view.blocks[i], kept, padding, decoder, o, known, seen)
        return {"output": norm(kept, view.norm) if o["norm"] == "pre" else kept}

    shape = (dim, o["heads"], o["score"], o["position"], decoder, stack, o["blocks"], o["added"])
    kinked = o["score"] in KINKED or o["activation"] == "relu"
    key = (*shape, *sorted(options.items(), key=str))
    return PreparedModule(build, key, inputs, call, by_textbook, poison, kinked)


def waves(place: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines of the place (B, L), (B, L, dim)."""
    columns = []
    for i in range(dim):
        angle = place.double() * 10000.0 ** (-2 * (i // 2) / dim)
        columns.append(angle.cos() if i % 2 else angle.sin())
    return torch.stack(columns, -1).to(dtype)


def _added(
    view: View, kind: str | None, place: Tensor, dim: int, dtype: torch.dtype
) -> Tensor | float:
    if kind is None:
        return 0.0
    return waves(place, dim, dtype) if kind == "sinusoidal" else view.position.weight[place]


def draw_feed(rng: random.Random) -> Options:
    """Options of `FeedForward`."""
    return {
        "dim": rng.randint(1, 6),
        "hidden": rng.randint(1, 9),
        "activation": rng.choice(ACTIVATIONS),
        "bias": rng.random() < 0.5,
        "batch": rng.randint(0, 3),
        "tokens": length(rng),
    }


def prepare_feed(o: Options, generator: torch.Generator) -> PreparedModule:
    """A call of `FeedForward`."""
    sizes = (o["dim"], o["hidden"], o["activation"])
    return PreparedModule(
        lambda: FeedForward(*sizes, bias=o["bias"]),
        (*sizes, o["bias"]),
        {"x": normal(generator, o["batch"], o["tokens"], o["dim"])},
        lambda module, x: {"output": module(x["x"])},
        lambda view, x: {"output": feed_forward(view, x["x"])},
        kinked=o["activation"] == "relu",
    )


def draw_position(rng: random.Random) -> Options:
    """Options of `Sinusoidal` and `LearnedPosition`."""
    return {
        "dim": rng.randint(1, 7),
        "batch": rng.randint(0, 3),
        "tokens": length(rng),
        "offset": rng.choice((0, 0, 1, 5)),
        "learned": rng.random() < 0.5,
    }


def prepare_position(o: Options, generator: torch.Generator, table: bool) -> PreparedModule:
    """A call of `Sinusoidal`, or of `LearnedPosition`."""
    dim, tokens = o["dim"], o["tokens"]
    place = (torch.arange(tokens) + o["offset"]).expand(o["batch"], tokens)

    def by_textbook(view: View, x: Found) -> Found:
        if table:
            return {"output": x["x"] + view.weight[place]}
        return {"output": x["x"] + view.amplitude * waves(place, dim, x["x"].dtype)}

    def build() -> nn.Module:
        return LearnedPosition(16, dim) if table else Sinusoidal(dim, learned=o["learned"])

    return PreparedModule(
        build,
        (dim, table, o["learned"]),
        {"x": normal(generator, o["batch"], tokens, dim)},
        lambda module, x: {"output": module(x["x"], offset=o["offset"])},
        by_textbook,
    )


for name, decoder, stack in (
    ("EncoderBlock", False, False),
    ("DecoderBlock", True, False),
    ("Encoder", False, True),
    ("Decoder", True, True),
):
    KINDS[name] = Kind(
        draw_block,
        lambda o, g, decoder=decoder, stack=stack: prepare_stack(o, g, decoder, stack),
    )
KINDS["FeedForward"] = Kind(draw_feed, prepare_feed)
KINDS["Sinusoidal"] = Kind(draw_position, lambda o, g: prepare_position(o, g, False))
KINDS["LearnedPosition"] = Kind(draw_position, lambda o, g: prepare_position(o, g, True))
