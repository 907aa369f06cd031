"""Modules without attention of their own under the fuzzer: rotary positions, ALiBi, Luong's output layer."""

from __future__ import annotations

import random

import torch
from torch import nn

from regard.nn import Alibi, Rotary
from regard.nn.seq2seq import AttentionalVector
from regard.testing.fuzz.modules.base import (
    KINDS,
    Found,
    Kind,
    Options,
    PreparedModule,
    length,
    linear,
    normal,
)
from regard.testing.fuzz.modules.layers import rotated
from regard.testing.fuzz.view import View


def draw_rotary(rng: random.Random) -> Options:
    """Options of `Rotary`."""
    return {
        "pairs": rng.randint(1, 4),
        "rest": rng.choice((0, 0, 1, 3)),
        "batch": rng.randint(0, 3),
        "heads": rng.randint(1, 3),
        "tokens": length(rng),
        "interleaved": rng.random() < 0.5,
        "offset": rng.choice((0, 0, 7, 100_000)),
    }


def prepare_rotary(o: Options, generator: torch.Generator) -> PreparedModule:
    """A call of `Rotary`."""
    turned, tokens = 2 * o["pairs"], o["tokens"]
    place = (torch.arange(tokens) + o["offset"]).expand(o["batch"], tokens)

    def by_textbook(view: View, x: Found) -> Found:
        front, rest = x["x"].split([turned, o["rest"]], -1)
        return {"output": torch.cat([rotated(front, place, o["interleaved"]), rest], -1)}

    return PreparedModule(
        lambda: Rotary(turned + o["rest"], interleaved=o["interleaved"], rotated=turned),
        (turned, o["rest"], o["interleaved"]),
        {"x": normal(generator, o["batch"], o["heads"], tokens, turned + o["rest"])},
        lambda module, x: {"output": module(x["x"], offset=o["offset"])},
        by_textbook,
    )


def draw_alibi(rng: random.Random) -> Options:
    """Options of `Alibi`."""
    return {
        "heads": rng.randint(1, 9),
        "queries": length(rng),
        "keys": length(rng),
        "offset": rng.choice((None, None, 0, 3)),
        "causal": rng.random() < 0.5,
    }


def slopes(heads: int) -> list[float]:
    """As Press et al. wrote them: of a power of two, and then every other one of the next."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    found = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    return found + [2.0 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


def prepare_alibi(o: Options, generator: torch.Generator) -> PreparedModule:
    """The bias, added to logits so that it has the dtype of the case."""
    queries, keys = o["queries"], o["keys"]
    first = keys - queries if o["offset"] is None else o["offset"]

    def call(module: nn.Module, x: Found) -> Found:
        bias = module(queries, keys, offset=o["offset"])
        return {
            "output": (x["x"].to(torch.promote_types(x["x"].dtype, bias.dtype)) + bias).to(x["x"])
        }

    def by_textbook(view: View, x: Found) -> Found:
        ahead = torch.arange(keys) - (torch.arange(queries).unsqueeze(-1) + first)
        steep = torch.tensor(slopes(o["heads"]), dtype=torch.float64)[:, None, None]
        bias = -steep * ahead.abs()
        bias = torch.where(ahead > 0, -torch.inf, bias) if o["causal"] else bias
        return {"output": x["x"] + bias.to(x["x"])}

    return PreparedModule(
        lambda: Alibi(o["heads"], causal=o["causal"]),
        (o["heads"], o["causal"]),
        {"x": normal(generator, o["heads"], queries, keys)},
        call,
        by_textbook,
        slack=4e-6,  # the bias is fp32, whatever it is added to
    )


def draw_vector(rng: random.Random) -> Options:
    """Options of `AttentionalVector`."""
    return {
        "context": rng.randint(1, 5),
        "query": rng.randint(1, 5),
        "width": rng.randint(1, 5),
        "batch": rng.randint(0, 4),
    }


def prepare_vector(o: Options, generator: torch.Generator) -> PreparedModule:
    """A call of `AttentionalVector`."""
    sizes = (o["context"], o["query"], o["width"])

    def by_textbook(view: View, x: Found) -> Found:
        both = torch.cat([x["context"], x["query"]], -1)
        return {"output": torch.tanh(linear(both, view.linear))}

    return PreparedModule(
        lambda: AttentionalVector(*sizes),
        sizes,
        {
            "context": normal(generator, o["batch"], o["context"]),
            "query": normal(generator, o["batch"], o["query"]),
        },
        lambda module, x: {"output": module(x["context"], x["query"])},
        by_textbook,
    )


KINDS["Rotary"] = Kind(draw_rotary, prepare_rotary)
KINDS["Alibi"] = Kind(draw_alibi, prepare_alibi)
KINDS["AttentionalVector"] = Kind(draw_vector, prepare_vector)
