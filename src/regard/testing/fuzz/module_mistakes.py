"""Wrong arguments of modules, of their constructors and of their calls; see `mistakes`."""

from __future__ import annotations

import importlib
import random
from typing import Any

import torch

from regard.testing.fuzz.mistakes import Mask, mistake

# Not typed: it is called with wrong types on purpose.
nn = importlib.import_module("regard.nn")

BAD_SIZES = (0, -1, 1.5, "2", [], True)
NEEDED = (*BAD_SIZES, None)
NO_TENSOR = (None, "text", 3, [1.0], {}, object)


def _wrong_forward(x: torch.Tensor, rng: random.Random, width: int) -> tuple[Any, tuple[str, ...]]:
    """What a module cannot take in place of x."""
    other = torch.float32 if x.dtype == torch.float64 else torch.float64
    wrong = (*NO_TENSOR, x[..., : width - 1], x.to(other), x.long(), x.unsqueeze(0).unsqueeze(0))
    return rng.choice(wrong), ()


@mistake(
    "MultiheadAttention cannot be built",
    "embed_dim",
    "num_heads",
    "kdim",
    "vdim",
    "qdim",
    "key_heads",
    "width",
    "dropout",
    "score",
    "engine",
)
def _multihead(rng: random.Random, dtype: torch.dtype) -> object:
    bad, needed = rng.choice(BAD_SIZES), rng.choice(NEEDED)
    wrong: tuple[dict, ...] = (
        {"embed_dim": needed},
        {"num_heads": needed},
        {"num_heads": 3},
        {"kdim": bad},
        {"vdim": bad},
        {"qdim": bad},
        {"key_heads": bad},
        {"key_heads": 3},
        {"width": bad},
        {"dropout": rng.choice((-0.1, 1.0, "x", None, float("nan")))},
        {"score": rng.choice((3, "aditive", "", [], object, torch.ones(1)))},
        {"engine": rng.choice(("cuda", 3, "", []))},
    )
    module = nn.MultiheadAttention(**({"embed_dim": 8, "num_heads": 2} | rng.choice(wrong)))
    x = torch.ones(2, 3, 8)
    return module(x, x, x)


@mistake("MultiheadAttention cannot be called", "query", "key", "value", "mask", "is_causal")
def _multihead_call(rng: random.Random, dtype: torch.dtype) -> object:
    module = nn.MultiheadAttention(8, 2, batch_first=True).to(dtype)
    x = torch.ones(2, 3, 8, dtype=dtype)
    sides: list[Any] = [x, x, x]
    if rng.random() < 0.6:
        sides[rng.randrange(3)] = _wrong_forward(x, rng, 8)[0]
        return module(*sides)
    masks: tuple[dict, ...] = (
        {"key_padding_mask": rng.choice(("x", 3, [True], torch.ones(2, 3).long(), Mask.causal()))},
        {"key_padding_mask": torch.ones(3, 2).bool()},
        {"attn_mask": rng.choice(("x", 3, [True], torch.ones(3, 3).long(), Mask.causal()))},
        {"attn_mask": torch.ones(2, 2).bool()},
        {"attn_mask": torch.ones(2, 3, 3).bool()},
        {"is_causal": True},
    )
    return module(*sides, **rng.choice(masks))


@mistake(
    "an attention layer or block cannot be built",
    "dim",
    "heads",
    "score",
    "dropout",
    "norm",
    "position",
    "activation",
    "engine",
    "width",
    "feedforward",
    "argument",
    "blocks",
)
def _layer(rng: random.Random, dtype: torch.dtype) -> object:
    kind = rng.choice((nn.SelfAttention, nn.CrossAttention, nn.EncoderBlock, nn.DecoderBlock))
    bad, needed = rng.choice(BAD_SIZES), rng.choice(NEEDED)
    wrong: list[dict] = [
        {"dim": needed},
        {"heads": needed},
        {"heads": 3},
        {"key_heads": bad},
        {"key_heads": 3},
        {"width": bad},
        {"value_dim": bad},
        {"qk_norm": rng.choice(("batch", 3, []))},
        {"dropout": rng.choice((1.0, -1, "x", None))},
        {"score": rng.choice((3, "aditive", [], object))},
        {"engine": rng.choice(("cuda", 3))},
        {"colour": 3},
    ]
    if kind in (nn.EncoderBlock, nn.DecoderBlock):
        wrong += [
            {"norm": rng.choice(("both", None, 3))},
            {"norm_type": rng.choice(("batch", None, 3))},
            {"activation": rng.choice(("tanh", None, 3))},
            {"feedforward": bad},
            {"position": rng.choice((3, "rotary", nn.Sinusoidal(8), nn.Rotary(6), nn.Alibi(3)))},
        ]
    if kind in (nn.CrossAttention, nn.DecoderBlock):
        wrong.append({"memory_dim": bad})
    if rng.random() < 0.1:
        stack = rng.choice((nn.Encoder, nn.Decoder))
        return stack(rng.choice((None, 3, [], [3], [nn.FeedForward(4)], "blocks")))
    chosen = rng.choice(wrong)
    module = kind(**({"dim": 8, "heads": 2} | chosen))
    x = torch.ones(1, 2, 8)
    return module(x, x) if kind is nn.CrossAttention else module(x)


@mistake(
    "an attention layer cannot be called", "x", "memory", "mask", "lengths", "left_padding", "cache"
)
def _layer_call(rng: random.Random, dtype: torch.dtype) -> object:
    kind = rng.choice((nn.SelfAttention, nn.CrossAttention, nn.EncoderBlock, nn.DecoderBlock))
    module = kind(8, 2).to(dtype)
    x: Any = torch.ones(2, 3, 8, dtype=dtype)
    memory: tuple = (x,) if kind is nn.CrossAttention else ()
    draw = rng.random()
    if draw < 0.4:
        return module(_wrong_forward(x, rng, 8)[0], *memory)
    if draw < 0.5 and memory:
        return module(x, _wrong_forward(x, rng, 8)[0])
    counts = rng.choice(([9, 1], [-1, 1], [1], [1.5, 1], "ab", torch.ones(2), [True, False], 3))
    masks = ("x", 3, torch.ones(3, 3), torch.ones(2, 2).bool(), torch.ones(9, 9).bool(), object)
    if draw < 0.7:
        return module(x, *memory, lengths=counts)
    if draw < 0.8 and not memory:
        return module(x, left_padding=counts)
    return module(x, *memory, mask=rng.choice(masks))


@mistake(
    "an attention of decoders is wrong",
    "query",
    "key",
    "hidden",
    "heads",
    "mode",
    "score",
    "lengths",
    "visible",
    "values",
    "memory",
    "window",
    "dropout",
    "location",
    "dim",
    "width",
    "engine",
    "noise",
    "state",
)
def _steps(rng: random.Random, dtype: torch.dtype) -> object:
    bad = rng.choice(NEEDED)
    wrong = (
        lambda: nn.BahdanauAttention(bad, 4, 4),
        lambda: nn.BahdanauAttention(4, bad, 4),
        lambda: nn.BahdanauAttention(4, 4, bad),
        lambda: nn.BahdanauAttention(4, 4, 4, bad),
        lambda: nn.LuongAttention(4, 5, "dot"),
        lambda: nn.LuongAttention(4, 4, "mean"),
        lambda: nn.LuongAttention(4, 4, "dot", 2),
        lambda: nn.DecoderAttention("additive"),
        lambda: nn.DecoderAttention("aditive", width=4),
        lambda: nn.DecoderAttention(3),
        lambda: nn.DecoderAttention("dot", window=rng.choice((3, (1,), (-1, 2), "ab", (1.5, 2)))),
        lambda: nn.DecoderAttention("dot", dropout=rng.choice((1.0, "x"))),
        lambda: nn.DecoderAttention("dot", location=3),
        lambda: nn.MonotonicAttention("dot", noise=rng.choice((-1.0, "x", None))),
        lambda: nn.MonotonicAttention("dot", engine="cpu"),
    )
    if rng.random() < 0.4:
        return rng.choice(wrong)()
    module = nn.BahdanauAttention(4, 4, 4).to(dtype)
    keys = torch.ones(2, 3, 4, dtype=dtype)
    draw = rng.random()
    if draw < 0.3:
        return module.prepare(_wrong_forward(keys, rng, 4)[0])
    if draw < 0.45:
        counts = rng.choice(([9, 1], [-1, 1], [1], [1.5, 1], "ab", torch.ones(2)))
        return module.prepare(keys, lengths=counts)
    if draw < 0.55:
        seen = rng.choice(("x", 3, torch.ones(2, 3), torch.ones(3, 2).bool(), [True]))
        return module.prepare(keys, visible=seen)
    if draw < 0.65:
        values = rng.choice(("x", 3, torch.ones(2, 4, 4, dtype=dtype), keys.long(), keys[0]))
        return module.prepare(keys, values=values)
    memory = module.prepare(keys)
    query = keys[:, 0]
    if draw < 0.85:
        wide = torch.float32 if dtype == torch.float64 else torch.float64
        no_query = (
            *NO_TENSOR,
            query[:, :3],
            query.to(wide),
            query.long(),
            query[0],
            query[:1].repeat(3, 1),
        )
        return module(rng.choice(no_query), memory)
    if draw < 0.95:
        return module(query, rng.choice((keys, None, 3, "memory")))
    return module(query, memory, rng.choice((3, "state", keys)))


@mistake(
    "GraphAttention is wrong",
    "in_dim",
    "out_dim",
    "heads",
    "score",
    "edge",
    "fill",
    "dropout",
    "x",
    "width",
    "gate",
    "slope",
)
def _graph(rng: random.Random, dtype: torch.dtype) -> object:
    bad, needed = rng.choice(BAD_SIZES), rng.choice(NEEDED)
    built: tuple[dict, ...] = (
        # Nodes and edges may have the width -1, which the first call decides.
        {"in_dim": rng.choice([x for x in NEEDED if x != -1])},
        {"out_dim": needed},
        {"heads": needed},
        {"score": rng.choice((3, "gatv3", []))},
        {"edge_dim": rng.choice([x for x in BAD_SIZES if x != -1])},
        {"fill": rng.choice(("median", None, []))},
        {"dropout": rng.choice((1.0, "x"))},
        {"width": bad},
        {"gate": True},
        {"edge_in_value": True},
        {"score": "dot", "negative_slope": 0.1},
    )
    if rng.random() < 0.4:
        return nn.GraphAttention(**({"in_dim": 4, "out_dim": 4} | rng.choice(built)))
    module = nn.GraphAttention(4, 4).to(dtype)
    x: Any = torch.ones(3, 4, dtype=dtype)
    edges: Any = torch.tensor([[0, 1], [1, 2]])
    draw = rng.random()
    if draw < 0.4:
        return module(_wrong_forward(x, rng, 4)[0], edges)
    if draw < 0.9:
        no_edges = (
            *NO_TENSOR,
            edges.float(),
            edges.int(),
            edges.repeat(2, 1)[:3],
            edges + 9,
            edges - 2,
            edges[0],
        )
        return module(x, rng.choice(no_edges))
    return module(x, edges, x)


@mistake(
    "FeedForward or a position is wrong",
    "dim",
    "hidden",
    "activation",
    "length",
    "offset",
    "position",
    "x",
    "rotated",
    "heads",
    "base",
    "amplitude",
    "queries",
    "keys",
    "built",
)
def _positions(rng: random.Random, dtype: torch.dtype) -> object:
    bad = rng.choice(NEEDED)
    x = torch.ones(2, 3, 4, dtype=dtype)
    wrong = (
        lambda: nn.FeedForward(bad),
        lambda: nn.FeedForward(4, 0 if bad is None else bad),
        lambda: nn.FeedForward(4, activation=rng.choice(("tanh", None, 3))),
        lambda: nn.Sinusoidal(bad),
        lambda: nn.Sinusoidal(4, amplitude=rng.choice(("x", -1.0, 0))),
        lambda: nn.Sinusoidal(4, base=rng.choice(("x", -1.0, 0))),
        lambda: nn.Sinusoidal(5)(x),
        lambda: nn.Sinusoidal(4)(x, offset=rng.choice((-1, 1.5, "x", None))),
        lambda: nn.Sinusoidal(4)(
            x, positions=rng.choice(([1, 2, 3], torch.ones(3), torch.ones(4).long()))
        ),
        lambda: nn.LearnedPosition(bad, 4),
        lambda: nn.LearnedPosition(4, bad),
        lambda: nn.LearnedPosition(2, 4)(x),
        lambda: nn.LearnedPosition(8, 4)(x, offset=rng.choice((-1, 9, "x"))),
        lambda: nn.Rotary(bad),
        lambda: nn.Rotary(3),
        lambda: nn.Rotary(4, rotated=6),
        lambda: nn.Rotary(6)(x),
        lambda: nn.Alibi(bad),
        lambda: nn.Alibi(2)(rng.choice((-1, 1.5, "x", None)), 3),
        lambda: nn.Alibi(2)(3, 3, offset="x"),
    )
    return rng.choice(wrong)()
