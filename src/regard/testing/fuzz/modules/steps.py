"""Attention of recurrent decoders under the fuzzer, step by step.

Shape legend: B batch, H heads, T steps, L keys, V value width.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard import Projected
from regard.nn import (
    BahdanauAttention,
    DecoderAttention,
    Location,
    LuongAttention,
    MonotonicAttention,
)
from regard.testing.fuzz import textbook
from regard.testing.fuzz.modules.base import (
    KINDS,
    KINKED,
    SCORES,
    Found,
    Kind,
    Options,
    PreparedModule,
    before,
    length,
    lengths_of,
    normal,
)
from regard.testing.fuzz.view import View, logits_of


def draw_steps(rng: random.Random) -> Options:
    """What all of them take."""
    return {
        "query_dim": rng.choice((1, 2, 4, 5)),
        "key_dim": rng.choice((1, 2, 4, 6)),
        "hidden": rng.choice((1, 2, 4)),
        "heads": rng.choice((1, 1, 2, 3)),
        "batch": rng.choice((1, 1, 2, 3)) if rng.random() > 0.02 else 0,
        "keys": length(rng),
        "steps": rng.randint(1, 3),
        "at_once": rng.random() < 0.3,
        "bias": rng.random() < 0.4,
        "weight_norm": rng.random() < 0.2,
        "coverage": rng.random() < 0.25,
        "location": rng.choice((None, None, None, "previous", "total", "both")),
        "values": rng.random() < 0.4,
        "lengths": rng.random() < 0.5,
        "visible": rng.random() < 0.3,
        "mode": rng.choice(("dot", "general", "concat")),
        "scaled": rng.random() < 0.3,
        "score": rng.choice([name for name in SCORES if name != "cosine"]),
        "engine": rng.choice((None, None, None, "cpu", "reference")),
    }


def location_of(o: Options) -> Location | None:
    """The location term of these options."""
    return None if o["location"] is None else Location(kernel=3, channels=2, of=o["location"])


def build_bahdanau(o: Options) -> nn.Module:
    """`BahdanauAttention` of these options."""
    return BahdanauAttention(
        o["query_dim"],
        o["key_dim"],
        o["hidden"],
        o["heads"],
        bias=o["bias"],
        weight_norm=o["weight_norm"],
        location=location_of(o),
        coverage=o["coverage"],
        engine=o["engine"],
    )


def build_luong(o: Options) -> nn.Module:
    """`LuongAttention` of these options."""
    dot = o["mode"] == "dot"
    return LuongAttention(
        o["query_dim"],
        o["query_dim"] if dot else o["key_dim"],
        o["mode"],
        1 if dot else o["heads"],
        scaled=o["scaled"] and dot,
        hidden=o["hidden"] if o["mode"] == "concat" else None,
        location=location_of(o),
        coverage=o["coverage"],
        engine=o["engine"],
    )


def build_decoder(o: Options) -> nn.Module:
    """`DecoderAttention` by the name of a score."""
    return DecoderAttention(
        o["score"],
        width=o["query_dim"],
        location=location_of(o),
        coverage=o["coverage"],
        engine=o["engine"],
    )


def build_monotonic(o: Options) -> nn.Module:
    """`MonotonicAttention` in expectation."""
    return MonotonicAttention(
        o["score"],
        width=o["query_dim"],
        hard=False,
        location=location_of(o),
        coverage=o["coverage"],
    )


def prepare_steps(
    o: Options, generator: torch.Generator, build: Callable[[Options], nn.Module], kind: str
) -> PreparedModule:
    """Steps over one memory, one query after the other or several at once."""
    alike = kind in ("decoder", "monotonic") or (kind == "luong" and o["mode"] == "dot")
    key_dim = o["query_dim"] if alike else o["key_dim"]
    batch, keys, steps = o["batch"], o["keys"], o["steps"]
    inputs = {
        "query": normal(generator, batch, steps, o["query_dim"]),
        "keys": normal(generator, batch, keys, key_dim),
    }
    if o["values"]:
        inputs["values"] = normal(generator, batch, keys, 3)
    real = torch.ones(batch, keys, dtype=torch.bool)
    arguments: dict = {}
    if o["lengths"]:
        arguments["lengths"] = lengths_of(generator, batch, keys)
        real = before(arguments["lengths"], keys)
    if o["visible"]:
        arguments["visible"] = torch.rand(batch, keys, generator=generator) < 0.7
        real = real & arguments["visible"]

    def call(module: DecoderAttention, x: Found) -> Found:
        memory = module.prepare(x["keys"], values=x.get("values"), **arguments)
        if o["at_once"]:
            found = module(x["query"], memory)
            return {"output": found.context, "weights": found.weights}
        state, contexts, weights = None, [], []
        for t in range(steps):
            context, weight, state = module(x["query"][:, t], memory, state)
            contexts.append(context)
            weights.append(weight)
        return {"output": torch.stack(contexts, 1), "weights": torch.stack(weights, 2)}

    def by_textbook(view: View, x: Found) -> Found:
        return _textbook(view, x, o, real, kind == "monotonic")

    poisons = {name: ~real.unsqueeze(-1) for name in ("keys", "values") if name in inputs}
    return PreparedModule(
        lambda: build(o),
        (kind, *(v for k, v in o.items() if k not in ("batch", "keys", "steps"))),
        inputs,
        call,
        by_textbook,
        poison=poisons if arguments else {},
        kinked=kind in ("decoder", "monotonic") and o["score"] in KINKED,
    )


def _textbook(view: View, x: Found, o: Options, real: Tensor, monotonic: bool) -> Found:
    keys = torch.where(real.unsqueeze(-1), x["keys"], 0)
    given = x.get("values")
    values = keys if given is None else torch.where(real.unsqueeze(-1), given, 0)
    rows = torch.zeros(keys.shape[0], view._module.heads, 1, keys.shape[1], dtype=keys.dtype)
    total, place = rows, _first(real, rows) if monotonic else rows
    contexts, weights = [], []
    for t in range(o["steps"]):
        query = x["query"][:, None, t : t + 1]
        term = _terms(view, place, total, o)
        logits = _with_term(view, query, keys.unsqueeze(1), term)
        seen = real[:, None, None].expand(logits.shape)
        if monotonic:
            logits = logits + view.offset[:, None, None]
            weight = _walk(torch.where(seen, torch.sigmoid(logits), 0), place)
            context = weight @ values.unsqueeze(1)
        else:
            found = textbook.attend(logits, values.unsqueeze(1), seen, want=("weights",))
            context, weight = found["output"], found["weights"]
        place, total = weight, total + weight
        contexts.append(context.transpose(1, 2).flatten(2))
        weights.append(weight)
    return {"output": torch.cat(contexts, 1), "weights": torch.cat(weights, 2)}


def _terms(view: View, previous: Tensor, total: Tensor, o: Options) -> Tensor | None:
    """What earlier weights (B, H, 1, L) add to the keys, (B, H, L, E): their convolution, and their sum."""
    found = []
    if o["location"] is not None:
        parts = {"previous": [previous], "total": [total], "both": [previous, total]}[o["location"]]
        filters = view.terms[0].filters.unflatten(0, (view._module.heads, -1))  # (H, C, inputs, 3)
        features: Tensor | float = 0.0
        for i, part in enumerate(parts):
            padded = torch.nn.functional.pad(part.squeeze(2), (1, 1))  # (B, H, L + 2)
            for k in range(3):
                shifted = padded[..., k : k + part.shape[-1]].unsqueeze(-1)
                features = features + shifted * filters[:, :, i, k].unsqueeze(-2)
        found.append(features @ view.terms[0].projection)
    if o["coverage"]:
        found.append(total.mT * view.terms[len(found)].weight)
    return sum(found[1:], found[0]) if found else None


def _with_term(view: View, query: Tensor, key: Tensor, term: Tensor | None) -> Tensor:
    """Logits (B, H, 1, L) with a term of the key's place, inside of tanh where there is one."""
    if term is None:
        logits = logits_of(view.score, query, key)
        heads = view._module.heads
        return logits.expand(-1, heads, -1, -1) if logits.shape[1] != heads else logits
    score, module = view.score, view.score._module
    if isinstance(module, Projected):
        width = module.query_weight.shape[0] // module.heads
        q = (query @ score.query_weight.unflatten(0, (-1, width)).mT).expand(
            -1, module.heads, -1, -1
        )
        key = key @ score.key_weight.unflatten(0, (-1, width)).mT
        return logits_of(score.score, q, key + term)
    if type(module).__name__ in ("Additive", "GATv2"):
        return logits_of(score, query, key + term)
    if type(module).__name__ == "GAT":
        bare = (query * score.query_vector.unsqueeze(-2)).sum(-1).unsqueeze(-1)
        bare = bare + (key * score.key_vector.unsqueeze(-2)).sum(-1).unsqueeze(-2) + term.mT
        return torch.nn.functional.leaky_relu(bare, module.parameter)
    return logits_of(score, query, key) + term.mT


def _first(real: Tensor, logits: Tensor) -> Tensor:
    """1 at the first visible key, (B, H, 1, L)."""
    first = real & (real.cumsum(-1) == 1)
    return first[:, None, None].expand(logits.shape).to(logits.dtype)


def _walk(stop: Tensor, previous: Tensor) -> Tensor:
    """Where a head stops in expectation, key by key, as Raffel et al. wrote it."""
    found, reach = [], None
    for j in range(stop.shape[-1]):
        before_ = 0 if reach is None else (1 - stop[..., j - 1]) * reach
        reach = before_ + previous[..., j]
        found.append(stop[..., j] * reach)
    return torch.stack(found, -1) if found else stop


for name, build, kind in (
    ("BahdanauAttention", build_bahdanau, "bahdanau"),
    ("LuongAttention", build_luong, "luong"),
    ("DecoderAttention", build_decoder, "decoder"),
    ("MonotonicAttention", build_monotonic, "monotonic"),
):
    KINDS[name] = Kind(
        draw_steps, lambda o, g, build=build, kind=kind: prepare_steps(o, g, build, kind)
    )
